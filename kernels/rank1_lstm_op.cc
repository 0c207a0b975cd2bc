// CPU OpKernels of the rank-1 LSTM family: check, allocate, call the core.
#define EIGEN_USE_THREADS
#include "kernels/cpu_op.h"
#include "kernels/rank1_lstm.h"
#include "kernels/rank1_lstm_shapes.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

// What the forward and the gradient kernel have in common: sizes, member and input, all checked.
template <typename T, LstmInputForm kForm>
struct Call {
  using Scalar = typename ComputeArrays<T>::Scalar;

  template <size_t kCount>
  absl::Status Prepare(OpKernelContext* ctx, const std::string& op,
                       const ShapeRule (&rules)[kCount]) {
    ShapeMatcher sizes(op);
    if (absl::Status status = CheckInputs(ctx, rules, &sizes); !status.ok()) return status;
    shape = {sizes["time"], sizes["batch"],
             sizes[kForm == LstmInputForm::kDense ? "input" : "vocab"], sizes["units"]};
    K = sizes["K"];
    if (absl::Status status = GetMember(ctx, op, "u", K, &member); !status.ok()) return status;
    if (kForm == LstmInputForm::kDense) return absl::OkStatus();
    return GetIndices(ctx, op, "tokens", shape.C, "the rows of `table`", &tokens);
  }

  Rank1LstmInput<Scalar> Input(ComputeArrays<T>* arrays, bool forward) const {
    if constexpr (kForm == LstmInputForm::kDense) {
      return {kForm,
              arrays->Input("x"),
              arrays->Input("kernel"),
              forward ? arrays->Input("bias") : nullptr,
              nullptr,
              nullptr};
    } else {
      return {kForm, nullptr, nullptr, nullptr, tokens, forward ? arrays->Input("table") : nullptr};
    }
  }

  Rank1LstmShape shape;
  int64_t K = 0;
  int32_t member = 0;
  const int32_t* tokens = nullptr;
};

template <typename T, LstmInputForm kForm>
class Rank1LstmOp : public OpKernel {
 public:
  explicit Rank1LstmOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_training", &is_training_));
  }

  void Compute(OpKernelContext* ctx) override {
    Call<T, kForm> call;
    if constexpr (kForm == LstmInputForm::kDense) {
      OP_REQUIRES_OK(ctx, call.Prepare(ctx, type_string(), kRank1LstmInputs));
    } else {
      OP_REQUIRES_OK(ctx, call.Prepare(ctx, type_string(), kRank1LstmTokensInputs));
    }
    const auto [time, batch, input, units] = call.shape;
    ComputeArrays<T> a(ctx);
    using Scalar = typename ComputeArrays<T>::Scalar;
    Rank1LstmForwardArgs<Scalar> args;
    args.shape = call.shape;
    args.input = call.Input(&a, /*forward=*/true);
    args.initial_h = a.Input("initial_h");
    args.initial_c = a.Input("initial_c");
    args.recurrent_kernel = a.Input("recurrent_kernel");
    args.u = a.Input("u");
    args.v = a.Input("v");
    args.h = a.Output("h", {time, batch, units});
    args.final_h = a.Output("final_h", {batch, units});
    args.final_c = a.Output("final_c", {batch, units});
    if (is_training_) {
      args.gates = a.Output("gates", {time, batch, 4 * units});
      args.cells = a.Output("cells", {time, batch, units});
    } else {
      a.Output("gates", {0, 0, 0});
      a.Output("cells", {0, 0, 0});
      args.gates = args.cells = nullptr;
    }
    args.workspace = a.Scratch(Rank1LstmForwardWorkspace(call.shape, kForm, is_training_));
    OP_REQUIRES_OK(ctx, a.status());
    args.u += call.member * units;
    args.v += call.member * 4 * units;
    Rank1LstmForwardCpu(args, IntraOpThreads(ctx));
    a.Finish();
  }

 private:
  bool is_training_;
};

template <typename T, LstmInputForm kForm>
class Rank1LstmGradOp : public OpKernel {
 public:
  explicit Rank1LstmGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    Call<T, kForm> call;
    if constexpr (kForm == LstmInputForm::kDense) {
      OP_REQUIRES_OK(ctx, call.Prepare(ctx, type_string(), kRank1LstmGradInputs));
    } else {
      OP_REQUIRES_OK(ctx, call.Prepare(ctx, type_string(), kRank1LstmTokensGradInputs));
    }
    const auto [time, batch, input, units] = call.shape;
    ComputeArrays<T> a(ctx);
    using Scalar = typename ComputeArrays<T>::Scalar;
    Rank1LstmBackwardArgs<Scalar> args = {};
    args.shape = call.shape;
    args.input = call.Input(&a, /*forward=*/false);
    args.initial_h = a.Input("initial_h");
    args.initial_c = a.Input("initial_c");
    args.recurrent_kernel = a.Input("recurrent_kernel");
    args.u = a.Input("u");
    args.v = a.Input("v");
    args.h = a.Input("h");
    args.cells = a.Input("cells");
    args.gates = a.Consumed("gates");
    args.dh = a.Input("dh");
    args.dfinal_h = a.Input("dfinal_h");
    args.dfinal_c = a.Input("dfinal_c");
    if (kForm == LstmInputForm::kDense) {
      args.dx = a.Output("dx", {time, batch, input});
      args.dkernel = a.Output("dkernel", {input, 4 * units});
      args.dbias = a.Output("dbias", {4 * units});
    } else {
      args.dtable = a.Output("dtable", {input, 4 * units});
    }
    args.dinitial_h = a.Output("dinitial_h", {batch, units});
    args.dinitial_c = a.Output("dinitial_c", {batch, units});
    args.drecurrent_kernel = a.Output("drecurrent_kernel", {units, 4 * units});
    args.du = a.Output("du", {call.K, units});
    args.dv = a.Output("dv", {call.K, 4 * units});
    args.workspace = a.Scratch(Rank1LstmBackwardWorkspace(call.shape, kForm));
    OP_REQUIRES_OK(ctx, a.status());
    // The other members' rows have no part in this minibatch.
    std::fill_n(args.du, call.K * units, Scalar(0));
    std::fill_n(args.dv, call.K * 4 * units, Scalar(0));
    args.u += call.member * units;
    args.v += call.member * 4 * units;
    args.du += call.member * units;
    args.dv += call.member * 4 * units;
    Rank1LstmBackwardCpu(args, IntraOpThreads(ctx));
    a.Finish();
  }
};

#define REGISTER_CPU(T)                                                                            \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name("LatePhase>Rank1Lstm").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),           \
      Rank1LstmOp<T, LstmInputForm::kDense>);                                                      \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name("LatePhase>Rank1LstmGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),       \
      Rank1LstmGradOp<T, LstmInputForm::kDense>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name("LatePhase>Rank1LstmTokens").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),     \
      Rank1LstmOp<T, LstmInputForm::kTokens>);                                                     \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name("LatePhase>Rank1LstmTokensGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      Rank1LstmGradOp<T, LstmInputForm::kTokens>)
REGISTER_CPU(float);
REGISTER_CPU(double);
REGISTER_CPU(Eigen::half);
REGISTER_CPU(Eigen::bfloat16);
#undef REGISTER_CPU

}  // namespace
}  // namespace late_phase

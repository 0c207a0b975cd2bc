// OpKernels of the rank-1 LSTM family: check, allocate, call the core.
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/rank1_lstm.h"
#include "kernels/rank1_lstm_shapes.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

int64_t ForwardWorkspace(const Cpu&, const Rank1LstmShape& shape, LstmInputForm form,
                         bool training) {
  return Rank1LstmForwardWorkspace(shape, form, training);
}
int64_t ForwardWorkspace(const Gpu&, const Rank1LstmShape& shape, LstmInputForm form,
                         bool training) {
  return Rank1LstmForwardWorkspaceGpu(shape, form, training);
}
int64_t BackwardWorkspace(const Cpu&, const Rank1LstmShape& shape, LstmInputForm form) {
  return Rank1LstmBackwardWorkspace(shape, form);
}
int64_t BackwardWorkspace(const Gpu&, const Rank1LstmShape& shape, LstmInputForm form) {
  return Rank1LstmBackwardWorkspaceGpu(shape, form);
}

template <typename Scalar>
absl::Status Forward(const Cpu& cpu, const Rank1LstmForwardArgs<Scalar>& args) {
  Rank1LstmForwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename Scalar>
absl::Status Forward(const Gpu& gpu, const Rank1LstmForwardArgs<Scalar>& args) {
  return gpu.ToStatus(Rank1LstmForwardGpu(args, gpu.stream(), gpu.matmul()));
}

template <typename Scalar>
absl::Status Backward(const Cpu& cpu, const Rank1LstmBackwardArgs<Scalar>& args) {
  Rank1LstmBackwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename Scalar>
absl::Status Backward(const Gpu& gpu, const Rank1LstmBackwardArgs<Scalar>& args) {
  return gpu.ToStatus(Rank1LstmBackwardGpu(args, gpu.stream(), gpu.matmul()));
}

// What the forward and the gradient kernel have in common: sizes, member and input, all checked.
template <class Device, typename T, LstmInputForm kForm>
struct Call {
  using Scalar = ComputeType<T>;

  [[nodiscard]] static absl::StatusOr<Call> Prepare(OpKernelContext* ctx, const Device& device,
                                                    const std::string& op,
                                                    absl::Span<const ShapeRule> rules) {
    TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, CheckInputs(ctx, op, rules));
    Call call;
    call.shape = {sizes["time"], sizes["batch"],
                  sizes[kForm == LstmInputForm::kDense ? "input" : "vocab"], sizes["units"]};
    call.K = sizes["K"];
    TF_ASSIGN_OR_RETURN(call.member, GetMember(ctx, op, "u", call.K));
    if (kForm == LstmInputForm::kDense) return call;
    call.tokens = ctx->input(0).template flat<int32_t>().data();
    TF_RETURN_IF_ERROR(device.CheckIndices(op, "tokens", call.shape.C, "the rows of `table`"));
    return call;
  }

  Rank1LstmInput<Scalar> Input(WideArrays<Device, T>* arrays, bool forward) const {
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

template <class Device, typename T, LstmInputForm kForm>
class Rank1LstmOp : public OpKernel {
 public:
  explicit Rank1LstmOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("is_training", &is_training_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Device device(ctx);
    OP_REQUIRES_VALUE(const auto call, ctx, LstmCall::Prepare(ctx, device, type_string(), Rules()));
    const auto [time, batch, input, units] = call.shape;
    WideArrays<Device, T> a(ctx, device);
    using Scalar = ComputeType<T>;
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
    args.workspace = a.Scratch(ForwardWorkspace(device, call.shape, kForm, is_training_));
    OP_REQUIRES_OK(ctx, a.status());
    args.u += call.member * units;
    args.v += call.member * 4 * units;
    OP_REQUIRES_OK(ctx, Forward(device, args));
    OP_REQUIRES_OK(ctx, a.Finish());
  }

 private:
  using LstmCall = Call<Device, T, kForm>;

  static absl::Span<const ShapeRule> Rules() {
    if constexpr (kForm == LstmInputForm::kDense) {
      return kRank1LstmInputs;
    } else {
      return kRank1LstmTokensInputs;
    }
  }

  bool is_training_;
};

template <class Device, typename T, LstmInputForm kForm>
class Rank1LstmGradOp : public OpKernel {
 public:
  explicit Rank1LstmGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    const Device device(ctx);
    OP_REQUIRES_VALUE(const auto call, ctx, LstmCall::Prepare(ctx, device, type_string(), Rules()));
    const auto [time, batch, input, units] = call.shape;
    WideArrays<Device, T> a(ctx, device);
    using Scalar = ComputeType<T>;
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
    args.workspace = a.Scratch(BackwardWorkspace(device, call.shape, kForm));
    OP_REQUIRES_OK(ctx, a.status());
    // The other members' rows take no part in this minibatch.
    OP_REQUIRES_OK(ctx, device.Zero(call.K * units * sizeof(Scalar), args.du));
    OP_REQUIRES_OK(ctx, device.Zero(call.K * 4 * units * sizeof(Scalar), args.dv));
    args.u += call.member * units;
    args.v += call.member * 4 * units;
    args.du += call.member * units;
    args.dv += call.member * 4 * units;
    OP_REQUIRES_OK(ctx, Backward(device, args));
    OP_REQUIRES_OK(ctx, a.Finish());
  }

 private:
  using LstmCall = Call<Device, T, kForm>;

  static absl::Span<const ShapeRule> Rules() {
    if constexpr (kForm == LstmInputForm::kDense) {
      return kRank1LstmGradInputs;
    } else {
      return kRank1LstmTokensGradInputs;
    }
  }
};

#define REGISTER_FORM(DEVICE, T, OP, FORM)                                                     \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name("LatePhase>" OP).Device(DEVICE::kType).TypeConstraint<T>("T").HostMemory("member"), \
      Rank1LstmOp<DEVICE, T, FORM>);                                                           \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>" OP "Grad")                                         \
                              .Device(DEVICE::kType)                                           \
                              .TypeConstraint<T>("T")                                          \
                              .HostMemory("member"),                                           \
                          Rank1LstmGradOp<DEVICE, T, FORM>)
#define REGISTER_TYPE(DEVICE, T)                                \
  REGISTER_FORM(DEVICE, T, "Rank1Lstm", LstmInputForm::kDense); \
  REGISTER_FORM(DEVICE, T, "Rank1LstmTokens", LstmInputForm::kTokens)
LATE_PHASE_FOR_ALL_TYPES(REGISTER_TYPE);
#undef REGISTER_TYPE
#undef REGISTER_FORM

}  // namespace
}  // namespace late_phase

// CPU OpKernels of the batch normalisation family: check, allocate, call the core.
#define EIGEN_USE_THREADS
#include "kernels/batch_norm.h"
#include "kernels/batch_norm_attrs_op.h"
#include "kernels/batch_norm_shapes.h"
#include "kernels/cpu_op.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

// What the two kernels have in common: attributes, sizes and member, all checked.
template <typename T>
class BatchNormOpBase : public OpKernel {
 public:
  explicit BatchNormOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetBatchNormAttrs(ctx, type_string(), &attrs_));
    OP_REQUIRES(
        ctx, !attrs_.channels_first,
        absl::InvalidArgumentError(absl::StrCat(
            type_string(), ": `data_format` must be NHWC on the CPU. Received: data_format=NCHW")));
  }

 protected:
  using Scalar = typename ComputeArrays<T>::Scalar;

  struct Call {
    BatchNormShape shape;
    int64_t K = 0, row = 0;  // members, and where the member's row of a [K,C] array starts
  };

  template <typename Rules>
  absl::Status Prepare(OpKernelContext* ctx, const Rules& rules, Call* call) const {
    ShapeMatcher sizes(type_string());
    if (absl::Status status = CheckInputs(ctx, rules, &sizes); !status.ok()) return status;
    const int64_t C = sizes["channels"];
    call->shape = {C == 0 ? 0 : ctx->input(0).NumElements() / C, C};
    call->K = sizes["K"];
    int32_t member = 0;
    absl::Status status = GetMember(ctx, type_string(), "scale", call->K, &member);
    call->row = member * C;
    return status;
  }

  BatchNormActivation activation() const {
    return attrs_.relu ? BatchNormActivation::kRelu : BatchNormActivation::kIdentity;
  }

  BatchNormAttrs attrs_;
};

template <typename T>
class BatchNormOp : public BatchNormOpBase<T> {
 public:
  explicit BatchNormOp(OpKernelConstruction* ctx) : BatchNormOpBase<T>(ctx) {
    if (!ctx->status().ok()) return;
    OP_REQUIRES_OK(ctx, GetBatchNormStatisticsAttrs(ctx, this->type_string(), &statistics_));
  }

  void Compute(OpKernelContext* ctx) override {
    typename Base::Call call;
    OP_REQUIRES_OK(ctx, this->Prepare(ctx, BatchNormInputs(this->attrs_.channels_first), &call));
    const int64_t C = call.shape.C;
    const Parallel threads = IntraOpThreads(ctx);
    ComputeArrays<T> rows(ctx);
    ComputeArrays<Scalar> a(ctx);
    ComputeArrays<double> sums(ctx);
    BatchNormForwardArgs<Scalar> args;
    args.shape = call.shape;
    args.is_training = this->attrs_.is_training;
    args.activation = this->activation();
    args.epsilon = statistics_.epsilon;
    args.momentum = statistics_.momentum;
    args.x = rows.Input("x");
    args.scale = a.Input("scale");
    args.offset = a.Input("offset");
    args.mean = a.Input("mean");
    args.variance = a.Input("variance");
    args.y = rows.OutputOver("x", "y");
    args.running_mean = a.Output("running_mean", {C});
    args.running_variance = a.Output("running_variance", {C});
    args.saved = {a.Output("saved_mean", {C}), a.Output("saved_mean_rest", {C}),
                  a.Output("saved_inv_std", {C})};
    args.sums = sums.Scratch(BatchNormSums(args.shape, threads));
    args.coefficients = a.Scratch(BatchNormCoefficients(args.shape));
    OP_REQUIRES_OK(ctx, rows.status());
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, sums.status());
    args.scale += call.row;
    args.offset += call.row;
    args.mean += call.row;
    args.variance += call.row;
    BatchNormForwardCpu(args, threads);
    rows.Finish();
  }

 private:
  using Base = BatchNormOpBase<T>;
  using Scalar = typename Base::Scalar;

  BatchNormStatisticsAttrs statistics_;
};

template <typename T>
class BatchNormGradOp : public BatchNormOpBase<T> {
 public:
  explicit BatchNormGradOp(OpKernelConstruction* ctx) : BatchNormOpBase<T>(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    typename Base::Call call;
    OP_REQUIRES_OK(
        ctx,
        this->Prepare(ctx, BatchNormGradInputs(ctx->input(0).dims(), this->attrs_.channels_first),
                      &call));
    const int64_t K = call.K, C = call.shape.C;
    const Parallel threads = IntraOpThreads(ctx);
    ComputeArrays<T> rows(ctx);
    ComputeArrays<Scalar> a(ctx);
    ComputeArrays<double> sums(ctx);
    BatchNormBackwardArgs<Scalar> args;
    args.shape = call.shape;
    args.is_training = this->attrs_.is_training;
    args.activation = this->activation();
    args.x = rows.Input("x");
    args.scale = a.Input("scale");
    args.offset = a.Input("offset");
    args.saved = {a.Input("saved_mean"), a.Input("saved_mean_rest"), a.Input("saved_inv_std")};
    args.dy = rows.Input("dy");
    args.dx = rows.OutputOver("dy", "dx");
    args.dscale = a.Output("dscale", {K, C});
    args.doffset = a.Output("doffset", {K, C});
    args.sums = sums.Scratch(BatchNormSums(args.shape, threads));
    args.coefficients = a.Scratch(BatchNormCoefficients(args.shape));
    OP_REQUIRES_OK(ctx, rows.status());
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, sums.status());
    // The other members' rows have no part in this minibatch.
    std::fill_n(args.dscale, K * C, Scalar(0));
    std::fill_n(args.doffset, K * C, Scalar(0));
    args.scale += call.row;
    args.offset += call.row;
    args.dscale += call.row;
    args.doffset += call.row;
    BatchNormBackwardCpu(args, threads);
    rows.Finish();
  }

 private:
  using Base = BatchNormOpBase<T>;
  using Scalar = typename Base::Scalar;
};

// U is left open: the kernels say what is wrong with it, TensorFlow would only miss a kernel.
#define REGISTER_CPU(T)                                                                      \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name("LatePhase>BatchNorm").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),     \
      BatchNormOp<T>);                                                                       \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name("LatePhase>BatchNormGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      BatchNormGradOp<T>)
REGISTER_CPU(float);
REGISTER_CPU(double);
REGISTER_CPU(Eigen::half);
REGISTER_CPU(Eigen::bfloat16);
#undef REGISTER_CPU

}  // namespace
}  // namespace late_phase

// OpKernels of the batch normalisation family: check, allocate, call the core.
#include "kernels/batch_norm.h"
#include "kernels/batch_norm_shapes.h"
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/batch_norm_attrs.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

int64_t Sums(const Cpu& cpu, const BatchNormShape& shape) {
  return BatchNormSums(shape, cpu.threads());
}
int64_t Sums(const Gpu&, const BatchNormShape& shape) { return BatchNormSumsGpu(shape); }

template <typename T>
absl::Status Forward(const Cpu& cpu, const BatchNormForwardArgs<T>& args) {
  BatchNormForwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Forward(const Gpu& gpu, const BatchNormForwardArgs<T>& args) {
  return gpu.ToStatus(BatchNormForwardGpu(args, gpu.stream()));
}

template <typename T>
absl::Status Backward(const Cpu& cpu, const BatchNormBackwardArgs<T>& args) {
  BatchNormBackwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Backward(const Gpu& gpu, const BatchNormBackwardArgs<T>& args) {
  return gpu.ToStatus(BatchNormBackwardGpu(args, gpu.stream()));
}

// What the two kernels have in common: attributes, sizes and member, all checked.
template <class Device, typename T>
class BatchNormOpBase : public OpKernel {
 public:
  explicit BatchNormOpBase(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_VALUE(attrs_, ctx, GetBatchNormAttrs(ctx, type_string()));
    OP_REQUIRES(
        ctx, !attrs_.channels_first || (!std::is_same_v<Device, Cpu>),
        absl::InvalidArgumentError(absl::StrCat(
            type_string(), ": `data_format` must be NHWC on the CPU. Received: data_format=NCHW")));
  }

 protected:
  using Scalar = ComputeType<T>;
  using Stored = typename Device::template Stored<T>;

  struct Call {
    BatchNormShape shape;
    int64_t K = 0, row = 0;  // members, and where the member's row of a [K,C] array starts
  };

  [[nodiscard]] absl::StatusOr<Call> Prepare(OpKernelContext* ctx,
                                             absl::Span<const ShapeRule> rules) const {
    TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, CheckInputs(ctx, type_string(), rules));
    const int64_t K = sizes["K"], C = sizes["channels"];
    const tensorflow::Tensor& x = ctx->input(0);
    Call call{{C == 0 ? 0 : x.NumElements() / C, C}, K};
    if (attrs_.channels_first && x.dims() == 4) {
      call.shape.plane = std::max<int64_t>(1, x.dim_size(2) * x.dim_size(3));
    }
    TF_ASSIGN_OR_RETURN(const int32_t member, GetMember(ctx, type_string(), "scale", K));
    call.row = member * C;
    return call;
  }

  BatchNormActivation activation() const {
    return attrs_.relu ? BatchNormActivation::kRelu : BatchNormActivation::kIdentity;
  }

  BatchNormAttrs attrs_;
};

template <class Device, typename T>
class BatchNormOp : public BatchNormOpBase<Device, T> {
 public:
  explicit BatchNormOp(OpKernelConstruction* ctx) : Base(ctx) {
    if (!ctx->status().ok()) return;
    OP_REQUIRES_VALUE(statistics_, ctx, GetBatchNormStatisticsAttrs(ctx, this->type_string()));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const auto call, ctx,
                      this->Prepare(ctx, BatchNormInputs(this->attrs_.channels_first)));
    const int64_t C = call.shape.C;
    const Device device(ctx);
    StoredArrays<Device, T> rows(ctx, device);
    WideArrays<Device, Scalar> a(ctx, device);
    WideArrays<Device, double> sums(ctx, device);
    BatchNormForwardArgs<typename Base::Stored> args;
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
    args.sums = sums.Scratch(Sums(device, args.shape));
    args.coefficients = a.Scratch(BatchNormCoefficients(args.shape));
    OP_REQUIRES_OK(ctx, rows.status());
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, sums.status());
    args.scale += call.row;
    args.offset += call.row;
    args.mean += call.row;
    args.variance += call.row;
    OP_REQUIRES_OK(ctx, Forward(device, args));
    OP_REQUIRES_OK(ctx, rows.Finish());
  }

 private:
  using Base = BatchNormOpBase<Device, T>;
  using Scalar = typename Base::Scalar;

  BatchNormStatisticsAttrs statistics_;
};

template <class Device, typename T>
class BatchNormGradOp : public BatchNormOpBase<Device, T> {
 public:
  explicit BatchNormGradOp(OpKernelConstruction* ctx) : Base(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(
        const auto call, ctx,
        this->Prepare(ctx, BatchNormGradInputs(ctx->input(0).dims(), this->attrs_.channels_first)));
    const int64_t K = call.K, C = call.shape.C;
    const Device device(ctx);
    StoredArrays<Device, T> rows(ctx, device);
    WideArrays<Device, Scalar> a(ctx, device);
    WideArrays<Device, double> sums(ctx, device);
    BatchNormBackwardArgs<typename Base::Stored> args;
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
    args.sums = sums.Scratch(Sums(device, args.shape));
    args.coefficients = a.Scratch(BatchNormCoefficients(args.shape));
    OP_REQUIRES_OK(ctx, rows.status());
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, sums.status());
    // The other members' rows take no part in this minibatch.
    OP_REQUIRES_OK(ctx, device.Zero(K * C * sizeof(Scalar), args.dscale));
    OP_REQUIRES_OK(ctx, device.Zero(K * C * sizeof(Scalar), args.doffset));
    args.scale += call.row;
    args.offset += call.row;
    args.dscale += call.row;
    args.doffset += call.row;
    OP_REQUIRES_OK(ctx, Backward(device, args));
    OP_REQUIRES_OK(ctx, rows.Finish());
  }

 private:
  using Base = BatchNormOpBase<Device, T>;
  using Scalar = typename Base::Scalar;
};

// U is left open: the kernels say what is wrong with it; TensorFlow would only report a missing
// kernel.
#define REGISTER_TYPE(DEVICE, T)                          \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>BatchNorm")     \
                              .Device(DEVICE::kType)      \
                              .TypeConstraint<T>("T")     \
                              .HostMemory("member"),      \
                          BatchNormOp<DEVICE, T>);        \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>BatchNormGrad") \
                              .Device(DEVICE::kType)      \
                              .TypeConstraint<T>("T")     \
                              .HostMemory("member"),      \
                          BatchNormGradOp<DEVICE, T>)
LATE_PHASE_FOR_ALL_TYPES(REGISTER_TYPE);
#undef REGISTER_TYPE

}  // namespace
}  // namespace late_phase

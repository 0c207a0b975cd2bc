// OpKernels of the softmax cross-entropy family: check, allocate, call the core.
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/softmax_cross_entropy.h"
#include "kernels/softmax_cross_entropy_shapes.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

int64_t ForwardWorkspace(const Cpu& cpu, const SoftmaxCrossEntropyShape& shape) {
  return SoftmaxCrossEntropyForwardWorkspace(shape, cpu.threads());
}
int64_t ForwardWorkspace(const Gpu&, const SoftmaxCrossEntropyShape& shape) {
  return SoftmaxCrossEntropyForwardWorkspaceGpu(shape);
}
int64_t BackwardWorkspace(const Cpu& cpu, const SoftmaxCrossEntropyShape& shape) {
  return SoftmaxCrossEntropyBackwardWorkspace(shape, cpu.threads());
}
int64_t BackwardWorkspace(const Gpu&, const SoftmaxCrossEntropyShape& shape) {
  return SoftmaxCrossEntropyBackwardWorkspaceGpu(shape);
}

template <typename Scalar>
absl::Status Forward(const Cpu& cpu, const SoftmaxCrossEntropyForwardArgs<Scalar>& args) {
  SoftmaxCrossEntropyForwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename Scalar>
absl::Status Forward(const Gpu& gpu, const SoftmaxCrossEntropyForwardArgs<Scalar>& args) {
  return gpu.ToStatus(SoftmaxCrossEntropyForwardGpu(args, gpu.stream(), gpu.matmul()));
}

template <typename Scalar>
absl::Status Backward(const Cpu& cpu, const SoftmaxCrossEntropyBackwardArgs<Scalar>& args) {
  SoftmaxCrossEntropyBackwardCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename Scalar>
absl::Status Backward(const Gpu& gpu, const SoftmaxCrossEntropyBackwardArgs<Scalar>& args) {
  return gpu.ToStatus(SoftmaxCrossEntropyBackwardGpu(args, gpu.stream(), gpu.matmul()));
}

template <class Device, typename T>
class SoftmaxCrossEntropyOp : public OpKernel {
 public:
  explicit SoftmaxCrossEntropyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const ShapeMatcher sizes, ctx,
                      CheckInputs(ctx, type_string(), kSoftmaxCrossEntropyInputs));
    const int64_t n = sizes["n"], units = sizes["units"], vocab = sizes["vocab"];
    SoftmaxCrossEntropyForwardArgs<ComputeType<T>> args;
    args.shape = {n, units, vocab};
    const Device device(ctx);
    OP_REQUIRES_OK(ctx,
                   device.CheckIndices(type_string(), "labels", vocab, "the columns of `kernel`"));
    args.labels = ctx->input(3).template flat<int32_t>().data();
    WideArrays<Device, T> a(ctx, device);
    args.features = a.Input("features");
    args.kernel = a.Input("kernel");
    args.bias = a.Input("bias");
    args.loss = a.Output("loss", {n});
    args.dlogits = a.Output("dlogits", {n, vocab});
    args.workspace = a.Scratch(ForwardWorkspace(device, args.shape));
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, Forward(device, args));
    OP_REQUIRES_OK(ctx, a.Finish());
  }
};

template <class Device, typename T>
class SoftmaxCrossEntropyGradOp : public OpKernel {
 public:
  explicit SoftmaxCrossEntropyGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const ShapeMatcher sizes, ctx,
                      CheckInputs(ctx, type_string(), kSoftmaxCrossEntropyGradInputs));
    const int64_t n = sizes["n"], units = sizes["units"], vocab = sizes["vocab"];
    const Device device(ctx);
    WideArrays<Device, T> a(ctx, device);
    SoftmaxCrossEntropyBackwardArgs<ComputeType<T>> args;
    args.shape = {n, units, vocab};
    args.features = a.Input("features");
    args.kernel = a.Input("kernel");
    args.dlogits = a.Input("dlogits");
    args.dloss = a.Input("dloss");
    args.dfeatures = a.Output("dfeatures", {n, units});
    args.dkernel = a.Output("dkernel", {units, vocab});
    args.dbias = a.Output("dbias", {vocab});
    // With empty inputs `vocab` may be anything; an output of that size shows that it is not too
    // large.
    OP_REQUIRES_OK(ctx, a.status());
    args.workspace = a.Scratch(BackwardWorkspace(device, args.shape));
    OP_REQUIRES_OK(ctx, a.status());
    OP_REQUIRES_OK(ctx, Backward(device, args));
    OP_REQUIRES_OK(ctx, a.Finish());
  }
};

#define REGISTER_TYPE(DEVICE, T)                                                              \
  REGISTER_KERNEL_BUILDER(                                                                    \
      Name("LatePhase>SoftmaxCrossEntropy").Device(DEVICE::kType).TypeConstraint<T>("T"),     \
      SoftmaxCrossEntropyOp<DEVICE, T>);                                                      \
  REGISTER_KERNEL_BUILDER(                                                                    \
      Name("LatePhase>SoftmaxCrossEntropyGrad").Device(DEVICE::kType).TypeConstraint<T>("T"), \
      SoftmaxCrossEntropyGradOp<DEVICE, T>)
LATE_PHASE_FOR_ALL_TYPES(REGISTER_TYPE);
#undef REGISTER_TYPE

}  // namespace
}  // namespace late_phase

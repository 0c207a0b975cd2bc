// CPU OpKernels of the softmax cross-entropy family: check, allocate, call the core.
#define EIGEN_USE_THREADS
#include "kernels/cpu_op.h"
#include "kernels/softmax_cross_entropy.h"
#include "kernels/softmax_cross_entropy_shapes.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

template <typename T>
class SoftmaxCrossEntropyOp : public OpKernel {
 public:
  explicit SoftmaxCrossEntropyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    ShapeMatcher sizes(type_string());
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, kSoftmaxCrossEntropyInputs, &sizes));
    const int64_t n = sizes["n"], units = sizes["units"], vocab = sizes["vocab"];
    SoftmaxCrossEntropyForwardArgs<typename ComputeArrays<T>::Scalar> args;
    args.shape = {n, units, vocab};
    OP_REQUIRES_OK(ctx, GetIndices(ctx, type_string(), "labels", vocab, "the columns of `kernel`",
                                   &args.labels));
    const Parallel threads = IntraOpThreads(ctx);
    ComputeArrays<T> a(ctx);
    args.features = a.Input("features");
    args.kernel = a.Input("kernel");
    args.bias = a.Input("bias");
    args.loss = a.Output("loss", {n});
    args.dlogits = a.Output("dlogits", {n, vocab});
    args.workspace = a.Scratch(SoftmaxCrossEntropyForwardWorkspace(args.shape, threads));
    OP_REQUIRES_OK(ctx, a.status());
    SoftmaxCrossEntropyForwardCpu(args, threads);
    a.Finish();
  }
};

template <typename T>
class SoftmaxCrossEntropyGradOp : public OpKernel {
 public:
  explicit SoftmaxCrossEntropyGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(OpKernelContext* ctx) override {
    ShapeMatcher sizes(type_string());
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, kSoftmaxCrossEntropyGradInputs, &sizes));
    const int64_t n = sizes["n"], units = sizes["units"], vocab = sizes["vocab"];
    const Parallel threads = IntraOpThreads(ctx);
    ComputeArrays<T> a(ctx);
    SoftmaxCrossEntropyBackwardArgs<typename ComputeArrays<T>::Scalar> args;
    args.shape = {n, units, vocab};
    args.features = a.Input("features");
    args.kernel = a.Input("kernel");
    args.dlogits = a.Input("dlogits");
    args.dloss = a.Input("dloss");
    args.dfeatures = a.Output("dfeatures", {n, units});
    args.dkernel = a.Output("dkernel", {units, vocab});
    args.dbias = a.Output("dbias", {vocab});
    // Of empty inputs `vocab` may be anything; with an output of that size it can be computed with.
    OP_REQUIRES_OK(ctx, a.status());
    args.workspace = a.Scratch(SoftmaxCrossEntropyBackwardWorkspace(args.shape, threads));
    OP_REQUIRES_OK(ctx, a.status());
    SoftmaxCrossEntropyBackwardCpu(args, threads);
    a.Finish();
  }
};

#define REGISTER_CPU(T)                                                                            \
  REGISTER_KERNEL_BUILDER(                                                                         \
      Name("LatePhase>SoftmaxCrossEntropy").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      SoftmaxCrossEntropyOp<T>);                                                                   \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>SoftmaxCrossEntropyGrad")                                \
                              .Device(tensorflow::DEVICE_CPU)                                      \
                              .TypeConstraint<T>("T"),                                             \
                          SoftmaxCrossEntropyGradOp<T>)
REGISTER_CPU(float);
REGISTER_CPU(double);
REGISTER_CPU(Eigen::half);
REGISTER_CPU(Eigen::bfloat16);
#undef REGISTER_CPU

}  // namespace
}  // namespace late_phase

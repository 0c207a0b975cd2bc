// Signatures and shape functions of the softmax cross-entropy family. What the ops compute:
// kernels/softmax_cross_entropy.h and docs/ops.md.
#include "kernels/softmax_cross_entropy_shapes.h"
#include "ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"

namespace late_phase {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("LatePhase>SoftmaxCrossEntropy")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("features: T")    // [n, units]
    .Input("kernel: T")      // [units, vocab]
    .Input("bias: T")        // [vocab]
    .Input("labels: int32")  // [n]
    .Output("loss: T")       // [n]
    .Output("dlogits: T")    // [n, vocab], for the gradient
    .SetShapeFn([](InferenceContext* c) {
      return InferFromRules(c, "LatePhase>SoftmaxCrossEntropy", kSoftmaxCrossEntropyInputs,
                            kSoftmaxCrossEntropyOutputs);
    });

REGISTER_OP("LatePhase>SoftmaxCrossEntropyGrad")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("features: T")    // [n, units]
    .Input("kernel: T")      // [units, vocab]
    .Input("dlogits: T")     // [n, vocab], an output of the forward op
    .Input("dloss: T")       // [n]
    .Output("dfeatures: T")  // [n, units]
    .Output("dkernel: T")    // [units, vocab]
    .Output("dbias: T")      // [vocab]
    .SetShapeFn([](InferenceContext* c) {
      return InferFromRules(c, "LatePhase>SoftmaxCrossEntropyGrad", kSoftmaxCrossEntropyGradInputs,
                            kSoftmaxCrossEntropyGradOutputs);
    });

}  // namespace
}  // namespace late_phase

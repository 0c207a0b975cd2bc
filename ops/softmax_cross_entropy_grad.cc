// C++ gradient function of the softmax cross-entropy: it only calls the Grad op. The Python one:
// python/late_phase/gradients.py.
#include "ops/add_node.h"
#include "ops/no_second_order.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"

namespace late_phase {
namespace {

using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Scope;

absl::Status SoftmaxCrossEntropyGrad(const Scope& scope, const Operation& op,
                                     const std::vector<Output>& grad_inputs,
                                     std::vector<Output>* grad_outputs) {
  // features, kernel, dlogits and the gradient of the loss.
  const Operation grad =
      AddNode(scope, "LatePhase>SoftmaxCrossEntropyGrad", "SoftmaxCrossEntropyGrad",
              {op.input(0), op.input(1), op.output(1), grad_inputs[0]});
  for (int i = 0; i < 3; ++i) grad_outputs->push_back(GetOutput(grad, i));
  grad_outputs->push_back(tensorflow::NoGradient());  // labels
  return scope.status();
}
REGISTER_GRADIENT_OP("LatePhase>SoftmaxCrossEntropy", SoftmaxCrossEntropyGrad);
REGISTER_GRADIENT_OP("LatePhase>SoftmaxCrossEntropyGrad", NoSecondOrder);

}  // namespace
}  // namespace late_phase

#include "ops/softmax_cross_entropy.h"

#include "ops/add_node.h"

namespace late_phase {
namespace ops {

SoftmaxCrossEntropy::SoftmaxCrossEntropy(const tensorflow::Scope& scope, tensorflow::Input features,
                                         tensorflow::Input kernel, tensorflow::Input bias,
                                         tensorflow::Input labels)
    : operation(AddNode(scope, "LatePhase>SoftmaxCrossEntropy", "SoftmaxCrossEntropy",
                        {features, kernel, bias, labels})),
      loss(GetOutput(operation, 0)),
      dlogits(GetOutput(operation, 1)) {}

}  // namespace ops
}  // namespace late_phase

#include "ops/softmax_cross_entropy.h"

#include "ops/add_op.h"

namespace late_phase {
namespace ops {

SoftmaxCrossEntropy::SoftmaxCrossEntropy(const tensorflow::Scope& scope, tensorflow::Input features,
                                         tensorflow::Input kernel, tensorflow::Input bias,
                                         tensorflow::Input labels)
    : operation(AddOp(scope, "LatePhase>SoftmaxCrossEntropy", "SoftmaxCrossEntropy",
                      {features, kernel, bias, labels})),
      loss(OutputOf(operation, 0)),
      dlogits(OutputOf(operation, 1)) {}

}  // namespace ops
}  // namespace late_phase

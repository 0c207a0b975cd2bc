// C++ graph wrapper of the softmax cross-entropy op, in the style of TensorFlow's own.
//
//   late_phase::ops::SoftmaxCrossEntropy head(scope, features, kernel, bias, labels);
//   auto loss = Mean(scope, head.loss, {0});
//
// Shapes and meaning: docs/ops.md. Errors end in the scope's status. AddSymbolicGradients works
// through all inputs but `labels`.
#ifndef LATE_PHASE_OPS_SOFTMAX_CROSS_ENTROPY_H_
#define LATE_PHASE_OPS_SOFTMAX_CROSS_ENTROPY_H_

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {
namespace ops {

struct SoftmaxCrossEntropy {
  SoftmaxCrossEntropy(const tensorflow::Scope& scope, tensorflow::Input features,
                      tensorflow::Input kernel, tensorflow::Input bias, tensorflow::Input labels);

  tensorflow::Operation operation;
  tensorflow::Output loss;     // [n]
  tensorflow::Output dlogits;  // for the gradient
};

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_SOFTMAX_CROSS_ENTROPY_H_

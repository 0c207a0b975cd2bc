// C++ graph wrapper of the batch normalisation op, in the style of TensorFlow's own.
//
//   late_phase::ops::BatchNorm norm(scope, x, scale, offset, mean, variance, member);
//
// The op writes no variable: norm.running_mean and norm.running_variance are to be stored in row
// `member` of the variables behind `mean` and `variance`.
//
// Shapes and meaning: docs/ops.md. Errors end in the scope's status. AddSymbolicGradients works
// through `x`, `scale` and `offset`, from `y`; the running statistics are constants to it.
#ifndef LATE_PHASE_OPS_BATCH_NORM_H_
#define LATE_PHASE_OPS_BATCH_NORM_H_

#include <string>

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {
namespace ops {

struct BatchNormAttrs {
  float epsilon = 1e-5f;
  float momentum = 0.1f;  // the share of this batch in the running statistics
  bool is_training = true;
  std::string activation = "Identity";  // or "Relu"
  std::string data_format = "NHWC";     // or "NCHW", on a GPU
};

struct BatchNorm {
  using Attrs = BatchNormAttrs;
  BatchNorm(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
            tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
            tensorflow::Input member, const Attrs& attrs = Attrs());

  tensorflow::Operation operation;
  tensorflow::Output y;                                           // of the shape of x
  tensorflow::Output running_mean;                                // [channels]
  tensorflow::Output running_variance;                            // [channels]
  tensorflow::Output saved_mean, saved_mean_rest, saved_inv_std;  // for the gradient
};

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_BATCH_NORM_H_

// C++ graph wrappers of the rank-1 LSTM ops, in the style of TensorFlow's own: construct one, use
// its outputs.
//
//   late_phase::ops::Rank1Lstm lstm(scope, x, initial_h, initial_c, kernel, recurrent_kernel, bias,
//   u, v, member); auto loss = Mean(scope, lstm.h, {0, 1, 2});
//
// Shapes and meaning: docs/ops.md. Errors end in the scope's status. AddSymbolicGradients works
// through all inputs but `member` and `tokens`.
#ifndef LATE_PHASE_OPS_RANK1_LSTM_H_
#define LATE_PHASE_OPS_RANK1_LSTM_H_

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {
namespace ops {

struct Rank1LstmAttrs {
  // false: saves nothing for the gradient and is faster; asking for a gradient is then an error.
  bool is_training = true;
};

struct Rank1Lstm {
  using Attrs = Rank1LstmAttrs;
  Rank1Lstm(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input initial_h,
            tensorflow::Input initial_c, tensorflow::Input kernel,
            tensorflow::Input recurrent_kernel, tensorflow::Input bias, tensorflow::Input u,
            tensorflow::Input v, tensorflow::Input member, const Attrs& attrs = Attrs());

  tensorflow::Operation operation;
  tensorflow::Output h;             // [time, batch, units]
  tensorflow::Output final_h;       // [batch, units]
  tensorflow::Output final_c;       // [batch, units]
  tensorflow::Output gates, cells;  // for the gradient
};

struct Rank1LstmTokens {
  using Attrs = Rank1LstmAttrs;
  Rank1LstmTokens(const tensorflow::Scope& scope, tensorflow::Input tokens, tensorflow::Input table,
                  tensorflow::Input initial_h, tensorflow::Input initial_c,
                  tensorflow::Input recurrent_kernel, tensorflow::Input u, tensorflow::Input v,
                  tensorflow::Input member, const Attrs& attrs = Attrs());

  tensorflow::Operation operation;
  tensorflow::Output h;             // [time, batch, units]
  tensorflow::Output final_h;       // [batch, units]
  tensorflow::Output final_c;       // [batch, units]
  tensorflow::Output gates, cells;  // for the gradient
};

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_RANK1_LSTM_H_

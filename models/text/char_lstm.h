// The character model of the paper's enwik8 experiment as a C++ graph: embedding, one LSTM with
// rank-1 factors on its recurrent matrix, softmax layer.
//
//   z_t = E[x_t] W + b + ((h_{t−1} ∘ u) R) ∘ v,   p(x_{t+1}) = softmax(h_t S + s)
//
// Or with factors on the whole kernel [W; R]: ((E[x_t] ∘ u_input) W) ∘ v in place of E[x_t] W.
//
// A builder: it knows weights and tensors, nothing about training or data. The embedding is never
// looked up: E·W + b is one small product per call, whose rows the LSTM looks up.
#ifndef LATE_PHASE_MODELS_TEXT_CHAR_LSTM_H_
#define LATE_PHASE_MODELS_TEXT_CHAR_LSTM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace late_phase {

struct CharLstmOptions {
  int64_t vocabulary = 205;
  int64_t embedding = 205;
  int64_t units = 500;
  bool rank1 = true;  // whether the factors are weights; otherwise they are 1, the plain LSTM
  bool whole_kernel = false;  // whether they scale [W; R] instead of R
};

struct CharLstmWeight {
  std::string name;
  tensorflow::TensorShape shape;  // of a late-phase weight: of one member
  bool late_phase;                // a factor: u, v, u_input
  double low, high;               // initial values are uniform in [low, high)
};

// The weights to declare, in a fixed order; the factors come last, so that the others do not depend
// on whether they exist.
std::vector<CharLstmWeight> CharLstmWeights(const CharLstmOptions& options);

// Trainable numbers of the network, with one member.
int64_t CharLstmParameters(const CharLstmOptions& options);

struct CharLstm {
  // `weights` by name; the factors as stacks [K, …] of which row `member` is used, those of the
  // whole kernel as the member's row.
  // tokens, labels int32 [time, batch]; initial_h, initial_c [batch, units].
  CharLstm(const tensorflow::Scope& scope, const CharLstmOptions& options,
           const std::map<std::string, tensorflow::Output>& weights, tensorflow::Input member,
           tensorflow::Output tokens, tensorflow::Output labels, tensorflow::Output initial_h,
           tensorflow::Output initial_c, bool is_training);

  tensorflow::Output losses;            // [time·batch], −ln p(label)
  tensorflow::Output final_h, final_c;  // [batch, units]
  tensorflow::Output logits;            // [time·batch, vocabulary]; inference only
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TEXT_CHAR_LSTM_H_

#include "models/text/char_lstm.h"

#include "ops/rank1_lstm.h"
#include "ops/softmax_cross_entropy.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

std::vector<CharLstmWeight> CharLstmWeights(const CharLstmOptions& options) {
  const int64_t V = options.vocabulary, E = options.embedding, H = options.units;
  const double low = -0.01, high = 0.01;
  std::vector<CharLstmWeight> weights = {
      {"embedding", {V, E}, false, low, high},
      {"kernel", {E, 4 * H}, false, low, high},
      {"recurrent_kernel", {H, 4 * H}, false, low, high},
      {"bias", {4 * H}, false, low, high},
      {"softmax_kernel", {H, V}, false, low, high},
      {"softmax_bias", {V}, false, low, high},
  };
  if (options.rank1) {
    weights.push_back({"u", {H}, true, 0.99, 1.01});
    weights.push_back({"v", {4 * H}, true, 0.99, 1.01});
    if (options.whole_kernel) weights.push_back({"u_input", {E}, true, 0.99, 1.01});
  }
  return weights;
}

int64_t CharLstmParameters(const CharLstmOptions& options) {
  int64_t count = 0;
  for (const CharLstmWeight& weight : CharLstmWeights(options))
    count += weight.shape.num_elements();
  return count;
}

CharLstm::CharLstm(const tensorflow::Scope& scope, const CharLstmOptions& options,
                   const std::map<std::string, Output>& weights, tensorflow::Input member,
                   Output tokens, Output labels, Output initial_h, Output initial_c,
                   bool is_training) {
  const int32_t H = static_cast<int32_t>(options.units);
  const bool whole = options.rank1 && options.whole_kernel;
  auto factor = [&](const char* name, int32_t size) -> Output {
    if (whole) return tf_ops::ExpandDims(scope, weights.at(name), 0);
    if (options.rank1) return weights.at(name);
    return tf_ops::Fill(scope, {1, size},
                        tf_ops::Cast(scope, tf_ops::Const(scope, 1.0f), initial_h.type()));
  };
  Output embedding = weights.at("embedding");
  if (whole) embedding = tf_ops::Mul(scope, embedding, weights.at("u_input"));
  Output input = tf_ops::MatMul(scope, embedding, weights.at("kernel"));
  if (whole) input = tf_ops::Mul(scope, input, weights.at("v"));
  const auto table = tf_ops::Add(scope, input, weights.at("bias"));  // [vocabulary, 4·units]
  const ops::Rank1LstmTokens lstm(
      scope, tokens, table, initial_h, initial_c, weights.at("recurrent_kernel"), factor("u", H),
      factor("v", 4 * H), options.rank1 && !whole ? member : tensorflow::Input(0), {is_training});
  const auto features = tf_ops::Reshape(scope, lstm.h, {-1, H});  // [time·batch, units]
  losses =
      ops::SoftmaxCrossEntropy(scope, features, weights.at("softmax_kernel"),
                               weights.at("softmax_bias"), tf_ops::Reshape(scope, labels, {-1}))
          .loss;
  final_h = lstm.final_h;
  final_c = lstm.final_c;
  if (!is_training) {
    logits = tf_ops::Add(scope, tf_ops::MatMul(scope, features, weights.at("softmax_kernel")),
                         weights.at("softmax_bias"));
  }
}

}  // namespace late_phase

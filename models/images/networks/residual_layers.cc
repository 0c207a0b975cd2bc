#include "models/images/networks/residual_layers.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/images/networks/random_layers.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

int64_t BlocksPerGroup(const tensorflow::Scope& scope, int64_t depth, int64_t layers,
                       int64_t others, const char* depths) {
  const int64_t blocks = (depth - others) / layers;
  if (blocks >= 1 && layers * blocks + others == depth) return blocks;
  scope.UpdateStatus(absl::InvalidArgumentError(
      absl::StrCat("`depth` must be ", depths, ": ", layers, " times the blocks per group, plus ",
                   others, ". Received: depth=", depth)));
  return 0;
}

Output ResidualLayers::Convolution(const std::string& name, Output x, int64_t input, int64_t output,
                                   int kernel, int stride) {
  const bool padded = kernel > 1 && stride > 1;
  if (padded) kept_ += 1.0 * (side_ + 2) * (side_ + 2) * input;
  if (stride == 2) side_ = (side_ + 1) / 2;
  Keep(output);
  return weights_->Linear(
      name, x, {kernel, kernel, input, output}, /*bias=*/false,
      [&](Output entry, Output weight) -> Output {
        if (!padded) {
          return tf_ops::Conv2D(scope_, entry, weight, {1, stride, stride, 1}, "SAME");
        }
        // "SAME" would pad two sides only; the published networks pad all four. Convolutions with
        // explicit padding have no gradient in C++ graphs, so the padding is an op of its own.
        entry = tf_ops::Pad(scope_, entry, {{0, 0}, {1, 1}, {1, 1}, {0, 0}});
        return tf_ops::Conv2D(scope_, entry, weight, {1, stride, stride, 1}, "VALID");
      });
}

Output ResidualLayers::BatchNorm(const std::string& name, Output x, int64_t channels,
                                 Activation activation) {
  Keep(channels);
  return weights_->BatchNorm(name, x, channels, activation);
}

Output ResidualLayers::Dropout(Output x, int64_t channels) {
  if (dropout_ > 0) Keep(2 * channels);  // what is left, and what it was multiplied by
  return late_phase::Dropout(scope_, x, dropout_, weights_);
}

ImageNetwork ResidualLayers::Network(Output x, int64_t channels, int64_t classes) {
  if (!scope_.ok()) return {};
  const LastLayer last = weights_->Head("head", tf_ops::Mean(scope_, x, {1, 2}), channels, classes);
  return {last.features, last.kernel, last.bias, kept_};
}

}  // namespace late_phase

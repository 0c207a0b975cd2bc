#include "models/images/networks/pyramid_net.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/images/networks/random_layers.h"
#include "models/images/networks/residual_layers.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

namespace {

constexpr int64_t kFirst = 16;     // channels of the first convolution
constexpr int64_t kExpansion = 4;  // outputs of a block per channel of its 3×3 convolution

// x at the resolution and with the channels of a block's output.
Output Shortcut(const tensorflow::Scope& scope, Output x, int64_t input, int64_t output,
                int stride) {
  if (!scope.ok()) return Output();
  if (stride == 2) x = tf_ops::AvgPool(scope, x, {1, 2, 2, 1}, {1, 2, 2, 1}, "SAME");
  const int32_t more = static_cast<int32_t>(output - input);
  return more == 0 ? x : Output(tf_ops::Pad(scope, x, {{0, 0}, {0, 0}, {0, 0}, {0, more}}));
}

}  // namespace

ImageNetwork BuildPyramidNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                             Output images, NetworkWeights* weights) {
  const int64_t blocks = BlocksPerGroup(scope, options.depth, 9, 2, "11, 20, …, 272, …");
  if (blocks == 0) return {};
  ResidualLayers layers(scope, options, weights);
  int64_t channels = kFirst;
  Output x = layers.Convolution("conv0", images, 3, channels, 3, 1);
  x = layers.BatchNorm("bn0", x, channels, Activation::kIdentity);
  for (int64_t index = 0; index < 3 * blocks; ++index) {
    const int64_t group = index / blocks, block = index % blocks;
    const std::string name = absl::StrCat("group", group, "/block", block);
    const int stride = group > 0 && block == 0 ? 2 : 1;
    const double place = (index + 1.0) / (3 * blocks);  // 1 for the last block
    const int64_t width = std::llround(kFirst + options.alpha * place), output = kExpansion * width;
    Output y = layers.BatchNorm(name + "/bn0", x, channels, Activation::kIdentity);
    y = layers.Convolution(name + "/conv0", y, channels, width, 1, 1);
    y = layers.BatchNorm(name + "/bn1", y, width);
    y = layers.Convolution(name + "/conv1", y, width, width, 3, stride);
    y = layers.BatchNorm(name + "/bn2", y, width);
    y = layers.Convolution(name + "/conv2", y, width, output, 1, 1);
    y = layers.BatchNorm(name + "/bn3", y, output, Activation::kIdentity);
    y = ShakeDrop(scope, y, options.shakedrop * place, weights);
    x = Shortcut(scope, x, channels, output, stride);
    if (!scope.ok()) return {};
    x = tf_ops::AddV2(scope, y, x);
    channels = output;
  }
  return layers.Network(layers.BatchNorm("bn", x, channels), channels, options.classes);
}

}  // namespace late_phase

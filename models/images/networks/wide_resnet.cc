#include "models/images/networks/wide_resnet.h"

#include "absl/strings/str_cat.h"
#include "models/images/networks/residual_layers.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

ImageNetwork BuildWideResNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                             Output images, NetworkWeights* weights) {
  const int64_t blocks = BlocksPerGroup(scope, options.depth, 6, 4, "10, 16, 22, 28, …");
  if (blocks == 0) return {};
  ResidualLayers layers(scope, options, weights);
  int64_t channels = 16;
  Output x = layers.Convolution("conv0", images, 3, channels, 3, 1);
  for (int group = 0; group < 3; ++group) {
    const int64_t width = (int64_t{16} << group) * options.width;
    for (int64_t block = 0; block < blocks; ++block) {
      const std::string name = absl::StrCat("group", group, "/block", block);
      const int stride = group > 0 && block == 0 ? 2 : 1;
      const int64_t side = layers.side();
      const Output activated = layers.BatchNorm(name + "/bn0", x, channels);
      Output y = layers.Convolution(name + "/conv0", activated, channels, width, 3, stride);
      y = layers.Dropout(layers.BatchNorm(name + "/bn1", y, width), width);
      y = layers.Convolution(name + "/conv1", y, width, width, 3, 1);
      if (channels != width) {
        layers.set_side(side);
        x = layers.Convolution(name + "/shortcut", activated, channels, width, 1, stride);
      }
      if (!scope.ok()) return {};
      x = tf_ops::AddV2(scope, y, x);
      channels = width;
    }
  }
  return layers.Network(layers.BatchNorm("bn", x, channels), channels, options.classes);
}

}  // namespace late_phase

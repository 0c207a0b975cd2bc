#include "models/wide_resnet.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

namespace {

// Builds layers one after the other and counts what they keep.
class Layers {
 public:
  Layers(const tensorflow::Scope& scope, int64_t side, NetworkWeights* weights)
      : scope_(scope), side_(side), weights_(weights) {}

  // A convolution that keeps the resolution, or halves it with stride 2.
  Output Convolution(const std::string& name, Output x, int64_t input, int64_t output, int kernel,
                     int stride) {
    const Output weight = weights_->Weight(name + "/kernel", {kernel, kernel, input, output},
                                           kernel * kernel * input);
    if (stride == 2) side_ = (side_ + 1) / 2;
    Keep(output);
    if (kernel > 1 && stride > 1) {
      // "SAME" would pad two sides only; the published networks pad all four. Convolutions with
      // explicit padding have no gradient in C++ graphs, so the padding is an op of its own.
      x = tf_ops::Pad(scope_, x, {{0, 0}, {1, 1}, {1, 1}, {0, 0}});
      return tf_ops::Conv2D(scope_, x, weight, {1, stride, stride, 1}, "VALID");
    }
    return tf_ops::Conv2D(scope_, x, weight, {1, stride, stride, 1}, "SAME");
  }

  Output BatchNormRelu(const std::string& name, Output x, int64_t channels) {
    Keep(channels);
    return weights_->BatchNorm(name, x, channels, Activation::kRelu);
  }

  void Keep(int64_t channels) { kept_ += 1.0 * side_ * side_ * channels; }
  double kept() const { return kept_; }
  int64_t side() const { return side_; }
  void set_side(int64_t side) { side_ = side; }

 private:
  const tensorflow::Scope& scope_;
  int64_t side_;
  NetworkWeights* weights_;
  double kept_ = 0;
};

}  // namespace

ImageNetwork BuildWideResNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                             Output images, NetworkWeights* weights) {
  const int64_t blocks = (options.depth - 4) / 6;
  if (blocks < 1 || 6 * blocks + 4 != options.depth) {
    scope.UpdateStatus(absl::InvalidArgumentError(
        absl::StrCat("`depth` must be 10, 16, 22, 28, …, that is 6 times the blocks of a group and "
                     "4. Received: depth=",
                     options.depth)));
    return {};
  }
  Layers layers(scope, options.side, weights);
  int64_t channels = 16;
  Output x = layers.Convolution("conv0", images, 3, channels, 3, 1);
  for (int group = 0; group < 3; ++group) {
    const int64_t width = (int64_t{16} << group) * options.width;
    for (int64_t block = 0; block < blocks; ++block) {
      const std::string name = absl::StrCat("group", group, "/block", block);
      const int stride = group > 0 && block == 0 ? 2 : 1;
      const int64_t side = layers.side();
      const Output activated = layers.BatchNormRelu(name + "/bn0", x, channels);
      Output y = layers.Convolution(name + "/conv0", activated, channels, width, 3, stride);
      y = layers.BatchNormRelu(name + "/bn1", y, width);
      y = layers.Convolution(name + "/conv1", y, width, width, 3, 1);
      if (channels != width) {
        layers.set_side(side);
        x = layers.Convolution(name + "/shortcut", activated, channels, width, 1, stride);
      }
      x = tf_ops::AddV2(scope, y, x);
      channels = width;
    }
  }
  x = layers.BatchNormRelu("bn", x, channels);
  ImageNetwork network;
  network.features = tf_ops::Mean(scope, x, {1, 2});
  network.kernel = weights->HeadWeight("head/kernel", {channels, options.classes}, channels);
  network.bias = weights->HeadWeight("head/bias", {options.classes}, 0);
  network.kept = layers.kept();
  return network;
}

}  // namespace late_phase

#include "models/conv_net.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

ImageNetwork BuildConvNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                          Output images, NetworkWeights* weights) {
  constexpr int64_t kKernel = 5, kPool = 2;
  if (options.side < 16) {
    scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`side` must be at least 16, or no pixel is left. Received: side=", options.side)));
    return {};
  }
  ImageNetwork network;
  Output x = images;
  int64_t side = options.side, channels = 3;
  int layer = 0;
  for (const int64_t maps : {6, 16}) {
    const std::string name = absl::StrCat("conv", layer);
    const int64_t fan_in = kKernel * kKernel * channels;
    x = tf_ops::Conv2D(
        scope, x, weights->Weight(name + "/kernel", {kKernel, kKernel, channels, maps}, fan_in),
        {1, 1, 1, 1}, "VALID");
    x = tf_ops::Relu(scope, tf_ops::BiasAdd(scope, x, weights->Weight(name + "/bias", {maps}, 0)));
    x = weights->BatchNorm(absl::StrCat("bn", layer++), x, maps, Activation::kIdentity);
    side -= kKernel - 1;
    network.kept += 3.0 * side * side * maps;
    x = tf_ops::MaxPool(scope, x, {1, kPool, kPool, 1}, {1, kPool, kPool, 1}, "VALID");
    side /= kPool;
    network.kept += 1.0 * side * side * maps;
    channels = maps;
  }
  int64_t size = side * side * channels;
  x = tf_ops::Reshape(scope, x, {-1, static_cast<int32_t>(size)});
  for (const int64_t units : {120, 84}) {
    const std::string name = absl::StrCat("dense", layer);
    x = tf_ops::MatMul(scope, x, weights->Weight(name + "/kernel", {size, units}, size));
    x = tf_ops::Relu(scope, tf_ops::BiasAdd(scope, x, weights->Weight(name + "/bias", {units}, 0)));
    x = weights->BatchNorm(absl::StrCat("bn", layer++), x, units, Activation::kIdentity);
    network.kept += 3.0 * units;
    size = units;
  }
  network.features = x;
  network.kernel = weights->HeadWeight("head/kernel", {size, options.classes}, size);
  network.bias = weights->HeadWeight("head/bias", {options.classes}, 0);
  return network;
}

}  // namespace late_phase

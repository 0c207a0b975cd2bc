#include "models/images/networks/conv_net.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/images/networks/random_layers.h"
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
    x = weights->Linear(name, x, {kKernel, kKernel, channels, maps}, /*bias=*/true,
                        [&](Output entry, Output kernel) -> Output {
                          return tf_ops::Conv2D(scope, entry, kernel, {1, 1, 1, 1}, "VALID");
                        });
    if (!scope.ok()) return {};
    x = tf_ops::Relu(scope, x);
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
    x = weights->Linear(name, x, {size, units}, /*bias=*/true,
                        [&](Output entry, Output kernel) -> Output {
                          return tf_ops::MatMul(scope, entry, kernel);
                        });
    if (!scope.ok()) return {};
    x = tf_ops::Relu(scope, x);
    x = weights->BatchNorm(absl::StrCat("bn", layer++), x, units, Activation::kIdentity);
    x = Dropout(scope, x, options.dropout, weights);
    network.kept += (options.dropout > 0 ? 5.0 : 3.0) * units;
    size = units;
  }
  const LastLayer last = weights->Head("head", x, size, options.classes);
  network.features = last.features;
  network.kernel = last.kernel;
  network.bias = last.bias;
  return network;
}

}  // namespace late_phase

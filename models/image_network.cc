#include "models/image_network.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/conv_net.h"
#include "models/wide_resnet.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

namespace {

// Counts weights instead of making them.
class CountedWeights : public NetworkWeights {
 public:
  CountedWeights(const tensorflow::Scope& scope, NetworkSize* size) : scope_(scope), size_(size) {}

  Output Weight(const std::string&, const tensorflow::TensorShape& shape, int64_t) override {
    size_->parameters += shape.num_elements();
    return tf_ops::Placeholder(scope_, tensorflow::DT_FLOAT, tf_ops::Placeholder::Shape(shape));
  }
  Output HeadWeight(const std::string& name, const tensorflow::TensorShape& shape,
                    int64_t fan_in) override {
    size_->member_parameters += shape.num_elements();
    return Weight(name, shape, fan_in);
  }
  Output BatchNorm(const std::string&, Output x, int64_t channels, Activation) override {
    size_->parameters += 2 * channels;
    size_->member_parameters += 2 * channels;
    return x;
  }

 private:
  const tensorflow::Scope& scope_;
  NetworkSize* size_;
};

}  // namespace

ImageNetwork BuildImageNetwork(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                               Output images, NetworkWeights* weights) {
  if (options.name == "convnet") return BuildConvNet(scope, options, images, weights);
  if (options.name == "wrn") return BuildWideResNet(scope, options, images, weights);
  scope.UpdateStatus(absl::InvalidArgumentError(
      absl::StrCat("`network` must be wrn or convnet. Received: network=", options.name)));
  return {};
}

absl::Status SizeOf(const ImageNetworkOptions& options, NetworkSize* size) {
  *size = NetworkSize();
  const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  CountedWeights weights(scope, size);
  const Output images = tf_ops::Placeholder(
      scope, tensorflow::DT_FLOAT, tf_ops::Placeholder::Shape({1, options.side, options.side, 3}));
  size->kept = BuildImageNetwork(scope, options, images, &weights).kept;
  return scope.status();
}

}  // namespace late_phase

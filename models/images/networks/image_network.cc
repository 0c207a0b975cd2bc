#include "models/images/networks/image_network.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/images/networks/conv_net.h"
#include "models/images/networks/layer_weights.h"
#include "models/images/networks/pyramid_net.h"
#include "models/images/networks/wide_resnet.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/platform/errors.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

namespace {

// Counts weights instead of making them.
class CountedWeights : public LayerWeights {
 public:
  CountedWeights(const tensorflow::Scope& scope, const ImageNetworkOptions& network,
                 NetworkSize* size)
      : LayerWeights(scope, network, tensorflow::DT_FLOAT, Output()), scope_(scope), size_(size) {}

  Output BatchNorm(const std::string&, Output x, int64_t channels, Activation) override {
    size_->parameters += 2 * channels;
    size_->member_parameters += 2 * channels;
    return x;
  }

 protected:
  Output Weight(Part part, const std::string&, const tensorflow::TensorShape& shape,
                const Initial&) override {
    size_->parameters += shape.num_elements();
    const bool members = part == Part::kHead || part == Part::kFactor || part == Part::kEmbedding;
    if (members) size_->member_parameters += shape.num_elements();
    return tf_ops::Placeholder(scope_, tensorflow::DT_FLOAT, tf_ops::Placeholder::Shape(shape));
  }
  Output ImageMembers(Output x) override { return DividedAmongMembers(x); }

 private:
  const tensorflow::Scope& scope_;
  NetworkSize* size_;
};

absl::Status Check(const ImageNetworkOptions& options) {
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dropout` must be in [0, 1). Received: dropout=", options.dropout));
  }
  if (!(options.shakedrop >= 0 && options.shakedrop <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`shakedrop` must be in [0, 1]. Received: shakedrop=", options.shakedrop));
  }
  if (!(options.alpha >= 0 && options.alpha <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`alpha` must be in [0, 1e6]. Received: alpha=", options.alpha));
  }
  if (options.name == "pyramidnet" && options.dropout > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dropout` must be 0 for a pyramidnet, which has ShakeDrop instead. Received: "
                     "dropout=",
                     options.dropout));
  }
  if (options.name != "wrn" && options.kernels == KernelForm::kHypernetwork) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`network` must be wrn with a hypernetwork. Received: network=", options.name));
  }
  return absl::OkStatus();
}

}  // namespace

ImageNetwork BuildImageNetwork(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                               Output images, NetworkWeights* weights) {
  if (absl::Status status = Check(options); !status.ok()) {
    scope.UpdateStatus(status);
    return {};
  }
  if (options.name == "convnet") return BuildConvNet(scope, options, images, weights);
  if (options.name == "wrn") return BuildWideResNet(scope, options, images, weights);
  if (options.name == "pyramidnet") return BuildPyramidNet(scope, options, images, weights);
  scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
      "`network` must be wrn, convnet or pyramidnet. Received: network=", options.name)));
  return {};
}

absl::StatusOr<NetworkSize> MeasureNetwork(const ImageNetworkOptions& options) {
  NetworkSize size;
  const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  CountedWeights weights(scope, options, &size);
  const Output images = tf_ops::Placeholder(
      scope, tensorflow::DT_FLOAT, tf_ops::Placeholder::Shape({1, options.side, options.side, 3}));
  size.kept = BuildImageNetwork(scope, options, images, &weights).kept;
  TF_RETURN_IF_ERROR(scope.status());
  return size;
}

}  // namespace late_phase

// The interface between an image network's builder and its users.
//
// A builder is a function of a scope, options and images [n, side, side, 3]. It asks for each layer
// with weights by name, where it needs it, and does not know where the weights come from: training
// declares a weight when it is asked for, an evaluation reads it. Nor does it know how a kernel is
// made, or whether random numbers are drawn. So each network is written only once.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_NETWORK_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_NETWORK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace late_phase {

enum class Activation { kIdentity, kRelu };

// logits = features · kernel + bias.
struct LastLayer {
  tensorflow::Output features;      // [n, size]
  tensorflow::Output kernel, bias;  // [size, classes], [classes]
};

class NetworkWeights {
 public:
  virtual ~NetworkWeights() = default;

  // A hidden layer: product(x, kernel), then a bias if it has one. The product is linear in x
  // [n, …, in] and in the kernel, whose `shape` is [in, out] or [height, width, in, out]. A kernel
  // starts as N(0, 2 / fan-in), a bias as 0.
  using Product =
      std::function<tensorflow::Output(tensorflow::Output x, tensorflow::Output kernel)>;
  virtual tensorflow::Output Linear(const std::string& name, tensorflow::Output x,
                                    const tensorflow::TensorShape& shape, bool bias,
                                    const Product& product) = 0;
  // The last layer of features [n, size], which may have members.
  virtual LastLayer Head(const std::string& name, tensorflow::Output features, int64_t size,
                         int64_t classes) = 0;
  // Batch normalisation of x [n, …, channels], with weights and running statistics that may have
  // members, then the activation.
  virtual tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x,
                                       int64_t channels, Activation activation) = 0;
  // Random float numbers in [0, 1) of the given shape (int32 [rank]), different for each call. An
  // empty output where nothing is drawn: random layers then use their mean.
  virtual tensorflow::Output Uniform(tensorflow::Output shape) = 0;
};

// A network.
struct ImageNetwork {
  tensorflow::Output features;      // [n, size], of the last layer
  tensorflow::Output kernel, bias;  // [size, classes], [classes]
  double kept = 0;                  // numbers per image that the backward pass needs
};

// How the kernels of hidden layers are made.
enum class KernelForm {
  kPlain,
  kRank1,          // kernel ∘ (u vᵀ), u [in] and v [out] with members
  kBatchEnsemble,  // kernel ∘ (u_k v_kᵀ), a minibatch's images divided among the rows k
  kHypernetwork    // of a layer's embedding, which has members (hypernetwork.h)
};

struct ImageNetworkOptions {
  std::string name = "wrn";        // or "convnet", "pyramidnet"
  int64_t depth = 28, width = 10;  // of a WRN; a PyramidNet has the depth only
  int64_t classes = 10;
  int64_t side = 32;       // of the images
  double dropout = 0;      // probability of dropping an activation
  double alpha = 200;      // of a PyramidNet: channels that its blocks add in all
  double shakedrop = 0.5;  // of a PyramidNet: death rate of the last block; 0: no ShakeDrop
  KernelForm kernels = KernelForm::kPlain;
  int64_t ensemble = 1;  // K of kBatchEnsemble
};

// Builds the network that `options` name. Errors end in the scope's status.
ImageNetwork BuildImageNetwork(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                               tensorflow::Output images, NetworkWeights* weights);

// The size of a network, computed without building it.
struct NetworkSize {
  int64_t parameters = 0;         // trainable numbers, with one member
  int64_t member_parameters = 0;  // those of BatchNorm, the last layer, factors and embeddings
  double kept = 0;                // ImageNetwork::kept
};
absl::StatusOr<NetworkSize> MeasureNetwork(const ImageNetworkOptions& options);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_NETWORK_H_

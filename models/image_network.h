// What an image network's builder and whoever uses it agree on.
//
// A builder is a function of a scope, options and images [n, side, side, 3]. It asks for each
// weight where it needs it, by a name of its own, and does not know where it comes from: training
// declares a weight when it is asked for, an evaluation reads it. So the network is written down
// once.
#ifndef LATE_PHASE_MODELS_IMAGE_NETWORK_H_
#define LATE_PHASE_MODELS_IMAGE_NETWORK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace late_phase {

enum class Activation { kIdentity, kRelu };

class NetworkWeights {
 public:
  virtual ~NetworkWeights() = default;

  // A weight of a convolution or a linear layer; it starts as N(0, 2 / fan_in), a bias (fan_in 0)
  // as 0.
  virtual tensorflow::Output Weight(const std::string& name, const tensorflow::TensorShape& shape,
                                    int64_t fan_in) = 0;
  // The same of the last layer, which may have members.
  virtual tensorflow::Output HeadWeight(const std::string& name,
                                        const tensorflow::TensorShape& shape, int64_t fan_in) = 0;
  // Batch normalisation of x [n, …, channels], with weights and running statistics that may have
  // members, then the activation.
  virtual tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x,
                                       int64_t channels, Activation activation) = 0;
};

// A network up to its last layer, logits = features · kernel + bias.
struct ImageNetwork {
  tensorflow::Output features;      // [n, size]
  tensorflow::Output kernel, bias;  // [size, classes], [classes]
  double kept = 0;                  // numbers per image that the backward pass needs
};

struct ImageNetworkOptions {
  std::string name = "wrn";        // or "convnet"
  int64_t depth = 28, width = 10;  // of a WRN
  int64_t classes = 10;
  int64_t side = 32;  // of the images
};

// Builds the network that `options` name. Errors end in the scope's status.
ImageNetwork BuildImageNetwork(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                               tensorflow::Output images, NetworkWeights* weights);

// What a network would take, found without making it.
struct NetworkSize {
  int64_t parameters = 0;         // trainable numbers, with one member
  int64_t member_parameters = 0;  // those of BatchNorm and the last layer
  double kept = 0;                // ImageNetwork::kept
};
absl::Status SizeOf(const ImageNetworkOptions& options, NetworkSize* size);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGE_NETWORK_H_

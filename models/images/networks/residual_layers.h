// Convolutions and BatchNorms of residual networks, in sequence, counting what they keep for the
// backward pass.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_RESIDUAL_LAYERS_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_RESIDUAL_LAYERS_H_

#include <cstdint>
#include <string>

#include "models/images/networks/image_network.h"

namespace late_phase {

// The blocks in each group of a network of `depth` layers: `layers` times as many, and `others`. If
// the depth is not such a number, an error in the scope and 0; `depths` names some that are.
int64_t BlocksPerGroup(const tensorflow::Scope& scope, int64_t depth, int64_t layers,
                       int64_t others, const char* depths);

class ResidualLayers {
 public:
  ResidualLayers(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                 NetworkWeights* weights)
      : scope_(scope), dropout_(options.dropout), side_(options.side), weights_(weights) {}

  // A convolution that keeps the resolution, or halves it with stride 2.
  tensorflow::Output Convolution(const std::string& name, tensorflow::Output x, int64_t input,
                                 int64_t output, int kernel, int stride);
  tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x, int64_t channels,
                               Activation activation = Activation::kRelu);
  tensorflow::Output Dropout(tensorflow::Output x, int64_t channels);
  // Mean over the pixels, and the last layer.
  ImageNetwork Network(tensorflow::Output x, int64_t channels, int64_t classes);

  int64_t side() const { return side_; }
  void set_side(int64_t side) { side_ = side; }

 private:
  void Keep(int64_t channels) { kept_ += 1.0 * side_ * side_ * channels; }

  const tensorflow::Scope& scope_;
  double dropout_;
  int64_t side_;
  NetworkWeights* weights_;
  double kept_ = 0;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_RESIDUAL_LAYERS_H_

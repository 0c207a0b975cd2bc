// LeNet-5 with ReLU and batch normalisation, the paper's small ConvNet: two 5×5 convolutions
// without padding (6 and 16 maps), dense layers of 120 and 84 units, and the last layer. Each
// hidden layer is followed by ReLU and BatchNorm; then by 2×2 max-pooling after a convolution, or
// by dropout, if any, after a dense layer.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_

#include "models/images/networks/image_network.h"

namespace late_phase {

// `options`: dropout, classes, side.
ImageNetwork BuildConvNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                          tensorflow::Output images, NetworkWeights* weights);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_

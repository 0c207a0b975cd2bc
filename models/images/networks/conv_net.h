// LeNet-5 with ReLU and batch normalisation, the paper's small ConvNet: two 5×5 convolutions
// without padding (6 and 16 maps), layers of 120 and 84 units and the last one. Each hidden layer
// is followed by ReLU, then BatchNorm; the convolutions by 2×2 max-pooling after that,
// the layers of units by dropout, if any.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_

#include "models/images/networks/image_network.h"

namespace late_phase {

// `options`: dropout, classes, side.
ImageNetwork BuildConvNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                          tensorflow::Output images, NetworkWeights* weights);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_CONV_NET_H_

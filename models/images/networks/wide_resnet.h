// Wide residual networks (Zagoruyko and Komodakis, 2016), WRN depth-width: three groups of
// (depth − 4) / 6 blocks with 16, 32 and 64 times `width` channels, the second and third group at
// half the resolution of the one before. A block is BatchNorm, ReLU, 3×3 convolution, twice, and is
// added to its input; where the number of channels changes, to a 1×1 convolution of its normalised
// and activated input. Dropout, if any, comes before a block's second convolution. Only the last
// layer has biases.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_WIDE_RESNET_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_WIDE_RESNET_H_

#include "models/images/networks/image_network.h"

namespace late_phase {

// `options`: depth (6·blocks + 4), width, dropout, classes, side.
ImageNetwork BuildWideResNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                             tensorflow::Output images, NetworkWeights* weights);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_WIDE_RESNET_H_

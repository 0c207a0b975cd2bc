// PyramidNets (Han et al., 2017) with bottleneck blocks and ShakeDrop: three groups of
// (depth − 2) / 9 blocks, the second and third at half the resolution of the one before. Every
// block adds alpha / blocks channels to the 16 of the first convolution (rounded), and has four
// times as many outputs. A block is BatchNorm, 1×1 convolution, BatchNorm, ReLU, 3×3 convolution,
// BatchNorm, ReLU, 1×1 convolution, BatchNorm; ShakeDrop scales it, with a death rate that rises
// linearly to that of the last block; it is added to its input, which is averaged over 2×2 pixels
// where the resolution halves and padded with zero channels. Only the last layer has biases.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_PYRAMID_NET_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_PYRAMID_NET_H_

#include "models/images/networks/image_network.h"

namespace late_phase {

// `options`: depth (9·blocks + 2), alpha, shakedrop, classes, side.
ImageNetwork BuildPyramidNet(const tensorflow::Scope& scope, const ImageNetworkOptions& options,
                             tensorflow::Output images, NetworkWeights* weights);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_PYRAMID_NET_H_

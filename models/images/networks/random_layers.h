// Layers that draw random numbers while a network is trained, and otherwise use their mean.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_RANDOM_LAYERS_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_RANDOM_LAYERS_H_

#include "models/images/networks/image_network.h"

namespace late_phase {

// Each element of x is dropped (set to 0) with probability `rate`, or else divided by 1 − rate.
// Where nothing is drawn: x.
tensorflow::Output Dropout(const tensorflow::Scope& scope, tensorflow::Output x, double rate,
                           NetworkWeights* weights);

// ShakeDrop (Yamada et al., 2019) of a residual branch x [n, h, w, channels]. Forward it is
// multiplied by b + α − bα, its gradient by b + β − bβ: b is 1 with probability 1 − death, one
// draw per call, so that a block lives or dies for the whole minibatch; α ~ U[−1, 1] and
// β ~ U[0, 1] are drawn for each image. Where nothing is drawn: x · (1 − death), the mean of
// the forward factor.
tensorflow::Output ShakeDrop(const tensorflow::Scope& scope, tensorflow::Output x, double death,
                             NetworkWeights* weights);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_RANDOM_LAYERS_H_

// How flat the loss is around a trained image network: δL(σ) = E_z[L(w + z) − L(w)] with
// z_i ~ N(0, w_i² σ²).
//
// w is every trained weight of the collapsed network, BatchNorm's scales and offsets included; its
// running statistics stay as they are. L is the mean NLL of the given images, not augmented.
#ifndef LATE_PHASE_MODELS_IMAGES_FLATNESS_H_
#define LATE_PHASE_MODELS_IMAGES_FLATNESS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "models/images/cifar.h"

namespace late_phase {

struct FlatnessOptions {
  std::vector<double> sigmas;  // each >= 0
  int64_t samples = 10;        // draws of z, at least 1; the same for every σ, scaled by it
  int64_t seed = 0;
  WeightSet set = WeightSet::kCollapsed;  // or kSwa
  std::function<void()> progress;         // called after each loss; may be empty
};

struct Flatness {
  double loss = 0;  // L(w)
  struct Point {
    double sigma;
    std::vector<double> differences;  // L(w + z) − L(w) of each draw
    double mean, standard_error;      // standard error of the mean; NaN for one draw
  };
  std::vector<Point> points;
};

// Normal numbers of draw `draw`: element i of the weight with index `weight`, in the order of
// declaration, is element i, row `weight`, of stream number `draw` of Normals::kFlatness
// (optimizers/random_streams.h).
absl::StatusOr<Flatness> MeasureFlatness(Cifar* task, Run* run, const ImageView& images,
                                         const FlatnessOptions& options);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_FLATNESS_H_

// SWA-Gaussian (Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning",
// 2019): weights drawn from a normal distribution around the SWA average, whose covariance was
// collected during training.
//
// Training (LatePhaseOptions::swag_rank = R, optimizers/averages.h) keeps of every weight w,
// over the SWA samples, the mean w̄ (NAME/swa), the mean of squares (NAME/swa_square) and the last R
// deviations w − w̄ (NAME/swag_deviations [R, …], a ring indexed by the sample's number), w̄ being
// the mean so far. Here weights are drawn from them. Predicting with those (BatchNorm's statistics
// must be re-estimated for each sample) is up to models/.
#ifndef LATE_PHASE_OPTIMIZERS_SWAG_H_
#define LATE_PHASE_OPTIMIZERS_SWAG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "optimizers/run.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

struct SwagMoments {
  struct Weight {
    std::string name;
    tensorflow::Tensor mean, square;  // of the variable's shape
    tensorflow::Tensor deviations;    // [R, …]
  };
  std::vector<Weight> weights;  // in the order of their declaration
  int64_t kept = 0;             // rows of the deviations that have been filled, R' ≤ R
};

// The moments as the run has them now. FailedPrecondition if it collects none, or has no sample
// yet.
absl::StatusOr<SwagMoments> ReadSwagMoments(Run* run);

// Sample number `sample` of all weights by name, of their variables' shapes:
//
//   w = w̄ + √(max(square − w̄², 1e-30) / 2) ∘ z1 + Σ_r deviation_r z2_r / √(2 (R' − 1))
//
// z1 is a normal number per element and z2 one per deviation, the same for all weights. They are
// functions of the seed, the sample, and the place of the weight and the element
// (optimizers/random_streams.h). With R' < 2 the last term is left out. Double weights get the same
// normal numbers as float ones.
std::map<std::string, tensorflow::Tensor> SwagSample(const SwagMoments& moments, int64_t seed,
                                                     int64_t sample);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_SWAG_H_

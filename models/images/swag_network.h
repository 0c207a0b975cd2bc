// Predictions of networks whose weights are samples of SWAG (optimizers/swag.h), each with
// BatchNorm statistics of its own, estimated in a pass over the training images.
#ifndef LATE_PHASE_MODELS_IMAGES_SWAG_NETWORK_H_
#define LATE_PHASE_MODELS_IMAGES_SWAG_NETWORK_H_

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/images/cifar.h"
#include "models/images/trial_weights.h"
#include "optimizers/run.h"
#include "optimizers/swag.h"

namespace late_phase {

class SwagNetwork {
 public:
  // Task and run must outlive the object. Nothing is read before the first prediction.
  SwagNetwork(Cifar* task, Run* run, int64_t seed) : task_(task), run_(run), seed_(seed) {}

  // The probabilities [images, classes] predicted by sample number `sample`. Afterwards the run has
  // its own weights again.
  absl::StatusOr<Probabilities> Predict(const ImageView& images, int64_t sample);

 private:
  // Puts the sample in place of the run's weights.
  [[nodiscard]] absl::Status Assign(int64_t sample);

  Cifar* task_;
  Run* run_;
  int64_t seed_;
  SwagMoments moments_;
  // Of the samples so far. Weights are drawn again for every set of images: all would fill memory.
  std::map<int64_t, TrialWeights::Plain> statistics_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_SWAG_NETWORK_H_

// Predictions of a run's collapsed network, with BatchNorm collapsed in a way that is chosen here,
// whatever the run's own way is (CifarOptions::batch_norm_collapse). So one trained run shows what
// each of them makes of it.
#ifndef LATE_PHASE_MODELS_IMAGES_COLLAPSED_NETWORK_H_
#define LATE_PHASE_MODELS_IMAGES_COLLAPSED_NETWORK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/images/cifar.h"
#include "models/images/trial_weights.h"
#include "optimizers/run.h"

namespace late_phase {

class CollapsedNetwork {
 public:
  // batch_norm: "mean", "affine" or "reestimated". Task and run must outlive the object, and the
  // run must not move on. Nothing is read before the first prediction.
  CollapsedNetwork(Cifar* task, Run* run, std::string batch_norm)
      : task_(task), run_(run), batch_norm_(std::move(batch_norm)) {}

  // The probabilities [images, classes]. The run has its own weights afterwards.
  absl::StatusOr<Probabilities> Predict(const ImageView& images);

 private:
  // Puts the network in the place of the run's weights.
  [[nodiscard]] absl::Status Assign();

  Cifar* task_;
  Run* run_;
  std::string batch_norm_;
  TrialWeights::Plain network_;  // empty: not read yet
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_COLLAPSED_NETWORK_H_

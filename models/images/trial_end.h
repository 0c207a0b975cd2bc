// The end of a trial (trial_weights.h): the run gets its own weights back, whatever came of it.
#ifndef LATE_PHASE_MODELS_IMAGES_TRIAL_END_H_
#define LATE_PHASE_MODELS_IMAGES_TRIAL_END_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/images/trial_weights.h"
#include "optimizers/run.h"

namespace late_phase {

// Restores the run's weights and returns the trial's result; if the trial went well and only this
// fails, its error.
template <typename T>
absl::StatusOr<T> EndTrial(TrialWeights* trial, Run* run, absl::StatusOr<T> result) {
  const absl::Status restored = trial->Restore(run);
  if (result.ok() && !restored.ok()) return restored;
  return result;
}

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_TRIAL_END_H_

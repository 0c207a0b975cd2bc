#include "models/images/swag_network.h"

namespace late_phase {

absl::Status SwagNetwork::Assign(int64_t sample) {
  if (moments_.weights.empty()) {
    if (absl::Status status = ReadSwagMoments(run_, &moments_); !status.ok()) return status;
  }
  TrialWeights* trial = task_->trial_weights();
  absl::Status status = trial->Assign(run_, SwagSample(moments_, seed_, sample));
  if (!status.ok()) return status;
  const auto [statistics, is_new] = statistics_.insert({sample, {}});
  if (is_new) status = task_->EstimateTrialStatistics(run_, &statistics->second);
  return status.ok() ? trial->Assign(run_, statistics->second) : status;
}

absl::Status SwagNetwork::Predict(const ImageView& images, int64_t sample,
                                  std::vector<double>* probabilities) {
  absl::Status status = Assign(sample);
  if (status.ok()) status = task_->PredictTrial(run_, images, probabilities);
  const absl::Status restored = task_->trial_weights()->Restore(run_);
  return status.ok() ? restored : status;
}

}  // namespace late_phase

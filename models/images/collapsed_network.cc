#include "models/images/collapsed_network.h"

#include <utility>

#include "models/images/trial_end.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

absl::Status CollapsedNetwork::Assign() {
  TrialWeights* trial = task_->trial_weights();
  if (!network_.empty()) return trial->Assign(run_, network_);
  TF_ASSIGN_OR_RETURN(
      TrialWeights::Plain network,
      trial->Read(run_, batch_norm_ == "affine" ? kCollapsedAffine : kCollapsedMean));
  TF_RETURN_IF_ERROR(trial->Assign(run_, network));
  if (batch_norm_ == "reestimated") {
    TF_ASSIGN_OR_RETURN(TrialWeights::Plain statistics, task_->EstimateTrialStatistics(run_));
    TF_RETURN_IF_ERROR(trial->Assign(run_, statistics));
    for (auto& [name, value] : statistics) network[name] = std::move(value);
  }
  network_ = std::move(network);
  return absl::OkStatus();
}

absl::StatusOr<Probabilities> CollapsedNetwork::Predict(const ImageView& images) {
  const absl::Status assigned = Assign();
  return EndTrial<Probabilities>(task_->trial_weights(), run_,
                                 assigned.ok() ? task_->PredictTrial(run_, images) : assigned);
}

}  // namespace late_phase

#include "models/images/swag_network.h"

#include <utility>

#include "models/images/trial_end.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

absl::Status SwagNetwork::Assign(int64_t sample) {
  if (moments_.weights.empty()) {
    TF_ASSIGN_OR_RETURN(moments_, ReadSwagMoments(run_));
  }
  TrialWeights* trial = task_->trial_weights();
  TF_RETURN_IF_ERROR(trial->Assign(run_, SwagSample(moments_, seed_, sample)));
  auto statistics = statistics_.find(sample);
  if (statistics == statistics_.end()) {
    TF_ASSIGN_OR_RETURN(TrialWeights::Plain estimated, task_->EstimateTrialStatistics(run_));
    statistics = statistics_.emplace(sample, std::move(estimated)).first;
  }
  return trial->Assign(run_, statistics->second);
}

absl::StatusOr<Probabilities> SwagNetwork::Predict(const ImageView& images, int64_t sample) {
  const absl::Status assigned = Assign(sample);
  return EndTrial<Probabilities>(task_->trial_weights(), run_,
                                 assigned.ok() ? task_->PredictTrial(run_, images) : assigned);
}

}  // namespace late_phase

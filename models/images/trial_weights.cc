#include "models/images/trial_weights.h"

#include "absl/strings/str_cat.h"
#include "optimizers/tensors.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::Tensor;

TrialWeights::TrialWeights(LatePhase* late_phase, const std::map<std::string, Network>& networks)
    : trained_(late_phase->weight_names()) {
  for (const auto& [network, built] : networks) {
    sets_[network] = built.set;
    std::map<std::string, tensorflow::Output> outputs = built.own;
    for (const std::string& name : trained_) {
      if (outputs.count(name) == 0) outputs[name] = late_phase->Read(name, built.set);
    }
    if (!late_phase->scope().ok()) return;
    for (const SavedVariable& saved : late_phase->saved()) {
      const auto found = outputs.find(saved.name);
      if (found == outputs.end()) continue;
      Variable& variable = variables_[saved.name];
      variable.plain[network] = found->second.name();
      variable.read = saved.read;
      variable.shape = saved.shape;
    }
  }
}

absl::StatusOr<TrialWeights::Plain> TrialWeights::Read(Run* run, const std::string& network) const {
  const auto set = sets_.find(network);
  if (set == sets_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("this run has no ", network, " weights"));
  }
  std::vector<std::string> reads;
  for (const auto& [name, variable] : variables_) reads.push_back(variable.plain.at(network));
  // Through Evaluate, which first estimates the statistics if the run does that.
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> values, run->Evaluate(set->second, {}, reads));
  Plain plain;
  size_t i = 0;
  for (const auto& [name, variable] : variables_) plain[name] = values[i++];
  return plain;
}

absl::StatusOr<Tensor> TrialWeights::Stack(const std::string& name, const Tensor& value) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`plain` must hold weights and statistics of the network. Received: ", name));
  }
  const tensorflow::TensorShape& shape = found->second.shape;
  const int64_t size = value.NumElements();
  const int64_t rows = shape.dims() > 0 ? shape.dim_size(0) : 1;
  if (size != shape.num_elements() && size * rows != shape.num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be ", shape.DebugString(),
                     ", or a row of it. Received: shape=", value.shape().DebugString()));
  }
  if (size != shape.num_elements()) return RepeatedRow(value.dtype(), value.data(), shape);
  Tensor stack(value.dtype(), shape);
  if (!stack.CopyFrom(value, shape)) return absl::InternalError("a tensor was not reshaped");
  return stack;
}

absl::Status TrialWeights::Assign(Run* run, const Plain& plain) {
  Plain stacks;
  for (const auto& [name, value] : plain) {
    TF_ASSIGN_OR_RETURN(stacks[name], Stack(name, value));
  }
  if (before_.empty()) {
    std::vector<std::string> reads;
    for (const auto& [name, variable] : variables_) reads.push_back(variable.read);
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> values, run->Fetch({}, reads));
    size_t i = 0;
    for (const auto& [name, variable] : variables_) before_[name] = values[i++];
  }
  return run->Assign(stacks);
}

absl::Status TrialWeights::Restore(Run* run) {
  if (before_.empty()) return absl::OkStatus();
  const Plain before = std::move(before_);
  before_.clear();
  return run->Assign(before);
}

}  // namespace late_phase

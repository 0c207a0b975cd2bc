#include "models/images/trial_weights.h"

#include "absl/strings/str_cat.h"
#include "optimizers/tensors.h"

namespace late_phase {

using tensorflow::Tensor;

TrialWeights::TrialWeights(LatePhase* late_phase, const Statistics& statistics)
    : trained_(late_phase->weight_names()) {
  for (const auto& [set, of_set] : statistics) {
    std::map<std::string, tensorflow::Output> outputs = of_set;
    for (const std::string& name : trained_) outputs[name] = late_phase->Read(name, set);
    if (!late_phase->scope().ok()) return;
    for (const LatePhase::Saved& saved : late_phase->saved()) {
      const auto found = outputs.find(saved.name);
      if (found == outputs.end()) continue;
      Variable& variable = variables_[saved.name];
      variable.plain[set] = found->second.name();
      variable.read = saved.read;
      variable.shape = saved.shape;
    }
  }
}

absl::Status TrialWeights::Read(Run* run, WeightSet set, Plain* plain) const {
  std::vector<std::string> reads;
  for (const auto& [name, variable] : variables_) {
    const auto found = variable.plain.find(set);
    if (found == variable.plain.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("this run has no ", WeightSetName(set), " weights"));
    }
    reads.push_back(found->second);
  }
  std::vector<Tensor> values;
  // By Evaluate, which estimates the statistics first if the run does so.
  if (absl::Status status = run->Evaluate(set, {}, reads, &values); !status.ok()) return status;
  plain->clear();
  size_t i = 0;
  for (const auto& [name, variable] : variables_) (*plain)[name] = values[i++];
  return absl::OkStatus();
}

absl::Status TrialWeights::Assign(Run* run, const Plain& plain) {
  Plain stacks;
  for (const auto& [name, value] : plain) {
    const auto found = variables_.find(name);
    if (found == variables_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`plain` must hold weights and statistics of the network. Received: ", name));
    }
    const tensorflow::TensorShape& shape = found->second.shape;
    const int64_t size = value.NumElements();
    const int64_t rows = shape.dims() > 0 ? shape.dim_size(0) : 1;
    if (size != shape.num_elements() && size * rows != shape.num_elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", name, "` must be ", shape.DebugString(),
                       ", or a row of it. Received: shape=", value.shape().DebugString()));
    }
    Tensor stack(value.dtype(), shape);
    if (size == shape.num_elements()) {
      if (!stack.CopyFrom(value, shape)) return absl::InternalError("a tensor was not reshaped");
    } else {
      stack = RepeatedRow(value.dtype(), value.data(), shape);
    }
    stacks[name] = stack;
  }
  if (before_.empty()) {
    std::vector<std::string> reads;
    for (const auto& [name, variable] : variables_) reads.push_back(variable.read);
    std::vector<Tensor> values;
    if (absl::Status status = run->Fetch({}, reads, &values); !status.ok()) return status;
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

// Temporarily replaces a trained network's weights for an evaluation: by perturbed ones, or by
// samples of a distribution over weights. Nothing is ever saved.
//
//   TF_ASSIGN_OR_RETURN(TrialWeights::Plain weights, trial->Read(run, WeightSet::kCollapsed));
//   … change weights …
//   trial->Assign(run, weights);   // WeightSet::kCurrent, member 0 is now that network
//   … evaluate …
//   trial->Restore(run);
#ifndef LATE_PHASE_MODELS_IMAGES_TRIAL_WEIGHTS_H_
#define LATE_PHASE_MODELS_IMAGES_TRIAL_WEIGHTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "optimizers/late_phase.h"
#include "optimizers/run.h"

namespace late_phase {

class TrialWeights {
 public:
  // A network without members: the name of a variable -> its value, of the shape of the base
  // weight or of a row.
  using Plain = std::map<std::string, tensorflow::Tensor>;

  // Adds to the graph what reads the plain networks: after Minimize, before the run is created.
  // statistics: by set, the states that belong to the network, each with what reads it.
  using Statistics = std::map<WeightSet, std::map<std::string, tensorflow::Output>>;
  TrialWeights(LatePhase* late_phase, const Statistics& statistics);

  // The trained variables, in the order of their declaration.
  const std::vector<std::string>& trained() const { return trained_; }

  // The network of a set that has statistics: its trained weights, and its statistics.
  absl::StatusOr<Plain> Read(Run* run, WeightSet set) const;

  // Writes the values into every row of their variables; other variables keep what they have. What
  // was there before the first call is kept for Restore.
  [[nodiscard]] absl::Status Assign(Run* run, const Plain& plain);

  // Puts back what was there before, if anything was assigned.
  [[nodiscard]] absl::Status Restore(Run* run);

 private:
  // What the variable becomes: the value, in every row.
  absl::StatusOr<tensorflow::Tensor> Stack(const std::string& name,
                                           const tensorflow::Tensor& value) const;

  struct Variable {
    std::map<WeightSet, std::string> plain;  // nodes: the value in the network of a set
    std::string read;                        // the variable
    tensorflow::TensorShape shape;
  };

  std::map<std::string, Variable> variables_;
  std::vector<std::string> trained_;
  Plain before_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_TRIAL_WEIGHTS_H_

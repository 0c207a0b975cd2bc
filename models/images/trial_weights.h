// Temporarily replaces a trained network's weights for an evaluation: by perturbed ones, or by
// samples of a distribution over weights. Nothing is ever saved.
//
//   TF_ASSIGN_OR_RETURN(TrialWeights::Plain weights, trial->Read(run, "collapsed"));
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

  // A network that can be read: the trained weights of a set, and `own`, what reads its statistics
  // and the weights that differ from the set's, by the names of their variables.
  struct Network {
    WeightSet set;
    std::map<std::string, tensorflow::Output> own;
  };

  // Adds to the graph what reads the networks, by name: after Minimize, before the run is created.
  TrialWeights(LatePhase* late_phase, const std::map<std::string, Network>& networks);

  // The trained variables, in the order of their declaration.
  const std::vector<std::string>& trained() const { return trained_; }

  // One of the networks: its trained weights, and its statistics.
  absl::StatusOr<Plain> Read(Run* run, const std::string& network) const;

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
    std::map<std::string, std::string> plain;  // nodes: the value in each network
    std::string read;                          // the variable
    tensorflow::TensorShape shape;
  };

  std::map<std::string, WeightSet> sets_;  // of the networks
  std::map<std::string, Variable> variables_;
  std::vector<std::string> trained_;
  Plain before_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_TRIAL_WEIGHTS_H_

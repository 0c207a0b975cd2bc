// Drives the graph of a LatePhase: steps, spawning at T0, SWA, checkpoints.
//
//   ASSIGN(run, Run::Create(late_phase, threads));
//   run->Initialize();                   // or run->Restore(dir)
//   while (run->step() < steps) run->Step(feeds, {"loss:0"}, &outputs);
//
// Between two calls the state is that of a whole number of minibatches, even if the last one
// failed: a minibatch that cannot be computed (bad feeds, a label out of range) changes nothing,
// and may be repeated. Only a failure while results are being written, as when memory runs out
// there, leaves a state that must be restored from a checkpoint.
#ifndef LATE_PHASE_OPTIMIZERS_RUN_H_
#define LATE_PHASE_OPTIMIZERS_RUN_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "optimizers/checkpoint.h"
#include "optimizers/late_phase.h"
#include "tensorflow/core/public/session.h"

namespace late_phase {

class Run {
 public:
  using Feeds = std::vector<std::pair<std::string, tensorflow::Tensor>>;

  // Makes a session of the finished graph. `threads` must be the same in all runs of a process
  // (optimizers/session.h). `settings` are further ones that a checkpoint must agree with: the
  // model's and the data's.
  static absl::Status Create(const LatePhase& late_phase, int threads, const Settings& settings,
                             std::unique_ptr<Run>* run);

  // Sets all variables to their initial values, t = 0.
  absl::Status Initialize();

  // One minibatch: spawns first if it is step T0's turn, trains, takes an SWA sample if one is due.
  // If it fails after spawning, the members stay, and a repetition does not spawn again.
  absl::Status Step(const Feeds& feeds, const std::vector<std::string>& fetches = {},
                    std::vector<tensorflow::Tensor>* outputs = nullptr);

  // Anything else in the graph, such as an evaluation.
  absl::Status Fetch(const Feeds& feeds, const std::vector<std::string>& fetches,
                     std::vector<tensorflow::Tensor>* outputs);

  // Called before weights that were never trained as they are (collapsed, SWA) are evaluated, once
  // per set and step: the place to re-estimate BatchNorm statistics, into variables of their own
  // (AddState).
  using Reestimate = std::function<absl::Status(Run*, WeightSet)>;
  void OnEvaluation(Reestimate reestimate) { reestimate_ = std::move(reestimate); }

  // Fetches what was built from LatePhase::Read(..., set), after OnEvaluation's function if it is
  // due.
  absl::Status Evaluate(WeightSet set, const Feeds& feeds, const std::vector<std::string>& fetches,
                        std::vector<tensorflow::Tensor>* outputs);

  int64_t step() const { return step_; }
  const LatePhaseOptions& options() const { return options_; }

  // Refused, and nothing written, if a weight is no longer finite: the last checkpoint stays good.
  absl::Status Save(const std::string& dir);
  // Restores the newest checkpoint. `note` is set if results will differ by rounding from those of
  // an uninterrupted run.
  absl::Status Restore(const std::string& dir, std::string* note);

  // Starts from the weights and statistics of another run's newest checkpoint, t = 0, slots zero.
  // Its members, once they are spawned, are collapsed; here every row becomes what they are.
  absl::Status StartFrom(const std::string& dir);

  // Goes on where another run of the same network with one member stood, at the latest at T0: t,
  // slots and states are kept, and its member is φ0. Until T0 both are the same model, so this
  // equals a run of its own from the start.
  absl::Status Fork(const std::string& dir);

  // Sets variables to given values: weights from elsewhere. Others keep theirs. Names, types and
  // shapes must be those of variables of the run; else nothing is set.
  absl::Status Assign(const std::map<std::string, tensorflow::Tensor>& variables);

  // Every variable that a checkpoint holds.
  const std::vector<LatePhase::Saved>& saved() const { return saved_; }

  // Where the ops of a minibatch run, known after the first Step: device -> op types.
  const std::map<std::string, std::set<std::string>>& placement() const { return placement_; }

 private:
  Run(const LatePhase& late_phase, int threads, Settings settings);

  // Adds the members at T0, if they are not there.
  absl::Status Spawn();
  // Makes what another version wrote what this one would have written.
  void Modernize(CheckpointState* state) const;

  LatePhaseOptions options_;
  std::string zero_, train_, spawn_, swa_;
  std::vector<LatePhase::Saved> saved_;
  Settings settings_;
  int threads_;
  int64_t step_ = 0;
  Reestimate reestimate_;
  std::map<WeightSet, int64_t> reestimated_at_;
  std::map<std::string, std::set<std::string>> placement_;
  std::unique_ptr<tensorflow::Session> session_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_RUN_H_

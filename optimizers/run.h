// Drives the graph of a LatePhase: steps, spawning at T0, SWA, checkpoints.
//
//   TF_ASSIGN_OR_RETURN(std::unique_ptr<Run> run, Run::Create(late_phase, threads));
//   TF_RETURN_IF_ERROR(run->Initialize());                   // or run->Restore(dir)
//   while (run->step() < steps) {
//     TF_ASSIGN_OR_RETURN(std::vector<Tensor> outputs, run->Step(feeds, {"loss:0"}));
//   }
//
// Between two calls the state is that of a whole number of minibatches, even if the last one
// failed: a minibatch that cannot be computed (bad feeds, a label out of range) changes nothing
// and may be repeated. Only a failure while results are being written, such as running out of
// memory there, leaves a state that must be restored from a checkpoint.
#ifndef LATE_PHASE_OPTIMIZERS_RUN_H_
#define LATE_PHASE_OPTIMIZERS_RUN_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "optimizers/checkpoint.h"
#include "optimizers/late_phase.h"
#include "tensorflow/core/public/session.h"

namespace late_phase {

class Run {
 public:
  using Feeds = std::vector<std::pair<std::string, tensorflow::Tensor>>;

  // Opens a session for the finished graph. `threads` must be the same in all runs of a process
  // (optimizers/session.h). `settings` are further settings that a checkpoint must agree with: the
  // model's and the data's.
  static absl::StatusOr<std::unique_ptr<Run>> Create(const LatePhase& late_phase, int threads,
                                                     const Settings& settings = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Sets all variables to their initial values, t = 0.
  [[nodiscard]] absl::Status Initialize();

  // One minibatch: at step T0 spawns first; drops the gradients of a cycle that ends unfinished;
  // trains; takes an SWA sample if one is due. If it fails after spawning, the members stay, and
  // repeating it does not spawn again. Returns what `fetches` name. The names of feeds and fetches
  // are looked up when they change, so a loop over minibatches passes them in the same order.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Step(const Feeds& feeds,
                                                       absl::Span<const std::string> fetches = {});

  // Whether this process trains without others.
  bool alone() const { return workers_ == nullptr; }
  // With other workers (optimizers/workers.h): makes the next step tell all of them to stop, and
  // whether the last step told this one to. All are told by the same step.
  void TellToStop() { tells_to_stop_ = true; }
  bool told_to_stop() const { return told_to_stop_; }

  // Anything else in the graph, such as an evaluation.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Fetch(const Feeds& feeds,
                                                        absl::Span<const std::string> fetches);

  // Called before weights that were never trained as such (collapsed, SWA) are evaluated, once
  // per set and step: the place to re-estimate BatchNorm statistics, into variables of their own
  // (AddState).
  using Reestimate = std::function<absl::Status(Run*, WeightSet)>;
  void OnEvaluation(Reestimate reestimate) { reestimate_ = std::move(reestimate); }

  // Calls OnEvaluation's function if it is due. Evaluate does so too; with other workers all of
  // them must call it, even one that has nothing to evaluate.
  [[nodiscard]] absl::Status PrepareEvaluation(WeightSet set);

  // Fetches what was built from LatePhase::Read(..., set), after OnEvaluation's function if it is
  // due.
  absl::StatusOr<std::vector<tensorflow::Tensor>> Evaluate(WeightSet set, const Feeds& feeds,
                                                           absl::Span<const std::string> fetches);

  // Replaces numbers, equally many on every worker, by their sums over the workers; alone, leaves
  // them as they are. So each may compute a part of an evaluation and have zeros for the rest.
  [[nodiscard]] absl::Status SumOverWorkers(absl::Span<double> numbers);

  int64_t step() const { return step_; }
  const LatePhaseOptions& options() const { return options_; }

  // Refuses, and writes nothing, if a weight is no longer finite: the last checkpoint stays good.
  // Of several workers the first one writes, and all return what became of it. The same holds for
  // reading a checkpoint.
  [[nodiscard]] absl::Status Save(const std::string& dir);
  // Restores the newest checkpoint. Returns a note if results will differ by rounding from those of
  // an uninterrupted run, else an empty string.
  absl::StatusOr<std::string> Restore(const std::string& dir);

  // Starts from the weights and statistics of another run's newest checkpoint, t = 0, slots zero.
  // Its members, if they have been spawned, are collapsed; here every row becomes their mean.
  [[nodiscard]] absl::Status StartFrom(const std::string& dir);

  // Continues from where another run of the same network with one member stood, at T0 or before: t,
  // slots and states are kept, and its member is φ0. Until T0 both are the same model, so this
  // equals a run of its own from the start.
  [[nodiscard]] absl::Status Fork(const std::string& dir);

  // Sets variables to given values: weights from elsewhere. Others keep theirs. Names, types and
  // shapes must be those of variables of the run; else nothing is set.
  [[nodiscard]] absl::Status Assign(const std::map<std::string, tensorflow::Tensor>& variables);

  // Every variable that a checkpoint holds.
  const std::vector<SavedVariable>& saved() const { return saved_; }

  // Where the ops of a minibatch run, known after the first Step: device -> op types. Empty with
  // several workers.
  const std::map<std::string, std::set<std::string>>& placement() const { return placement_; }

  // A checkpoint, and where it is.
  struct NewestCheckpoint {
    std::string path;
    CheckpointState state;
  };

 private:
  Run(const LatePhase& late_phase, int threads, Settings settings);

  // The train target with its feeds and fetches, looked up.
  struct TrainCall {
    std::vector<std::string> feeds, fetches;
    bool reports_placement;
    tensorflow::Session::CallableHandle handle;
  };

  // The training step with these feeds and fetches: train_call_, which is made for them first.
  [[nodiscard]] absl::StatusOr<tensorflow::Session::CallableHandle> TrainCallFor(
      const Feeds& feeds, absl::Span<const std::string> fetches);
  void ReleaseTrainCall();
  // An error of the session, in words if other workers are gone.
  absl::Status Explain(const absl::Status& status) const;
  // Adds what workers tell each other to the feeds and fetches of a step.
  Feeds WithStop(const Feeds& feeds) const;
  std::vector<std::string> WithStop(absl::Span<const std::string> fetches) const;
  // The state as a checkpoint holds it: the rows of all workers.
  absl::StatusOr<CheckpointState> Capture();
  // The newest checkpoint of a folder, with this worker's rows.
  absl::StatusOr<NewestCheckpoint> ReadNewest(const std::string& dir) const;
  // Spawns the members at T0, if they do not exist yet.
  [[nodiscard]] absl::Status Spawn();
  // Converts what another version wrote to what this one would have written.
  void Modernize(CheckpointState* state) const;

  LatePhaseOptions options_;
  std::string zero_, train_, spawn_, drop_, swa_;
  std::vector<SavedVariable> saved_;
  Settings settings_;
  int threads_;
  tensorflow::DataType dtype_;
  Workers* workers_;  // null: this process alone
  std::string stop_feed_, stop_fetch_;
  bool tells_to_stop_ = false, told_to_stop_ = false;
  int64_t step_ = 0;
  Reestimate reestimate_;
  std::map<WeightSet, int64_t> reestimated_at_;
  std::map<std::string, std::set<std::string>> placement_;
  std::unique_ptr<tensorflow::Session> session_;
  std::optional<TrainCall> train_call_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_RUN_H_

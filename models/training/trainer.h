// The one trainer: runs the minibatches of a task, logs, evaluates, writes checkpoints, stops when
// asked, resumes after a kill.
//
// What is trained (network, data, metric) is a Task; how its weights move is the LatePhase inside
// its graph (optimizers/). All that a run needs to resume is in its checkpoint, so a run that was
// interrupted at any moment and resumed ends in the same bits as one that was not.
#ifndef LATE_PHASE_MODELS_TRAINING_TRAINER_H_
#define LATE_PHASE_MODELS_TRAINING_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/training/member_metrics.h"
#include "models/training/recipe.h"
#include "models/training/run_folder.h"
#include "optimizers/run.h"

namespace late_phase {

enum class Split { kValidation, kTest };
const char* SplitName(Split split);

// A network with its data. Its graph belongs to the Run that is passed in.
class Task {
 public:
  virtual ~Task() = default;

  virtual const TrainPlan& plan() const = 0;
  int64_t steps_per_epoch() const { return plan().steps_per_epoch; }
  int64_t members() const { return plan().late_phase.members; }  // K, 1 without late-phase weights

  // The number of members whose networks can be evaluated at this step; 1: there are none.
  virtual int64_t MembersAt(int64_t step) const;

  virtual int64_t parameters() const = 0;     // weights of one member's network
  virtual double items_per_step() const = 0;  // characters, images; the epoch's mean
  virtual std::vector<Split> splits() const = 0;
  virtual Split watched() const { return Split::kValidation; }  // evaluated during training

  // The loss of a minibatch, a scalar of type float or double; and the mean loss of the minibatches
  // since the epoch began, a double (EpochMean).
  virtual std::string loss() const = 0;
  virtual std::string epoch_loss() const = 0;

  // A session of the graph. The run may call functions of the task, which must
  // outlive it.
  virtual absl::StatusOr<std::unique_ptr<Run>> MakeRun(int threads) = 0;

  // The feeds of minibatch t, a function of t alone. Called by one thread at a time, not always the
  // same one.
  virtual absl::StatusOr<Run::Feeds> Batch(int64_t t) = 0;

  // What is trained, and what a minibatch hands on to the next one.
  virtual const LatePhase& weights() const = 0;
  virtual std::vector<CarriedState> carried() const { return {}; }

  // A mean training loss in the task's own terms.
  virtual Metrics LossMetrics(double loss) const = 0;
  // `member` is used by WeightSet::kCurrent.
  virtual absl::StatusOr<Metrics> Evaluate(Run* run, Split split, WeightSet set,
                                           int32_t member = 0) = 0;
  // Each member's metrics, and those of their averaged predictions.
  struct MemberMetrics {
    std::vector<Metrics> members;
    Metrics ensemble;
  };
  virtual absl::StatusOr<MemberMetrics> EvaluateMembers(Run* run, Split split) = 0;
};

// The mean of a loss over the epoch so far, kept in a variable so that it survives a kill.
struct EpochMean {
  EpochMean(LatePhase* late_phase, tensorflow::Output loss, int64_t steps_per_epoch);
  tensorflow::Operation update;  // to be passed to Minimize
  tensorflow::Output mean;       // double []
};

// The progress of a run.
struct TrainProgress {
  int64_t step, steps;
  double epoch;
  Metrics metrics;  // LossMetrics, over the minibatches since the last line
  double items_per_second, seconds_left;
};

struct TrainOptions {
  int64_t steps = 0;        // in total
  int64_t log_every = 100;  // minibatches between lines
  // Minibatches between evaluations on the watched split; 0: none. Not done after the last step.
  int64_t evaluate_every = 0;
  int64_t checkpoint_every = 0;  // minibatches; one is also written at the start and at the end
  // The state at this step is kept in the folder `fork`, for a run with more members to start from;
  // -1: nowhere.
  int64_t fork_at = -1;
  std::function<void()> forked;  // called when it has been written
  std::string advice;            // ends the message about a loss that is not finite
  std::function<bool()> stop;    // asked after every minibatch; of several workers any may say so
  std::function<void(const TrainProgress&)> progress;
};

struct TrainEnd {
  bool stopped = false;   // on request, before all steps were done; the state is saved
  double seconds = 0;     // of training, including those before a resume
  double input_wait = 0;  // share of this process's training time spent waiting for minibatches
};

// Trains from where `run` stands to the end and leaves a checkpoint there.
absl::StatusOr<TrainEnd> Train(Task* task, Run* run, RunFolder* folder,
                               const TrainOptions& options);

// Logs how far the members are apart (models/training/member_metrics.h); nothing while there are
// none. `minibatch` is Task::Batch, or what guards it.
[[nodiscard]] absl::Status LogMembers(const Task& task, const MakeMinibatch& minibatch, Run* run,
                                      RunFolder* folder);

// Whether SWA has taken a sample by this step.
bool HasAverage(const LatePhaseOptions& options, int64_t step);

// Whether the members have been spawned by this step, and the one that was trained last: 0 before.
bool HasMembers(const LatePhaseOptions& options, int64_t step);
int32_t LastMember(const LatePhaseOptions& options, int64_t step);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_TRAINER_H_

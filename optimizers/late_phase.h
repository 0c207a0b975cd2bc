// Algorithm 1 for C++ graphs: declare weights, build a loss from them, get one train target.
//
//   LatePhase late_phase(scope, {.members = 10, .start = 30 * epoch, .sigma = 0.35});
//   Output R = late_phase.AddBase("R", initial_R);                       // θ
//   Output u = late_phase.AddMembers("u", initial_u, MemberRead::kStack);  // φ, [K, …]
//   … model(R, u, late_phase.member()) … loss
//   late_phase.Minimize(loss, UpdateRule::Adam(1e-3), UpdateRule::Adam(1e-3));
//
// A late-phase variable is [K, …] from the start; row 0 is φ0 until T0 = `start`. What must happen
// between steps (spawning at T0, SWA) is a target of its own that optimizers/run.h calls when it is
// due, and so is dropping the gradients of an unfinished cycle. This class only builds the graph,
// of parts that have a file each:
//
//   late_phase_options.h  the settings          graph_context.h  scopes, and the clock t
//   variables.h           what checkpoints see  trained_weights.h  what was declared
//   updates.h             U_θ and U_φ           spawning.h       the members at T0
//   averages.h            SWA and SWAG          weight_set.h     what can be read
//   workers.h             several processes
#ifndef LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_
#define LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "optimizers/graph_context.h"
#include "optimizers/initial_value.h"
#include "optimizers/late_phase_options.h"
#include "optimizers/spawning.h"
#include "optimizers/trained_weights.h"
#include "optimizers/update_rule.h"
#include "optimizers/variables.h"
#include "optimizers/weight_set.h"
#include "optimizers/workers.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

// How the model reads a late-phase variable, and therefore what the gradient is taken of.
enum class MemberRead {
  kStack,  // all of [K, …], for ops that take `member` themselves
  kRow     // the current member's row: no [K, …] gradient is ever made
};

// What a state belongs to, and so whether it is taken over when a run starts from another's
// weights.
enum class StateKind {
  kRun,      // carried states, sums: starts afresh
  kModel,    // running statistics: goes wherever the weights go
  kConstant  // never written, such as a vocabulary: weights of a run with another one are of no use
};

class LatePhase {
 public:
  // `scope` names the graph; T is float or double. `workers` train the model together, each with
  // its share of every minibatch (optimizers/workers.h); null: this process alone. They must
  // outlive this object and its runs.
  LatePhase(const tensorflow::Scope& scope, const LatePhaseOptions& options,
            tensorflow::DataType dtype = tensorflow::DT_FLOAT, Workers* workers = nullptr);

  // Declares a weight and returns what the model reads. Errors end in the scope's status.
  tensorflow::Output AddBase(const std::string& name, const InitialValue& initial);
  tensorflow::Output AddMembers(const std::string& name, const InitialValue& initial_row,
                                MemberRead read);
  // Exempts a weight that has been declared from weight decay.
  void ExemptFromDecay(const std::string& name);
  // Declares a variable that is not trained but belongs to the run's state: carried states, running
  // statistics. Returns its handle; the model reads and writes it.
  tensorflow::Output AddState(const std::string& name, const InitialValue& initial,
                              StateKind kind = StateKind::kRun);
  // A state of the model with a row per member, [K, …], such as BatchNorm's running statistics: at
  // T0 every row becomes row 0.
  tensorflow::Output AddMemberState(const std::string& name, const InitialValue& initial_row);
  // A state of StateKind::kRun that starts at zero and has a row for each part of the minibatch, of
  // which this worker has its share, in the same places. A checkpoint has all rows.
  tensorflow::Output AddDividedState(const std::string& name, tensorflow::DataType dtype,
                                     const tensorflow::TensorShape& joint_shape);

  tensorflow::Output member() const { return clock_.member; }  // int32 [], of this minibatch
  tensorflow::Output step() const { return clock_.step; }      // int64 [], t

  // The mean over all workers of values, of the weights' type, that each computes from its share of
  // a minibatch: losses, statistics. The values themselves if this process trains alone. One sum
  // for all of them.
  std::vector<tensorflow::Output> MeanOverWorkers(const std::vector<tensorflow::Output>& values);

  // Turns a loss into the train target: gradients, clipping, updates, t + 1. The gradients are the
  // means over all workers of those of each one's own loss. Operations in `before`
  // (such as writing states back) are done before t advances. All of this is written only once
  // everything that is to be written has been computed, so a minibatch that cannot be computed
  // changes nothing, except for operations in `before` that the loss itself waits for. Call
  // once.
  [[nodiscard]] absl::Status Minimize(tensorflow::Output loss, const UpdateRule& base,
                                      const UpdateRule& members,
                                      const std::vector<tensorflow::Operation>& before = {});

  // A weight or a state as it is to be evaluated, of the shape of the base weight or of a row;
  // reads only, so training is not affected. `which` is used by kCurrent. States have no averages
  // over time.
  tensorflow::Output Read(const std::string& name, WeightSet set, tensorflow::Input which = 0);

  // All members of a weight or state that has any, [K, …]; before T0 each row is row 0.
  tensorflow::Output ReadMembers(const std::string& name);

  // The weights that were declared, in their order; states are not among them.
  const std::vector<TrainedWeight>& weights() const { return weights_; }
  std::vector<std::string> weight_names() const;

  // Names of the nodes to run. Empty before Minimize.
  const std::string& zero_target() const { return zero_; }  // sets variables that start at zero
  const std::string& train_target() const { return train_; }
  const std::string& spawn_target() const { return spawn_; }  // empty: nothing to spawn
  const std::string& drop_target() const { return drop_; }    // empty: nothing is ever dropped
  const std::string& swa_target() const { return swa_; }      // empty: no SWA
  // Of the train target, if there are workers: a number to feed, not 0 if this worker asks all of
  // them to stop, and one to fetch, not 0 if any did.
  const std::string& stop_feed() const { return stop_feed_; }
  const std::string& stop_fetch() const { return stop_fetch_; }

  // Everything a checkpoint holds.
  const std::vector<SavedVariable>& saved() const { return variables_.saved(); }
  // The settings and rules that a checkpoint must agree with.
  Settings Text() const;
  const LatePhaseOptions& options() const { return graph_.options; }
  tensorflow::DataType dtype() const { return graph_.dtype; }
  Workers* workers() const { return workers_; }  // null: this process alone
  const tensorflow::Scope& scope() const { return graph_.scope; }

 private:
  // Checks whether Minimize may be called now; errors go into the scope's status.
  void CheckMinimize(const UpdateRule& base, const UpdateRule& members) const;
  // The gradients by every weight, clipped. Empty after an error, which is in the scope's status.
  std::vector<tensorflow::Output> Gradients(tensorflow::Output loss);
  // Their means over all workers; of stacks, only the member's row. The wish to stop goes with
  // them, so that it takes no sum of its own.
  std::vector<tensorflow::Output> JointGradients(const std::vector<tensorflow::Output>& gradients);
  // The operations that update the weights, each in its turn after `computed`.
  std::vector<tensorflow::Operation> UpdateWeights(const UpdateRule& base,
                                                   const UpdateRule& members,
                                                   const std::vector<tensorflow::Output>& gradients,
                                                   const tensorflow::Operation& computed);
  // The operations that clear the sums of gradients.
  std::vector<tensorflow::Operation> DropSums() const;
  // The operations that make the members.
  std::vector<tensorflow::Operation> SpawnMembers() const;
  tensorflow::Output ReadWeight(const TrainedWeight& weight, WeightSet set,
                                tensorflow::Input which);
  tensorflow::Output ReadRows(tensorflow::Output handle, tensorflow::DataType dtype, WeightSet set,
                              tensorflow::Input which);
  // bool: the members exist.
  tensorflow::Output Spawned();
  std::string Group(const std::string& name,
                    const std::vector<tensorflow::Operation>& operations) const;

  GraphContext graph_;
  Variables variables_;
  TrainingClock clock_;
  Workers* workers_;
  SpawnMark spawned_;
  std::vector<TrainedWeight> weights_;
  std::vector<ModelState> states_;
  std::string zero_, train_, spawn_, drop_, swa_, stop_feed_, stop_fetch_;
  std::string base_text_, members_text_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_

// Algorithm 1 for C++ graphs: declare weights, build a loss from them, get one train target.
//
//   LatePhase late_phase(scope, {.members = 10, .start = 30 * epoch, .sigma = 0.35});
//   Output R = late_phase.AddBase("R", initial_R);                       // θ
//   Output u = late_phase.AddMembers("u", initial_u, MemberRead::kStack);  // φ, [K, …]
//   … model(R, u, late_phase.member()) … loss
//   late_phase.Minimize(loss, UpdateRule::Adam(1e-3), UpdateRule::Adam(1e-3));
//
// One static graph serves the whole run. A late-phase variable is [K, …] from the start; row 0 is
// φ0 until T0 = `start`. Member and position in the cycle come from the step counter t: before T0
// the cycle is 1 and every step applies the base at once; from T0 on, minibatch t uses member
// (t − T0) mod K. What must happen between steps (spawning at T0, SWA) is a target of its own that
// optimizers/run.h calls when it is due. This class only builds the graph.
//
// The controls of the paper are settings: gradient accumulation without members is members = 1 with
// cycle = K, where every weight is accumulated; a frozen base is `freeze_base`; a full
// late-phase deep ensemble declares every weight with AddMembers; T0 = 0 is start = 0.
#ifndef LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_
#define LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "optimizers/initial_value.h"
#include "optimizers/update_rule.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

struct LatePhaseOptions {
  int64_t members = 1;  // K
  int64_t start = 0;    // T0, in minibatches
  // Minibatches per base update from T0 on; 0: members. With one member there is nothing to train
  // in turn, and the weights declared with AddMembers take the same steps.
  int64_t cycle = 0;
  double sigma = 0;       // σ0 of the noise at spawning
  double base_scale = 1;  // γ, from T0 on
  // On the base's weight decay, from T0 on. The paper's 1 lets the decay act once in a cycle,
  // against the gradients of all its minibatches; `cycle` times `base_scale` keeps the weights at
  // which gradient and decay of SGD balance where they were before T0.
  double base_decay_scale = 1;
  Schedule rate_scale = 1.0;  // on every learning rate
  bool copy_slots = false;   // at T0 members inherit φ0's optimizer slots; else they start at zero
  bool freeze_base = false;  // from T0 on the base stays as it is
  double clip_norm = 0;      // per minibatch, by the global norm of all gradients; 0: no clipping
  int64_t swa_start = -1;    // first sample after this many minibatches; -1: no SWA
  int64_t swa_every = 1;     // minibatches between samples
  // SWAG: deviations from the average that are kept, of the newest samples; 0: no SWAG. Only
  // without members, whose mean the paper compares with it (optimizers/swag.h).
  int64_t swag_rank = 0;
  int64_t seed[2] = {0, 0};  // of the spawning noise

  absl::Status Check() const;
  // (name, value) of every setting.
  std::vector<std::pair<std::string, std::string>> Text() const;
};

// How the model reads a late-phase variable, and so what the gradient is of.
enum class MemberRead {
  kStack,  // all of [K, …], for ops that take `member` themselves
  kRow     // the current member's row: no [K, …] gradient is ever made
};

// To what a state belongs, and so whether it goes along when a run starts from another's weights.
enum class StateOf {
  kRun,      // carried states, sums: begins anew
  kModel,    // running statistics: goes wherever the weights go
  kConstant  // never written, as a vocabulary: weights of a run with another one are of no use
};

// Which weights to evaluate.
enum class WeightSet {
  kCurrent,    // the base, and member `which` of the late-phase weights
  kCollapsed,  // the mean over the members; before T0 row 0
  kSwa         // the averages over time, collapsed
};
const char* WeightSetName(WeightSet set);  // "current", "collapsed", "swa"

class LatePhase {
 public:
  // `scope` names the graph; T is float or double.
  LatePhase(const tensorflow::Scope& scope, const LatePhaseOptions& options,
            tensorflow::DataType dtype = tensorflow::DT_FLOAT);

  // Declares a weight and returns what the model reads. Errors end in the scope's status.
  tensorflow::Output AddBase(const std::string& name, const InitialValue& initial);
  tensorflow::Output AddMembers(const std::string& name, const InitialValue& initial_row,
                                MemberRead read);
  // Makes a weight that was declared before one that no rule decays.
  void ExemptFromDecay(const std::string& name);
  // Declares a variable that is not trained but belongs to the run's state: carried states, running
  // statistics. Returns its handle; the model reads and writes it.
  tensorflow::Output AddState(const std::string& name, const InitialValue& initial,
                              StateOf of = StateOf::kRun);
  // One of the model with a row per member, [K, …]: at T0 every row becomes row 0. BatchNorm's
  // running statistics.
  tensorflow::Output AddMemberState(const std::string& name, const InitialValue& initial_row);

  tensorflow::Output member() const { return member_; }  // int32 [], the member of this minibatch
  tensorflow::Output step() const { return step_; }      // int64 [], t

  // Turns a loss into the train target: gradients, clipping, updates, t + 1. Operations in `before`
  // (writing back of states) are done before t advances. All of this is written only once
  // everything that is to be written has been computed, so a minibatch that cannot be computed
  // changes nothing; the exception are operations in `before` that the loss itself waits for. Call
  // once.
  absl::Status Minimize(tensorflow::Output loss, const UpdateRule& base, const UpdateRule& members,
                        const std::vector<tensorflow::Operation>& before = {});

  // A weight or a state as it is to be evaluated, of the shape of the base weight or of a row;
  // reads only, so training never notices. `which` is used by kCurrent. States have no averages
  // over time.
  tensorflow::Output Read(const std::string& name, WeightSet set, tensorflow::Input which = 0);

  // The weights that were declared, in their order; states are not among them.
  std::vector<std::string> weight_names() const;

  // Names of the nodes to run. Empty before Minimize.
  const std::string& zero_target() const { return zero_; }  // sets variables that start at zero
  const std::string& train_target() const { return train_; }
  const std::string& spawn_target() const { return spawn_; }  // empty: nothing to spawn
  const std::string& swa_target() const { return swa_; }      // empty: no SWA

  // Everything a checkpoint holds: the name of each variable, the node that reads it, and the
  // placeholder and target that restore it. A value that is not zero starts through these, too.
  enum class Kind {
    kModel,     // a base weight, or a state of StateOf::kModel
    kMembers,   // the same with a row per member
    kState,     // of StateOf::kRun
    kConstant,  // of StateOf::kConstant
    kInternal   // not declared: slots, sums, averages and counters
  };
  struct Saved {
    std::string name, read, placeholder, restore;
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
    Kind kind;
    InitialValue::Make initial;  // empty: zero_target sets it
  };
  const std::vector<Saved>& saved() const { return saved_; }
  // The settings and rules that a checkpoint must agree with.
  std::vector<std::pair<std::string, std::string>> Text() const;
  const LatePhaseOptions& options() const { return options_; }
  const tensorflow::Scope& scope() const { return scope_; }

 private:
  struct Weight {
    std::string name;
    bool late_phase = false;
    bool reads_stack = false;
    bool decays = true;
    tensorflow::Output handle, value;  // value: what the model reads, and the gradient is of
    tensorflow::TensorShape shape;     // of the variable
    tensorflow::Output average;        // handle; SWA only
    // Slots of the members, to be reset at T0.
    std::vector<tensorflow::Output> slots;
    tensorflow::Output count;
  };

  tensorflow::Output Variable(const tensorflow::Scope& scope, const std::string& name,
                              const InitialValue& initial, Kind kind);
  tensorflow::Output ZeroVariable(const std::string& name, tensorflow::DataType dtype,
                                  const tensorflow::TensorShape& shape);
  tensorflow::Output Counter(const std::string& name);  // int64 [], on the host
  // int64 [], 1 once the members are spawned. Declared when it is first asked for.
  tensorflow::Output Spawned();
  // The numbers of a rule in the graph, the same for all weights that follow it.
  struct RuleValues {
    tensorflow::Output lr, decay, scale, momentum, beta1, beta2, epsilon;
  };

  tensorflow::Output Scalar(double value);
  tensorflow::Output ScheduleValue(const Schedule& schedule, bool zero_when_frozen);
  RuleValues ValuesOf(const UpdateRule& rule, bool base);
  // Whether the weight's gradients are summed over a cycle; else its members are trained in turn.
  bool Accumulates(const Weight& weight) const;
  // `scope` has what the update must wait for.
  tensorflow::Operation Update(const tensorflow::Scope& scope, Weight* weight,
                               const UpdateRule& rule, const RuleValues& values,
                               tensorflow::Output gradient);
  // What is done when everything that a minibatch writes has been computed. Operations in `before`
  // wait for it.
  tensorflow::Operation Computed(tensorflow::Output loss,
                                 const std::vector<tensorflow::Output>& gradients,
                                 const std::vector<tensorflow::Operation>& before);
  tensorflow::Output ReadRows(tensorflow::Output handle, tensorflow::DataType dtype, WeightSet set,
                              tensorflow::Input which);
  std::vector<tensorflow::Output> Clip(const std::vector<tensorflow::Output>& gradients);
  tensorflow::Operation SpawnWeight(const Weight& weight, int64_t index);
  // Takes a sample of the weight into its average and, for SWAG, its further moments; n samples
  // were taken before.
  tensorflow::Operation SampleWeight(Weight* weight, tensorflow::Output n);
  std::string Group(const std::string& name, const std::vector<tensorflow::Operation>& operations);

  tensorflow::Scope scope_;
  // Counters, schedules and all other scalars: the ops take them from host memory on every device,
  // and what a GPU has computed the host must wait for.
  tensorflow::Scope host_;
  LatePhaseOptions options_;
  tensorflow::DataType dtype_;
  struct State {
    std::string name;
    bool of_members;
    tensorflow::Output handle;
    tensorflow::DataType dtype;
  };

  std::vector<Weight> weights_;
  std::vector<State> states_;
  std::vector<tensorflow::Operation> zeros_;
  std::vector<Saved> saved_;
  tensorflow::Output step_handle_, step_, time_;  // t as int64 handle, int64, double
  tensorflow::Output late_;                       // bool: t >= T0
  tensorflow::Output member_, position_, cycle_;  // row; place in the cycle and its length
  tensorflow::Output spawned_;                    // handle, once it is declared
  std::string zero_, train_, spawn_, swa_;
  std::string base_text_, members_text_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_LATE_PHASE_H_

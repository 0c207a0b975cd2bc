#include "optimizers/late_phase.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "ops/member_rows.h"
#include "ops/update_rules.h"
#include "optimizers/number_text.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/cc/ops/no_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

absl::Status Complain(const char* name, const char* rule, double value) {
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must be ", rule, ". Received: ", name, "=", value));
}

// Made when it is asked for: a constant would stay in the graph.
Output ZerosInGraph(const tensorflow::Scope& scope, tensorflow::DataType dtype,
                    const TensorShape& shape) {
  Tensor dims(tensorflow::DT_INT64, {shape.dims()});
  for (int d = 0; d < shape.dims(); ++d) dims.flat<int64_t>()(d) = shape.dim_size(d);
  return tf_ops::Fill(scope, tf_ops::Const(scope, dims),
                      tf_ops::Const(scope, Zeros(dtype, TensorShape())));
}

// The node and all that it waits for.
std::set<const tensorflow::Node*> UpTo(const tensorflow::Node* last) {
  std::set<const tensorflow::Node*> found = {last};
  std::vector<const tensorflow::Node*> open = {last};
  while (!open.empty()) {
    const tensorflow::Node* node = open.back();
    open.pop_back();
    for (const tensorflow::Node* input : node->in_nodes()) {
      if (found.insert(input).second) open.push_back(input);
    }
  }
  return found;
}

}  // namespace

const char* WeightSetName(WeightSet set) {
  switch (set) {
    case WeightSet::kCurrent:
      return "current";
    case WeightSet::kCollapsed:
      return "collapsed";
    case WeightSet::kSwa:
      return "swa";
  }
  return "";
}

absl::Status LatePhaseOptions::Check() const {
  if (members < 1) return Complain("members", "at least 1", members);
  if (start < 0) return Complain("start", "at least 0", start);
  if (cycle < 0) return Complain("cycle", "at least 1, or 0 for `members`", cycle);
  if (cycle != 0 && members > 1 && cycle != members) {
    return Complain("cycle", "equal to `members`, or `members` 1", cycle);
  }
  if (!(sigma >= 0) || std::isinf(sigma)) return Complain("sigma", "finite and >= 0", sigma);
  if (!(base_scale > 0 && base_scale <= 1)) return Complain("base_scale", "in (0, 1]", base_scale);
  if (!(base_decay_scale >= 0) || std::isinf(base_decay_scale)) {
    return Complain("base_decay_scale", "finite and >= 0", base_decay_scale);
  }
  if (!(clip_norm >= 0) || std::isinf(clip_norm)) {
    return Complain("clip_norm", "finite and >= 0", clip_norm);
  }
  if (swa_start >= 0 && swa_start < start && members > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`swa_start` must not be before `start`, because members that do not exist "
                     "yet cannot be averaged. Received: swa_start=",
                     swa_start, ", start=", start));
  }
  if (swa_every < 1) return Complain("swa_every", "at least 1", swa_every);
  if (swag_rank < 0 || swag_rank == 1) {
    return Complain("swag_rank", "at least 2, or 0 for no SWAG", swag_rank);
  }
  if (swag_rank > 0 && swa_start < 0) {
    return Complain("swag_rank", "0 without SWA, whose samples it describes", swag_rank);
  }
  if (swag_rank > 0 && members > 1) {
    return Complain("swag_rank", "0 with members, because SWAG describes one model", swag_rank);
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> LatePhaseOptions::Text() const {
  std::vector<std::pair<std::string, std::string>> text = {
      {"members", absl::StrCat(members)},
      {"start", absl::StrCat(start)},
      {"cycle", absl::StrCat(cycle)},
      {"sigma", NumberText(sigma)},
      {"base_scale", NumberText(base_scale)},
      {"copy_slots", absl::StrCat(copy_slots)},
      {"freeze_base", absl::StrCat(freeze_base)},
      {"clip_norm", NumberText(clip_norm)},
      {"swa_start", absl::StrCat(swa_start)},
      {"swa_every", absl::StrCat(swa_every)},
      {"seed", absl::StrCat(seed[0], ",", seed[1])}};
  // What is not used is not mentioned: a run without it is the same as before there was any.
  if (swag_rank > 0) text.push_back({"swag_rank", absl::StrCat(swag_rank)});
  if (base_decay_scale != 1) {
    text.push_back({"base_decay_scale", NumberText(base_decay_scale)});
  }
  if (rate_scale.Text() != "1") text.push_back({"rate_scale", rate_scale.Text()});
  return text;
}

LatePhase::LatePhase(const tensorflow::Scope& scope, const LatePhaseOptions& options,
                     tensorflow::DataType dtype)
    : scope_(scope), host_(scope.WithDevice("/device:CPU:0")), options_(options), dtype_(dtype) {
  scope_.UpdateStatus(options_.Check());
  if (dtype != tensorflow::DT_FLOAT && dtype != tensorflow::DT_DOUBLE) {
    scope_.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`dtype` must be float or double. Received: dtype=", tensorflow::DataTypeString(dtype))));
  }
  if (!scope_.ok()) return;
  if (options_.cycle == 0) options_.cycle = options_.members;

  step_handle_ = Counter("late_phase/step");
  step_ = tf_ops::ReadVariableOp(host_, step_handle_, tensorflow::DT_INT64);
  time_ = tf_ops::Cast(host_, step_, tensorflow::DT_DOUBLE);
  auto number = [&](int64_t value) -> Output { return tf_ops::Const(host_, value); };
  late_ = tf_ops::GreaterEqual(host_, step_, number(options_.start));
  const auto since = tf_ops::Sub(host_, step_, number(options_.start));
  auto when_late = [&](Output value, int64_t before) -> Output {
    return tf_ops::Cast(host_, tf_ops::SelectV2(host_, late_, value, number(before)),
                        tensorflow::DT_INT32);
  };
  position_ = when_late(tf_ops::FloorMod(host_, since, number(options_.cycle)), 0);
  member_ = when_late(tf_ops::FloorMod(host_, since, number(options_.members)), 0);
  cycle_ = when_late(number(options_.cycle), 1);
}

Output LatePhase::Variable(const tensorflow::Scope& scope, const std::string& name,
                           const InitialValue& initial, Kind kind) {
  for (const Saved& saved : saved_) {
    if (saved.name == name) {
      scope_.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
          "`name` must be new. Received: name=", name, ", which is declared already")));
    }
  }
  if (!scope_.ok()) return Output();
  const Output handle = tf_ops::VarHandleOp(scope, initial.dtype, initial.shape,
                                            tf_ops::VarHandleOp::SharedName(name));
  if (initial.make == nullptr) {
    zeros_.push_back(
        tf_ops::AssignVariableOp(scope, handle, ZerosInGraph(scope, initial.dtype, initial.shape))
            .operation);
  }
  const auto read = tf_ops::ReadVariableOp(scope, handle, initial.dtype);
  const auto placeholder =
      tf_ops::Placeholder(scope, initial.dtype, tf_ops::Placeholder::Shape(initial.shape));
  const auto restore = tf_ops::AssignVariableOp(scope, handle, placeholder);
  if (!scope_.ok()) return Output();
  saved_.push_back({name, read.value.name(), placeholder.output.name(),
                    restore.operation.node()->name(), initial.dtype, initial.shape, kind,
                    initial.make});
  return handle;
}

Output LatePhase::ZeroVariable(const std::string& name, tensorflow::DataType dtype,
                               const TensorShape& shape) {
  return Variable(scope_, name, InitialValue::Zero(dtype, shape), Kind::kInternal);
}

Output LatePhase::Counter(const std::string& name) {
  return Variable(host_, name, InitialValue::Zero(tensorflow::DT_INT64, TensorShape()),
                  Kind::kInternal);
}

Output LatePhase::Spawned() {
  if (spawned_.node() == nullptr) spawned_ = Counter("late_phase/spawned");
  return spawned_;
}

Output LatePhase::AddState(const std::string& name, const InitialValue& initial, StateOf of) {
  const Kind kind = of == StateOf::kModel      ? Kind::kModel
                    : of == StateOf::kConstant ? Kind::kConstant
                                               : Kind::kState;
  states_.push_back({name, false, Variable(scope_, name, initial, kind), initial.dtype});
  return states_.back().handle;
}

// Rows other than 0 are undefined before T0; a copy of it is as good as anything, and finite.
Output LatePhase::AddMemberState(const std::string& name, const InitialValue& initial_row) {
  const InitialValue stack = initial_row.Stacked(options_.members);
  states_.push_back({name, true, Variable(scope_, name, stack, Kind::kMembers), stack.dtype});
  return states_.back().handle;
}

Output LatePhase::AddBase(const std::string& name, const InitialValue& initial) {
  Weight weight;
  weight.name = name;
  weight.handle = Variable(scope_, name, initial, Kind::kModel);
  if (!scope_.ok()) return Output();
  weight.value = tf_ops::ReadVariableOp(scope_.WithOpName(name, "/value"), weight.handle, dtype_);
  weight.shape = initial.shape;
  weights_.push_back(weight);
  return weight.value;
}

Output LatePhase::AddMembers(const std::string& name, const InitialValue& initial_row,
                             MemberRead read) {
  const InitialValue stack = initial_row.Stacked(options_.members);
  Weight weight;
  weight.name = name;
  weight.late_phase = true;
  weight.reads_stack = read == MemberRead::kStack;
  weight.handle = Variable(scope_, name, stack, Kind::kMembers);
  if (!scope_.ok()) return Output();
  const tensorflow::Scope named = scope_.WithOpName(name, "/value");
  weight.value = read == MemberRead::kRow
                     ? ops::ReadMember(named, weight.handle, member_, dtype_)
                     : Output(tf_ops::ReadVariableOp(named, weight.handle, dtype_));
  weight.shape = stack.shape;
  weights_.push_back(weight);
  return weight.value;
}

void LatePhase::ExemptFromDecay(const std::string& name) {
  for (Weight& weight : weights_) {
    if (weight.name != name) continue;
    weight.decays = false;
    return;
  }
  scope_.UpdateStatus(absl::InvalidArgumentError(
      absl::StrCat("`name` must be a declared weight. Received: name=", name)));
}

Output LatePhase::Scalar(double value) {
  return tf_ops::Cast(host_, tf_ops::Const(host_, value), dtype_);
}

Output LatePhase::ScheduleValue(const Schedule& schedule, bool zero_when_frozen) {
  Output value = schedule.InGraph(host_, time_);
  if (zero_when_frozen) {
    value = tf_ops::SelectV2(host_, late_, tf_ops::Const(host_, 0.0), value);
  }
  return tf_ops::Cast(host_, value, dtype_);
}

LatePhase::RuleValues LatePhase::ValuesOf(const UpdateRule& rule, bool base) {
  RuleValues values;
  values.lr = ScheduleValue(rule.lr, base && options_.freeze_base);
  if (options_.rate_scale.Text() != "1") {
    values.lr = tf_ops::Mul(host_, values.lr, ScheduleValue(options_.rate_scale, false));
  }
  values.decay = ScheduleValue(rule.weight_decay, false);
  if (base && options_.base_decay_scale != 1) {
    values.decay =
        tf_ops::Mul(host_, values.decay,
                    tf_ops::SelectV2(host_, late_, Scalar(options_.base_decay_scale), Scalar(1.0)));
  }
  values.scale = tf_ops::SelectV2(host_, late_, Scalar(options_.base_scale), Scalar(1.0));
  values.momentum = Scalar(rule.momentum);
  values.beta1 = Scalar(rule.beta1);
  values.beta2 = Scalar(rule.beta2);
  values.epsilon = Scalar(rule.epsilon);
  return values;
}

bool LatePhase::Accumulates(const Weight& weight) const {
  return !weight.late_phase || (options_.members == 1 && options_.cycle > 1);
}

Operation LatePhase::Update(const tensorflow::Scope& scope, Weight* weight, const UpdateRule& rule,
                            const RuleValues& values, Output gradient) {
  const bool base = Accumulates(*weight);
  const Output &lr = values.lr, &scale = values.scale;
  const Output decay = weight->decays ? values.decay : Scalar(0.0);
  // A base update takes the gradient of the whole variable, here a stack of one row.
  if (base && weight->late_phase && !weight->reads_stack) {
    gradient = tf_ops::ExpandDims(scope_, gradient, 0);
  }
  auto slot = [&](const char* suffix) {
    const Output handle =
        ZeroVariable(absl::StrCat(weight->name, "/", suffix), dtype_, weight->shape);
    weight->slots.push_back(handle);
    return handle;
  };
  // With a cycle of 1 the op does not look at the sum.
  Output sum = weight->handle;
  if (base && options_.cycle > 1) {
    sum = ZeroVariable(weight->name + "/sum", dtype_, weight->shape);
  }
  switch (rule.kind) {
    case UpdateRule::Kind::kSgd:
      return base ? ops::BaseApplySgd(scope, weight->handle, sum, position_, cycle_, scale, lr,
                                      decay, gradient)
                  : ops::MemberApplySgd(scope, weight->handle, member_, lr, decay, gradient);
    case UpdateRule::Kind::kMomentum: {
      const Output accum = slot("momentum");
      return base ? ops::BaseApplyMomentum(scope, weight->handle, accum, sum, position_, cycle_,
                                           scale, lr, values.momentum, decay, gradient,
                                           rule.nesterov)
                  : ops::MemberApplyMomentum(scope, weight->handle, accum, member_, lr,
                                             values.momentum, decay, gradient, rule.nesterov);
    }
    case UpdateRule::Kind::kAdam: {
      const Output m = slot("m"), v = slot("v");
      const TensorShape counts = base ? TensorShape() : TensorShape({options_.members});
      weight->count = ZeroVariable(weight->name + "/count", tensorflow::DT_INT64, counts);
      return base ? ops::BaseApplyAdam(scope, weight->handle, m, v, weight->count, sum, position_,
                                       cycle_, scale, lr, values.beta1, values.beta2,
                                       values.epsilon, decay, gradient)
                  : ops::MemberApplyAdam(scope, weight->handle, m, v, weight->count, member_, lr,
                                         values.beta1, values.beta2, values.epsilon, decay,
                                         gradient);
    }
  }
  return Operation();
}

// g · clip / max(‖g‖, clip), ‖g‖ over all gradients of the minibatch.
std::vector<Output> LatePhase::Clip(const std::vector<Output>& gradients) {
  std::vector<Output> halves;
  for (size_t i = 0; i < gradients.size(); ++i) {
    // Of a stack only the member's row is not zero; it alone is summed, so that the norm's rounding
    // does not depend on K.
    const Output gradient =
        weights_[i].reads_stack ? tf_ops::GatherV2(scope_, gradients[i], member_, 0) : gradients[i];
    halves.push_back(tf_ops::L2Loss(scope_, gradient));  // ½ ‖g‖²
  }
  const auto norm =
      tf_ops::Sqrt(scope_, tf_ops::Mul(scope_, tf_ops::AddN(scope_, halves), Scalar(2.0)));
  const Output clip = Scalar(options_.clip_norm);
  const auto factor = tf_ops::Div(scope_, clip, tf_ops::Maximum(scope_, norm, clip));
  std::vector<Output> clipped;
  for (const Output& gradient : gradients) {
    clipped.push_back(tf_ops::Mul(scope_, gradient, factor));
  }
  return clipped;
}

Operation LatePhase::Computed(Output loss, const std::vector<Output>& gradients,
                              const std::vector<Operation>& before) {
  std::vector<Operation> inputs = {loss.op()};
  for (const Output& gradient : gradients) inputs.push_back(gradient.op());
  for (const Operation& operation : before) {
    for (const tensorflow::Edge* edge : operation.node()->in_edges()) {
      if (!edge->IsControlEdge()) inputs.push_back(Operation(edge->src()));
    }
  }
  const Operation computed = tf_ops::NoOp(scope_.WithControlDependencies(inputs)).operation;
  if (!scope_.ok()) return Operation();
  const std::set<const tensorflow::Node*> earlier = UpTo(computed.node());
  for (const Operation& operation : before) {
    if (earlier.count(operation.node()) > 0) continue;
    scope_.graph()->AddControlEdge(computed.node(), operation.node());
  }
  return computed;
}

Operation LatePhase::SpawnWeight(const Weight& weight, int64_t index) {
  auto seed = [&](int64_t stream) -> Output {
    const int64_t number = NormalStreamNumber(Normals::kMemberNoise, stream);
    return tf_ops::Const(host_, {options_.seed[0], options_.seed[1] + number}, {2});
  };
  std::vector<Operation> done;
  // Each layer draws from a stream of its own.
  done.push_back(
      ops::Spawn(scope_, weight.handle, tf_ops::Const(host_, options_.sigma), seed(index)));
  for (const Output& slot : weight.slots) {
    if (options_.copy_slots) {
      done.push_back(ops::Spawn(scope_, slot, tf_ops::Const(host_, 0.0), seed(0)));
    } else {
      const Output zeros = ZerosInGraph(scope_, dtype_, weight.shape);
      done.push_back(tf_ops::AssignVariableOp(scope_, slot, zeros).operation);
    }
  }
  if (weight.count.node() != nullptr) {
    Output counts = ZerosInGraph(scope_, tensorflow::DT_INT64, TensorShape({options_.members}));
    if (options_.copy_slots) {
      const auto first = tf_ops::Slice(
          scope_, tf_ops::ReadVariableOp(scope_, weight.count, tensorflow::DT_INT64), {0}, {1});
      counts = tf_ops::Tile(scope_, first, {static_cast<int32_t>(options_.members)});
    }
    done.push_back(tf_ops::AssignVariableOp(scope_, weight.count, counts).operation);
  }
  return tf_ops::NoOp(scope_.WithControlDependencies(done)).operation;
}

// With w̄ the average after this sample: the mean of squares ← (n · square + w²)/(n + 1), and w − w̄
// takes the place of the oldest deviation. They are NAME/swa_square and NAME/swag_deviations [R,
// …].
Operation LatePhase::SampleWeight(Weight* weight, Output n) {
  weight->average = ZeroVariable(weight->name + "/swa", dtype_, weight->shape);
  const Operation averaged = ops::SwaUpdate(scope_, weight->average, weight->handle, n);
  if (options_.swag_rank == 0) return averaged;
  TensorShape stack = weight->shape;
  stack.InsertDim(0, options_.swag_rank);
  const Output square = ZeroVariable(weight->name + "/swa_square", dtype_, weight->shape),
               deviations = ZeroVariable(weight->name + "/swag_deviations", dtype_, stack);
  if (!scope_.ok()) return Operation();
  const tensorflow::Scope after = scope_.WithControlDependencies({averaged});
  const auto w = tf_ops::ReadVariableOp(scope_, weight->handle, dtype_),
             mean = tf_ops::ReadVariableOp(after, weight->average, dtype_),
             old = tf_ops::ReadVariableOp(scope_, square, dtype_);
  const Output count = tf_ops::Cast(host_, n, dtype_),
               total = tf_ops::Add(host_, count, Scalar(1.0));
  const auto sum = tf_ops::Add(scope_, tf_ops::Mul(scope_, old, count), tf_ops::Square(scope_, w));
  const auto row = tf_ops::FloorMod(host_, n, tf_ops::Const(host_, options_.swag_rank));
  return tf_ops::NoOp(scope_.WithControlDependencies(std::vector<Operation>{
                          tf_ops::AssignVariableOp(scope_, square, tf_ops::Div(scope_, sum, total))
                              .operation,
                          tf_ops::ResourceScatterUpdate(scope_, deviations, row,
                                                        tf_ops::Sub(scope_, w, mean))
                              .operation}))
      .operation;
}

std::string LatePhase::Group(const std::string& name, const std::vector<Operation>& operations) {
  const auto group =
      tf_ops::NoOp(scope_.WithControlDependencies(operations).WithOpName("late_phase/" + name));
  return scope_.ok() ? group.operation.node()->name() : "";
}

absl::Status LatePhase::Minimize(Output loss, const UpdateRule& base, const UpdateRule& members,
                                 const std::vector<Operation>& before) {
  for (const auto& [name, schedule] :
       {std::pair("rate_scale", &std::as_const(options_).rate_scale),
        std::pair("base lr", &base.lr), std::pair("base decay", &base.weight_decay),
        std::pair("member lr", &members.lr), std::pair("member decay", &members.weight_decay)}) {
    scope_.UpdateStatus(schedule->Check(name));
  }
  if (!train_.empty()) {
    scope_.UpdateStatus(absl::FailedPreconditionError("Minimize must be called once"));
  }
  const bool any_members = std::any_of(weights_.begin(), weights_.end(),
                                       [](const Weight& weight) { return weight.late_phase; });
  if (options_.members > 1 && !any_members) {
    scope_.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`members` must be 1 if no weight has any; gradients alone are gathered by `cycle`. "
        "Received: members=",
        options_.members)));
  }
  if (!scope_.ok()) return scope_.status();
  base_text_ = base.Text();
  members_text_ = members.Text();

  std::vector<Output> values, gradients;
  for (const Weight& weight : weights_) values.push_back(weight.value);
  if (absl::Status status = tensorflow::AddSymbolicGradients(scope_, {loss}, values, &gradients);
      !status.ok()) {
    scope_.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`loss` must be differentiable by every declared weight. Received: ", status.message())));
    return scope_.status();
  }
  if (options_.clip_norm > 0) gradients = Clip(gradients);

  std::vector<Operation> updates = before, spawns, samples;
  const Operation computed = Computed(loss, gradients, before);
  if (!scope_.ok()) return scope_.status();
  const tensorflow::Scope after = scope_.WithControlDependencies({computed});
  // Without members, what is said of the base's steps is said of all.
  const bool one_for_all = options_.members == 1 && options_.cycle > 1;
  const RuleValues base_values = ValuesOf(base, true),
                   member_values = ValuesOf(members, one_for_all);
  for (size_t i = 0; i < weights_.size(); ++i) {
    Weight& weight = weights_[i];
    updates.push_back(weight.late_phase
                          ? Update(after, &weight, members, member_values, gradients[i])
                          : Update(after, &weight, base, base_values, gradients[i]));
    if (weight.late_phase && options_.members > 1)
      spawns.push_back(SpawnWeight(weight, static_cast<int64_t>(i)));
  }
  for (const State& state : states_) {
    if (!state.of_members || options_.members == 1) continue;
    spawns.push_back(ops::Spawn(scope_, state.handle, tf_ops::Const(host_, 0.0),
                                tf_ops::Const<int64_t>(host_, {0, 0}, {2})));
  }
  // t advances when all of the minibatch is done.
  const auto advance = tf_ops::AssignAddVariableOp(host_.WithControlDependencies(updates),
                                                   step_handle_, tf_ops::Const<int64_t>(host_, 1));
  if (options_.swa_start >= 0) {
    const Output count = Counter("late_phase/swa_count");
    const auto n = tf_ops::ReadVariableOp(host_, count, tensorflow::DT_INT64);
    for (Weight& weight : weights_) samples.push_back(SampleWeight(&weight, n));
    samples = {tf_ops::AssignAddVariableOp(host_.WithControlDependencies(samples), count,
                                           tf_ops::Const<int64_t>(host_, 1))
                   .operation};
    swa_ = Group("swa", samples);
  }
  if (!spawns.empty()) {
    // The mark is set by the run of the graph that spawns.
    const auto mark = tf_ops::AssignVariableOp(host_.WithControlDependencies(spawns), Spawned(),
                                               tf_ops::Const<int64_t>(host_, 1));
    spawn_ = Group("spawn", {mark.operation});
  }
  train_ = Group("train", {advance.operation});
  zero_ = Group("zero", zeros_);
  return scope_.status();
}

// Of [K, …]: the row `which`, or what stands for all of them.
Output LatePhase::ReadRows(Output handle, tensorflow::DataType dtype, WeightSet set,
                           tensorflow::Input which) {
  if (set == WeightSet::kCurrent) return ops::ReadMember(scope_, handle, which, dtype);
  const Output first = ops::ReadMember(scope_, handle, tf_ops::Const(host_, 0), dtype);
  if (options_.members == 1) return first;
  const auto spawned =
      tf_ops::Greater(host_, tf_ops::ReadVariableOp(host_, Spawned(), tensorflow::DT_INT64),
                      tf_ops::Const<int64_t>(host_, 0));
  return tf_ops::SelectV2(scope_, spawned, ops::Collapse(scope_, handle, dtype), first);
}

Output LatePhase::Read(const std::string& name, WeightSet set, tensorflow::Input which) {
  for (const Weight& weight : weights_) {
    if (weight.name != name) continue;
    if (set == WeightSet::kSwa) {
      if (weight.average.node() == nullptr) {
        scope_.UpdateStatus(absl::FailedPreconditionError(absl::StrCat(
            "SWA must be on, and Minimize called, to read averages. Received: name=", name)));
        return Output();
      }
      return weight.late_phase ? ops::Collapse(scope_, weight.average, dtype_)
                               : Output(tf_ops::ReadVariableOp(scope_, weight.average, dtype_));
    }
    return weight.late_phase ? ReadRows(weight.handle, dtype_, set, which)
                             : Output(tf_ops::ReadVariableOp(scope_, weight.handle, dtype_));
  }
  for (const State& state : states_) {
    if (state.name != name || set == WeightSet::kSwa) continue;
    return state.of_members ? ReadRows(state.handle, state.dtype, set, which)
                            : Output(tf_ops::ReadVariableOp(scope_, state.handle, state.dtype));
  }
  scope_.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
      "`name` must be a declared weight, or a state if `set` is not swa. Received: name=", name)));
  return Output();
}

std::vector<std::string> LatePhase::weight_names() const {
  std::vector<std::string> names;
  for (const Weight& weight : weights_) names.push_back(weight.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> LatePhase::Text() const {
  auto text = options_.Text();
  text.insert(text.end(), {{"dtype", tensorflow::DataTypeString(dtype_)},
                           {"base", base_text_},
                           {"member", members_text_}});
  return text;
}

}  // namespace late_phase

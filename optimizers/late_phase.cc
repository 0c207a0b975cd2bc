#include "optimizers/late_phase.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ops/member_rows.h"
#include "optimizers/averages.h"
#include "optimizers/tensors.h"
#include "optimizers/updates.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/no_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Operation;
using tensorflow::Output;

namespace {

VariableKind ToVariableKind(StateKind kind) {
  switch (kind) {
    case StateKind::kModel:
      return VariableKind::kModel;
    case StateKind::kConstant:
      return VariableKind::kConstant;
    case StateKind::kRun:
      break;
  }
  return VariableKind::kState;
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

// Done when everything that a minibatch writes has been computed. Operations in `before`
// wait for it.
Operation Computed(const tensorflow::Scope& scope, Output loss,
                   const std::vector<Output>& gradients, const std::vector<Operation>& before) {
  std::vector<Operation> inputs = {loss.op()};
  for (const Output& gradient : gradients) inputs.push_back(gradient.op());
  for (const Operation& operation : before) {
    for (const tensorflow::Edge* edge : operation.node()->in_edges()) {
      if (!edge->IsControlEdge()) inputs.push_back(Operation(edge->src()));
    }
  }
  const Operation computed = tf_ops::NoOp(scope.WithControlDependencies(inputs)).operation;
  if (!scope.ok()) return Operation();
  const std::set<const tensorflow::Node*> earlier = UpTo(computed.node());
  for (const Operation& operation : before) {
    if (earlier.count(operation.node()) > 0) continue;
    scope.graph()->AddControlEdge(computed.node(), operation.node());
  }
  return computed;
}

}  // namespace

LatePhase::LatePhase(const tensorflow::Scope& scope, const LatePhaseOptions& options,
                     tensorflow::DataType dtype, Workers* workers)
    : graph_(scope, options, dtype),
      variables_(graph_.scope, graph_.host),
      clock_(graph_, &variables_),
      workers_(workers) {}

Output LatePhase::AddState(const std::string& name, const InitialValue& initial, StateKind kind) {
  const Output handle = variables_.Declare(name, initial, ToVariableKind(kind));
  states_.push_back({name, false, handle, initial.dtype});
  return handle;
}

Output LatePhase::AddDividedState(const std::string& name, tensorflow::DataType dtype,
                                  const tensorflow::TensorShape& joint_shape) {
  const Share share = workers_ == nullptr ? Share() : workers_->share();
  const std::string complaint = CheckShares(share, name, joint_shape.dim_size(0));
  if (!complaint.empty()) scope().UpdateStatus(absl::InvalidArgumentError(complaint));
  if (!scope().ok()) return Output();
  const Output handle = variables_.DeclareShare(name, dtype, joint_shape, share);
  states_.push_back({name, false, handle, dtype});
  return handle;
}

// Rows other than 0 are undefined before T0; a copy of row 0 is as good as anything, and finite.
Output LatePhase::AddMemberState(const std::string& name, const InitialValue& initial_row) {
  const InitialValue stack = initial_row.Stacked(options().members);
  const Output handle = variables_.Declare(name, stack, VariableKind::kMembers);
  states_.push_back({name, true, handle, stack.dtype});
  return handle;
}

Output LatePhase::AddBase(const std::string& name, const InitialValue& initial) {
  TrainedWeight weight;
  weight.name = name;
  weight.handle = variables_.Declare(name, initial, VariableKind::kModel);
  if (!scope().ok()) return Output();
  weight.value =
      tf_ops::ReadVariableOp(scope().WithOpName(name, "/value"), weight.handle, graph_.dtype);
  weight.shape = initial.shape;
  weights_.push_back(weight);
  return weight.value;
}

Output LatePhase::AddMembers(const std::string& name, const InitialValue& initial_row,
                             MemberRead read) {
  const InitialValue stack = initial_row.Stacked(options().members);
  TrainedWeight weight;
  weight.name = name;
  weight.late_phase = true;
  weight.reads_stack = read == MemberRead::kStack;
  weight.handle = variables_.Declare(name, stack, VariableKind::kMembers);
  if (!scope().ok()) return Output();
  const tensorflow::Scope named = scope().WithOpName(name, "/value");
  weight.value = read == MemberRead::kRow
                     ? ops::ReadMember(named, weight.handle, clock_.member, graph_.dtype)
                     : Output(tf_ops::ReadVariableOp(named, weight.handle, graph_.dtype));
  weight.shape = stack.shape;
  weights_.push_back(weight);
  return weight.value;
}

void LatePhase::ExemptFromDecay(const std::string& name) {
  for (TrainedWeight& weight : weights_) {
    if (weight.name != name) continue;
    weight.decays = false;
    return;
  }
  scope().UpdateStatus(absl::InvalidArgumentError(
      absl::StrCat("`name` must be a declared weight. Received: name=", name)));
}

void LatePhase::CheckMinimize(const UpdateRule& base, const UpdateRule& members) const {
  for (const auto& [name, schedule] :
       {std::pair("rate_scale", &options().rate_scale), std::pair("base lr", &base.lr),
        std::pair("base decay", &base.weight_decay), std::pair("member lr", &members.lr),
        std::pair("member decay", &members.weight_decay)}) {
    scope().UpdateStatus(schedule->Check(name));
  }
  if (!train_.empty()) {
    scope().UpdateStatus(absl::FailedPreconditionError("Minimize must be called once"));
  }
  const bool any_members =
      absl::c_any_of(weights_, [](const TrainedWeight& weight) { return weight.late_phase; });
  if (options().members > 1 && !any_members) {
    scope().UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`members` must be 1 if no weight has members; to accumulate gradients only, set `cycle`. "
        "Received: members=",
        options().members)));
  }
}

// All values in one row, so that there is one sum, whose order depends on nothing but their sizes.
std::vector<Output> LatePhase::MeanOverWorkers(const std::vector<Output>& values) {
  if (workers_ == nullptr || values.empty()) return values;
  const tensorflow::Scope& host = graph_.host;
  std::vector<Output> flat, shapes, sizes;
  for (const Output& value : values) {
    flat.push_back(tf_ops::Reshape(scope(), value, {-1}));
    shapes.push_back(tf_ops::Shape(scope(), value));
    sizes.push_back(tf_ops::Size(scope(), value));
  }
  const Output row = flat.size() == 1 ? flat[0] : Output(tf_ops::Concat(scope(), flat, 0));
  if (!scope().ok()) return {};
  const Output mean =
      tf_ops::Mul(scope(), workers_->Sum(scope(), row),
                  graph_.Scalar(1.0 / static_cast<double>(workers_->share().workers)));
  const tf_ops::SplitV parts(scope(), mean, tf_ops::Stack(host, sizes), tf_ops::Const(host, 0),
                             static_cast<int64_t>(values.size()));
  if (!scope().ok()) return {};
  std::vector<Output> means;
  for (size_t i = 0; i < values.size(); ++i) {
    means.push_back(tf_ops::Reshape(scope(), parts.output[i], shapes[i]));
  }
  return means;
}

std::vector<Output> LatePhase::JointGradients(const std::vector<Output>& gradients) {
  std::vector<Output> shared = gradients;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].reads_stack) continue;
    shared[i] = tf_ops::GatherV2(scope(), gradients[i], clock_.member, 0);
    weights_[i].gradient_is_row = true;
  }
  const auto stop = tf_ops::PlaceholderWithDefault(scope().WithOpName("late_phase/stop"),
                                                   Zeros(graph_.dtype, tensorflow::TensorShape()),
                                                   tensorflow::TensorShape());
  shared.push_back(stop);
  std::vector<Output> means = MeanOverWorkers(shared);
  if (!scope().ok()) return {};
  stop_feed_ = stop.output.name();
  stop_fetch_ = means.back().name();
  means.pop_back();
  return means;
}

std::vector<Output> LatePhase::Gradients(Output loss) {
  std::vector<Output> values, gradients;
  for (const TrainedWeight& weight : weights_) values.push_back(weight.value);
  const absl::Status status = tensorflow::AddSymbolicGradients(scope(), {loss}, values, &gradients);
  if (!status.ok()) {
    scope().UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`loss` must be differentiable by every declared weight. Received: ", status.message())));
    return {};
  }
  if (workers_ != nullptr) gradients = JointGradients(gradients);
  if (!scope().ok()) return {};
  for (size_t i = 0; i < weights_.size(); ++i) weights_[i].gradient = gradients[i];
  if (options().clip_norm > 0) return ClipGradients(graph_, clock_, weights_, gradients);
  return gradients;
}

std::vector<Operation> LatePhase::UpdateWeights(const UpdateRule& base, const UpdateRule& members,
                                                const std::vector<Output>& gradients,
                                                const Operation& computed) {
  const tensorflow::Scope after = scope().WithControlDependencies({computed});
  // Without members, the settings for the base's steps apply to all weights.
  const bool one_for_all = options().members == 1 && options().cycle > 1;
  const RuleInGraph base_rule(graph_, clock_, base, /*base=*/true),
      member_rule(graph_, clock_, members, /*base=*/one_for_all);
  std::vector<Operation> updates;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const RuleInGraph& rule = weights_[i].late_phase ? member_rule : base_rule;
    updates.push_back(
        ApplyRule(graph_, clock_, after, rule, gradients[i], &weights_[i], &variables_));
  }
  return updates;
}

std::vector<Operation> LatePhase::DropSums() const {
  std::vector<Operation> drops;
  for (const TrainedWeight& weight : weights_) {
    if (weight.sum.node() == nullptr) continue;
    const Output zeros = ZerosInGraph(scope(), graph_.dtype, weight.shape);
    drops.push_back(tf_ops::AssignVariableOp(scope(), weight.sum, zeros).operation);
  }
  return drops;
}

std::vector<Operation> LatePhase::SpawnMembers() const {
  std::vector<Operation> spawns;
  if (options().members == 1) return spawns;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].late_phase) continue;
    spawns.push_back(SpawnWeight(graph_, weights_[i], static_cast<int64_t>(i)));
  }
  for (const ModelState& state : states_) {
    if (state.late_phase) spawns.push_back(SpawnState(graph_, state));
  }
  return spawns;
}

std::string LatePhase::Group(const std::string& name,
                             const std::vector<Operation>& operations) const {
  const auto group =
      tf_ops::NoOp(scope().WithControlDependencies(operations).WithOpName("late_phase/" + name));
  return scope().ok() ? group.operation.node()->name() : "";
}

absl::Status LatePhase::Minimize(Output loss, const UpdateRule& base, const UpdateRule& members,
                                 const std::vector<Operation>& before) {
  CheckMinimize(base, members);
  if (!scope().ok()) return scope().status();
  base_text_ = base.Text();
  members_text_ = members.Text();
  const std::vector<Output> gradients = Gradients(loss);
  if (!scope().ok()) return scope().status();
  const Operation computed = Computed(scope(), loss, gradients, before);
  if (!scope().ok()) return scope().status();

  std::vector<Operation> done = UpdateWeights(base, members, gradients, computed);
  done.insert(done.begin(), before.begin(), before.end());
  const std::vector<Operation> spawns = SpawnMembers();
  const tensorflow::Scope& host = graph_.host;
  // t advances when the whole minibatch is done.
  const auto advance = tf_ops::AssignAddVariableOp(
      host.WithControlDependencies(done), clock_.step_handle, tf_ops::Const<int64_t>(host, 1));
  if (options().swa_start >= 0) {
    swa_ = Group("swa", {TakeSample(graph_, absl::MakeSpan(weights_), &variables_)});
  }
  if (options().restart_every > 0 && options().cycle > 1) drop_ = Group("drop", DropSums());
  if (!spawns.empty()) {
    // The flag is set by the same run of the graph that spawns.
    const auto mark =
        tf_ops::AssignVariableOp(host.WithControlDependencies(spawns), spawned_.Handle(&variables_),
                                 tf_ops::Const<int64_t>(host, 1));
    spawn_ = Group("spawn", {mark.operation});
  }
  train_ = Group("train", {advance.operation});
  zero_ = Group("zero", variables_.zeros());
  return scope().status();
}

// Of [K, …]: the row `which`, or what stands for all of them.
Output LatePhase::ReadRows(Output handle, tensorflow::DataType dtype, WeightSet set,
                           tensorflow::Input which) {
  if (set == WeightSet::kCurrent) return ops::ReadMember(scope(), handle, which, dtype);
  const Output first = ops::ReadMember(scope(), handle, tf_ops::Const(graph_.host, 0), dtype);
  if (options().members == 1) return first;
  return tf_ops::SelectV2(scope(), Spawned(), ops::Collapse(scope(), handle, dtype), first);
}

Output LatePhase::Spawned() {
  const tensorflow::Scope& host = graph_.host;
  const auto mark =
      tf_ops::ReadVariableOp(host, spawned_.Handle(&variables_), tensorflow::DT_INT64);
  return tf_ops::Greater(host, mark, tf_ops::Const<int64_t>(host, 0));
}

Output LatePhase::ReadMembers(const std::string& name) {
  auto rows = [&](Output handle, tensorflow::DataType dtype) -> Output {
    const auto stack = tf_ops::ReadVariableOp(scope(), handle, dtype);
    if (options().members == 1) return stack;
    const Output first = ops::ReadMember(scope(), handle, tf_ops::Const(graph_.host, 0), dtype);
    return tf_ops::SelectV2(scope(), Spawned(), stack, tf_ops::ExpandDims(scope(), first, 0));
  };
  for (const TrainedWeight& weight : weights_) {
    if (weight.name == name && weight.late_phase) return rows(weight.handle, graph_.dtype);
  }
  for (const ModelState& state : states_) {
    if (state.name == name && state.late_phase) return rows(state.handle, state.dtype);
  }
  scope().UpdateStatus(absl::InvalidArgumentError(
      absl::StrCat("`name` must be a weight or a state with members. Received: name=", name)));
  return Output();
}

Output LatePhase::ReadWeight(const TrainedWeight& weight, WeightSet set, tensorflow::Input which) {
  if (set != WeightSet::kSwa) {
    if (weight.late_phase) return ReadRows(weight.handle, graph_.dtype, set, which);
    return tf_ops::ReadVariableOp(scope(), weight.handle, graph_.dtype);
  }
  if (weight.average.node() == nullptr) {
    scope().UpdateStatus(absl::FailedPreconditionError(absl::StrCat(
        "SWA must be on, and Minimize called, to read averages. Received: name=", weight.name)));
    return Output();
  }
  if (weight.late_phase) return ops::Collapse(scope(), weight.average, graph_.dtype);
  return tf_ops::ReadVariableOp(scope(), weight.average, graph_.dtype);
}

Output LatePhase::Read(const std::string& name, WeightSet set, tensorflow::Input which) {
  for (const TrainedWeight& weight : weights_) {
    if (weight.name == name) return ReadWeight(weight, set, which);
  }
  for (const ModelState& state : states_) {
    if (state.name != name || set == WeightSet::kSwa) continue;
    if (state.late_phase) return ReadRows(state.handle, state.dtype, set, which);
    return tf_ops::ReadVariableOp(scope(), state.handle, state.dtype);
  }
  scope().UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
      "`name` must be a declared weight, or a state if `set` is not swa. Received: name=", name)));
  return Output();
}

std::vector<std::string> LatePhase::weight_names() const {
  std::vector<std::string> names;
  for (const TrainedWeight& weight : weights_) names.push_back(weight.name);
  return names;
}

Settings LatePhase::Text() const {
  Settings text = options().Text();
  text.insert(text.end(), {{"dtype", tensorflow::DataTypeString(graph_.dtype)},
                           {"base", base_text_},
                           {"member", members_text_}});
  return text;
}

}  // namespace late_phase

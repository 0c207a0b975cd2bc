#include "optimizers/updates.h"

#include "absl/strings/str_cat.h"
#include "ops/update_rules.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::TensorShape;

namespace {

// The schedule's value at t, of the weights' type; 0 from T0 on if it is `frozen` then.
Output ScheduleValue(const GraphContext& graph, const TrainingClock& clock,
                     const Schedule& schedule, bool frozen = false) {
  Output value = schedule.InGraph(graph.host, clock.time);
  if (frozen) {
    value = tf_ops::SelectV2(graph.host, clock.late, tf_ops::Const(graph.host, 0.0), value);
  }
  return tf_ops::Cast(graph.host, value, graph.dtype);
}

// Whether the weight's gradients are summed over a cycle; else its members are trained in turn.
bool Accumulates(const GraphContext& graph, const TrainedWeight& weight) {
  return !weight.late_phase || (graph.options.members == 1 && graph.options.cycle > 1);
}

// The update of accumulated gradients. `sum` is their variable; with a cycle of 1 the op does not
// look at it.
Operation ApplyToBase(const tensorflow::Scope& after, const TrainingClock& clock,
                      const RuleInGraph& values, Output decay, Output gradient, Output sum,
                      const TrainedWeight& weight) {
  const auto& slots = weight.slots;
  switch (values.rule.kind) {
    case UpdateRule::Kind::kSgd:
      return ops::BaseApplySgd(after, weight.handle, sum, clock.position, clock.cycle, values.scale,
                               values.lr, decay, gradient);
    case UpdateRule::Kind::kMomentum:
      return ops::BaseApplyMomentum(after, weight.handle, slots[0], sum, clock.position,
                                    clock.cycle, values.scale, values.lr, values.momentum, decay,
                                    gradient, values.rule.nesterov);
    case UpdateRule::Kind::kAdam:
      return ops::BaseApplyAdam(after, weight.handle, slots[0], slots[1], weight.count, sum,
                                clock.position, clock.cycle, values.scale, values.lr, values.beta1,
                                values.beta2, values.epsilon, decay, gradient);
  }
  return Operation();
}

Operation ApplyToMember(const tensorflow::Scope& after, const TrainingClock& clock,
                        const RuleInGraph& values, Output decay, Output gradient,
                        const TrainedWeight& weight) {
  const auto& slots = weight.slots;
  switch (values.rule.kind) {
    case UpdateRule::Kind::kSgd:
      return ops::MemberApplySgd(after, weight.handle, clock.member, values.lr, decay, gradient);
    case UpdateRule::Kind::kMomentum:
      return ops::MemberApplyMomentum(after, weight.handle, slots[0], clock.member, values.lr,
                                      values.momentum, decay, gradient, values.rule.nesterov);
    case UpdateRule::Kind::kAdam:
      return ops::MemberApplyAdam(after, weight.handle, slots[0], slots[1], weight.count,
                                  clock.member, values.lr, values.beta1, values.beta2,
                                  values.epsilon, decay, gradient);
  }
  return Operation();
}

}  // namespace

std::vector<Output> ClipGradients(const GraphContext& graph, const TrainingClock& clock,
                                  absl::Span<const TrainedWeight> weights,
                                  absl::Span<const Output> gradients) {
  const tensorflow::Scope& scope = graph.scope;
  std::vector<Output> halves;
  for (size_t i = 0; i < gradients.size(); ++i) {
    // In a stack, only the member's row is not zero; only that is summed, so that the norm's
    // rounding does not depend on K.
    const Output gradient = weights[i].reads_stack && !weights[i].gradient_is_row
                                ? tf_ops::GatherV2(scope, gradients[i], clock.member, 0)
                                : gradients[i];
    halves.push_back(tf_ops::L2Loss(scope, gradient));  // ½ ‖g‖²
  }
  const auto norm =
      tf_ops::Sqrt(scope, tf_ops::Mul(scope, tf_ops::AddN(scope, halves), graph.Scalar(2.0)));
  const Output clip = graph.Scalar(graph.options.clip_norm);
  const auto factor = tf_ops::Div(scope, clip, tf_ops::Maximum(scope, norm, clip));
  std::vector<Output> clipped;
  for (const Output& gradient : gradients) clipped.push_back(tf_ops::Mul(scope, gradient, factor));
  return clipped;
}

RuleInGraph::RuleInGraph(const GraphContext& graph, const TrainingClock& clock,
                         const UpdateRule& rule, bool base)
    : rule(rule) {
  const LatePhaseOptions& options = graph.options;
  lr = ScheduleValue(graph, clock, rule.lr, /*frozen=*/base && options.freeze_base);
  if (options.rate_scale.Text() != "1") {
    lr = tf_ops::Mul(graph.host, lr, ScheduleValue(graph, clock, options.rate_scale));
  }
  auto from_t0 = [&](double value) -> Output {
    return tf_ops::SelectV2(graph.host, clock.late, graph.Scalar(value), graph.Scalar(1.0));
  };
  decay = ScheduleValue(graph, clock, rule.weight_decay);
  if (base && options.base_decay_scale != 1) {
    decay = tf_ops::Mul(graph.host, decay, from_t0(options.base_decay_scale));
  }
  scale = from_t0(options.base_scale);
  momentum = graph.Scalar(rule.momentum);
  beta1 = graph.Scalar(rule.beta1);
  beta2 = graph.Scalar(rule.beta2);
  epsilon = graph.Scalar(rule.epsilon);
}

Operation ApplyRule(const GraphContext& graph, const TrainingClock& clock,
                    const tensorflow::Scope& after, const RuleInGraph& values, Output gradient,
                    TrainedWeight* weight, Variables* variables) {
  const bool base = Accumulates(graph, *weight);
  const Output decay = weight->decays ? values.decay : graph.Scalar(0.0);
  // A base update takes the gradient of the whole variable, here a stack of one row.
  if (base && weight->late_phase && (!weight->reads_stack || weight->gradient_is_row)) {
    gradient = tf_ops::ExpandDims(graph.scope, gradient, 0);
  }
  Output sum = weight->handle;
  if (base && graph.options.cycle > 1) {
    sum = weight->sum = variables->DeclareZero(weight->name + "/sum", graph.dtype, weight->shape);
  }
  auto add_slot = [&](const char* suffix) {
    weight->slots.push_back(variables->DeclareZero(absl::StrCat(weight->name, "/", suffix),
                                                   graph.dtype, weight->shape));
  };
  if (values.rule.kind == UpdateRule::Kind::kMomentum) add_slot("momentum");
  if (values.rule.kind == UpdateRule::Kind::kAdam) {
    add_slot("m");
    add_slot("v");
    const TensorShape counts = base ? TensorShape() : TensorShape({graph.options.members});
    weight->count = variables->DeclareZero(weight->name + "/count", tensorflow::DT_INT64, counts);
  }
  return base ? ApplyToBase(after, clock, values, decay, gradient, sum, *weight)
              : ApplyToMember(after, clock, values, decay, gradient, *weight);
}

}  // namespace late_phase

#include "optimizers/graph_context.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

GraphContext::GraphContext(const tensorflow::Scope& scope, const LatePhaseOptions& options,
                           tensorflow::DataType dtype)
    : scope(scope), host(scope.WithDevice("/device:CPU:0")), options(options), dtype(dtype) {
  scope.UpdateStatus(options.Check());
  if (dtype != tensorflow::DT_FLOAT && dtype != tensorflow::DT_DOUBLE) {
    scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
        "`dtype` must be float or double. Received: dtype=", tensorflow::DataTypeString(dtype))));
  }
  if (scope.ok() && options.cycle == 0) this->options.cycle = options.members;
}

Output GraphContext::Scalar(double value) const {
  return tf_ops::Cast(host, tf_ops::Const(host, value), dtype);
}

TrainingClock::TrainingClock(const GraphContext& graph, Variables* variables) {
  const tensorflow::Scope& host = graph.host;
  if (!host.ok()) return;
  step_handle = variables->DeclareCounter("late_phase/step");
  step = tf_ops::ReadVariableOp(host, step_handle, tensorflow::DT_INT64);
  time = tf_ops::Cast(host, step, tensorflow::DT_DOUBLE);
  auto number = [&](int64_t value) -> Output { return tf_ops::Const(host, value); };
  late = tf_ops::GreaterEqual(host, step, number(graph.options.start));
  Output begin = number(graph.options.start);
  if (graph.options.restart_every > 0) {
    const auto done = tf_ops::FloorMod(host, step, number(graph.options.restart_every));
    begin = tf_ops::Maximum(host, begin, tf_ops::Sub(host, step, done));
  }
  const auto since = tf_ops::Sub(host, step, begin);
  auto when_late = [&](Output value, int64_t before) -> Output {
    return tf_ops::Cast(host, tf_ops::SelectV2(host, late, value, number(before)),
                        tensorflow::DT_INT32);
  };
  position = when_late(tf_ops::FloorMod(host, since, number(graph.options.cycle)), 0);
  member = when_late(tf_ops::FloorMod(host, since, number(graph.options.members)), 0);
  cycle = when_late(number(graph.options.cycle), 1);
}

}  // namespace late_phase

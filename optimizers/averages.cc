#include "optimizers/averages.h"

#include <vector>

#include "ops/member_rows.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/no_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Operation;
using tensorflow::Output;

namespace {

// With w̄ the average after this sample, which `averaged` writes, and n samples before it: the mean
// of squares ← (n · square + w²)/(n + 1), and w − w̄ takes the place of the oldest deviation.
Operation SampleMoments(const GraphContext& graph, const TrainedWeight& weight, Output n,
                        const Operation& averaged, Variables* variables) {
  const tensorflow::Scope &scope = graph.scope, &host = graph.host;
  tensorflow::TensorShape stack = weight.shape;
  stack.InsertDim(0, graph.options.swag_rank);
  const Output square =
                   variables->DeclareZero(weight.name + "/swa_square", graph.dtype, weight.shape),
               deviations =
                   variables->DeclareZero(weight.name + "/swag_deviations", graph.dtype, stack);
  if (!scope.ok()) return Operation();
  const tensorflow::Scope after = scope.WithControlDependencies({averaged});
  const auto w = tf_ops::ReadVariableOp(scope, weight.handle, graph.dtype),
             mean = tf_ops::ReadVariableOp(after, weight.average, graph.dtype),
             old = tf_ops::ReadVariableOp(scope, square, graph.dtype);
  const Output count = tf_ops::Cast(host, n, graph.dtype),
               total = tf_ops::Add(host, count, graph.Scalar(1.0));
  const auto sum = tf_ops::Add(scope, tf_ops::Mul(scope, old, count), tf_ops::Square(scope, w));
  const auto row = tf_ops::FloorMod(host, n, tf_ops::Const(host, graph.options.swag_rank));
  const std::vector<Operation> written = {
      tf_ops::AssignVariableOp(scope, square, tf_ops::Div(scope, sum, total)).operation,
      tf_ops::ResourceScatterUpdate(scope, deviations, row, tf_ops::Sub(scope, w, mean)).operation};
  return tf_ops::NoOp(scope.WithControlDependencies(written)).operation;
}

}  // namespace

Operation TakeSample(const GraphContext& graph, absl::Span<TrainedWeight> weights,
                     Variables* variables) {
  const tensorflow::Scope& host = graph.host;
  const Output count = variables->DeclareCounter(kSampleCount);
  const auto n = tf_ops::ReadVariableOp(host, count, tensorflow::DT_INT64);
  std::vector<Operation> samples;
  for (TrainedWeight& weight : weights) {
    weight.average = variables->DeclareZero(weight.name + "/swa", graph.dtype, weight.shape);
    const Operation averaged = ops::SwaUpdate(graph.scope, weight.average, weight.handle, n);
    samples.push_back(graph.options.swag_rank == 0
                          ? averaged
                          : SampleMoments(graph, weight, n, averaged, variables));
  }
  return tf_ops::AssignAddVariableOp(host.WithControlDependencies(samples), count,
                                     tf_ops::Const<int64_t>(host, 1))
      .operation;
}

}  // namespace late_phase

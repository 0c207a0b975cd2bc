#include "optimizers/spawning.h"

#include <vector>

#include "ops/member_rows.h"
#include "optimizers/random_streams.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/no_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::TensorShape;

namespace {

// The number of steps that each member has taken, at T0.
Output CountsAtStart(const GraphContext& graph, const TrainedWeight& weight) {
  const tensorflow::Scope& scope = graph.scope;
  const int64_t members = graph.options.members;
  if (!graph.options.copy_slots) {
    return ZerosInGraph(scope, tensorflow::DT_INT64, TensorShape({members}));
  }
  const auto first = tf_ops::Slice(
      scope, tf_ops::ReadVariableOp(scope, weight.count, tensorflow::DT_INT64), {0}, {1});
  return tf_ops::Tile(scope, first, {static_cast<int32_t>(members)});
}

}  // namespace

Output SpawnMark::Handle(Variables* variables) {
  if (handle_.node() == nullptr) handle_ = variables->DeclareCounter(kSpawned);
  return handle_;
}

Operation SpawnWeight(const GraphContext& graph, const TrainedWeight& weight, int64_t index) {
  const tensorflow::Scope& scope = graph.scope;
  const LatePhaseOptions& options = graph.options;
  auto seed = [&](int64_t stream) -> Output {
    const int64_t number = NormalStreamNumber(Normals::kMemberNoise, stream);
    return tf_ops::Const(graph.host, {options.seed[0], options.seed[1] + number}, {2});
  };
  std::vector<Operation> done;
  // Each layer draws from a stream of its own.
  done.push_back(
      ops::Spawn(scope, weight.handle, tf_ops::Const(graph.host, options.sigma), seed(index)));
  for (const Output& slot : weight.slots) {
    if (options.copy_slots) {
      done.push_back(ops::Spawn(scope, slot, tf_ops::Const(graph.host, 0.0), seed(0)));
    } else {
      const Output zeros = ZerosInGraph(scope, graph.dtype, weight.shape);
      done.push_back(tf_ops::AssignVariableOp(scope, slot, zeros).operation);
    }
  }
  if (weight.count.node() != nullptr) {
    done.push_back(
        tf_ops::AssignVariableOp(scope, weight.count, CountsAtStart(graph, weight)).operation);
  }
  return tf_ops::NoOp(scope.WithControlDependencies(done)).operation;
}

Operation SpawnState(const GraphContext& graph, const ModelState& state) {
  return ops::Spawn(graph.scope, state.handle, tf_ops::Const(graph.host, 0.0),
                    tf_ops::Const<int64_t>(graph.host, {0, 0}, {2}));
}

}  // namespace late_phase

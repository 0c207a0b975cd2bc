#include "ops/worker_sum.h"

#include <vector>

#include "ops/add_node.h"
#include "tensorflow/cc/ops/const_op.h"

namespace late_phase {
namespace ops {

tensorflow::Output WorkerSum(const tensorflow::Scope& scope, tensorflow::Output value,
                             const WorkerSumKeys& keys) {
  // Keys are in host memory on every device.
  const tensorflow::Scope host = scope.NewSubScope("keys").WithDevice("/device:CPU:0");
  auto number = [&](int32_t n) -> tensorflow::Output { return tensorflow::ops::Const(host, n); };
  return WorkerSum(scope, value, number(keys.workers), number(keys.group), number(keys.sum));
}

tensorflow::Output WorkerSum(const tensorflow::Scope& scope, tensorflow::Output value,
                             tensorflow::Output workers, tensorflow::Output group,
                             tensorflow::Output sum) {
  return GetOutput(
      AddNode(scope, "CollectiveReduceV2", "WorkerSum", {value, workers, group, sum},
              [](tensorflow::NodeBuilder* builder) {
                builder
                    ->Input(std::vector<tensorflow::NodeBuilder::NodeOut>())  // no ordering tokens
                    .Attr("merge_op", "Add")
                    .Attr("final_op", "Id");
              }),
      0);
}

}  // namespace ops
}  // namespace late_phase

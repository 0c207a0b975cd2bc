// The sum of a tensor over several processes: TensorFlow's CollectiveReduceV2, which has no C++
// wrapper of its own, with a C++ gradient.
#ifndef LATE_PHASE_OPS_WORKER_SUM_H_
#define LATE_PHASE_OPS_WORKER_SUM_H_

#include <cstdint>

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {
namespace ops {

// Which sum it is, the same in all processes.
struct WorkerSumKeys {
  int32_t workers;  // how many add up
  int32_t group;    // on which kind of device; all sums of a group are on the same
  int32_t sum;      // of the group; the next number belongs to the sum's gradient
};

// `value` of any shape, bfloat16, half, float, double, int32 or int64. Of the same shape.
tensorflow::Output WorkerSum(const tensorflow::Scope& scope, tensorflow::Output value,
                             const WorkerSumKeys& keys);

// The same with the keys as tensors, int32 [].
tensorflow::Output WorkerSum(const tensorflow::Scope& scope, tensorflow::Output value,
                             tensorflow::Output workers, tensorflow::Output group,
                             tensorflow::Output sum);

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_WORKER_SUM_H_

// Checkpoints of a run of several workers: the first one reads and writes the files, and what a
// checkpoint holds is what one worker's would hold. So a run may be resumed by any number of them.
#ifndef LATE_PHASE_OPTIMIZERS_WORKER_CHECKPOINT_H_
#define LATE_PHASE_OPTIMIZERS_WORKER_CHECKPOINT_H_

#include "absl/status/statusor.h"
#include "optimizers/checkpoint.h"
#include "optimizers/workers.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// The first worker's state, on every worker; what the others pass is ignored.
absl::StatusOr<CheckpointState> FirstState(const CheckpointState& state, Workers* workers);

// The rows of all workers, in the order of their tasks; `own` is of the same shape everywhere.
absl::StatusOr<tensorflow::Tensor> JoinRows(const tensorflow::Tensor& own, Workers* workers);

// This worker's share of the rows. REQUIRES: their number is a multiple of the workers'.
tensorflow::Tensor OwnRows(const tensorflow::Tensor& joint, const Share& share);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_WORKER_CHECKPOINT_H_

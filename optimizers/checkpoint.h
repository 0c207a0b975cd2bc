// A run's state on disk, in TensorFlow's checkpoint format: whole or not at all.
//
// Each checkpoint is a folder DIR/step-000000000017 with the tensor bundle `state`. It is written
// under another name and renamed when it is complete and on the disk, so a process killed at any
// moment, or a power failure, leaves the last complete one; the one before is removed only then.
#ifndef LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_
#define LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// Settings in the order in which differences are reported.
using Settings = std::vector<std::pair<std::string, std::string>>;

struct CheckpointState {
  int64_t step = 0;
  std::map<std::string, tensorflow::Tensor> variables;
  Settings settings;  // must be equal on restoring
  int threads = 0;    // another count is no error, but changes rounding
};

// Writes a checkpoint and then removes older ones. These stay if anything fails, a disk that does
// not confirm what was written to it included.
absl::Status WriteCheckpoint(const std::string& dir, const CheckpointState& state);

// The newest complete checkpoint of the folder, or none.
std::optional<std::string> LatestCheckpoint(const std::string& dir);

// Reads one whole. `path` is what LatestCheckpoint returned.
absl::Status ReadCheckpoint(const std::string& path, CheckpointState* state);

// Names the first setting, or variable, in which two runs differ; OK if none.
absl::Status SameSettings(const Settings& saved, const Settings& wanted);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_

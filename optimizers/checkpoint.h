// A run's state on disk, in TensorFlow's checkpoint format, complete or not there at all.
//
// Each checkpoint is a folder DIR/step-000000000017 with the tensor bundle `state`. It is written
// under another name and renamed when it is complete and on the disk, so a process killed at any
// moment, or a power failure, leaves the last complete one; the one before is removed only then.
#ifndef LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_
#define LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "optimizers/settings.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// 2: settings of runs on text say on how much of it. 1: numbers in settings have all their digits
// (optimizers/number_text.h). 0, of version 0.1.0: they have six.
inline constexpr int64_t kCheckpointFormat = 2;
inline constexpr char kTrainCharacters[] = "train_characters";  // the setting that came with 2

struct CheckpointState {
  int64_t step = 0;
  std::map<std::string, tensorflow::Tensor> variables;
  Settings settings;  // must be equal when restoring
  int threads = 0;    // another count is no error, but changes rounding
  int64_t format = kCheckpointFormat;
};

// Writes a checkpoint and then removes older ones. They stay if anything fails, including a disk
// that does not confirm what was written to it.
[[nodiscard]] absl::Status WriteCheckpoint(const std::string& dir, const CheckpointState& state);

// Everything in a state as tensors by name, which is what a checkpoint's file holds; and back.
std::map<std::string, tensorflow::Tensor> ToTensors(const CheckpointState& state);
absl::StatusOr<CheckpointState> FromTensors(
    const std::map<std::string, tensorflow::Tensor>& tensors);

// The newest complete checkpoint of the folder, or none.
std::optional<std::string> LatestCheckpoint(const std::string& dir);

// `path` is what LatestCheckpoint returned.
absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& path);

// Names the first setting, or variable, in which a run differs from a checkpoint; OK if none. Where
// the checkpoint has six digits of a number, those must agree; what its format did not have is not
// compared.
[[nodiscard]] absl::Status SameSettings(const CheckpointState& saved, const Settings& wanted);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_CHECKPOINT_H_

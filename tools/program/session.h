// What the commands that run TensorFlow share: the choice of a device, statuses as exceptions.
#ifndef LATE_PHASE_TOOLS_PROGRAM_SESSION_H_
#define LATE_PHASE_TOOLS_PROGRAM_SESSION_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace late_phase {

// Throws std::runtime_error with the status's text if it is not OK, or UsageError if the user can
// fix it.
void Require(const absl::Status& status);

// The value; throws as above if there is none.
template <typename T>
T Require(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

// Flags that say how a command works, not what it computes.
struct SessionFlags {
  std::string device;  // "CPU:0", "GPU:0"; empty: a GPU if there is one
  int64_t threads;
  SessionFlags();
};
void AddSessionFlags(SessionFlags* flags, CLI::App* app);
// Chooses the device if `device` is empty; throws UsageError if there is no such device.
void ChooseDevice(SessionFlags* flags);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_SESSION_H_

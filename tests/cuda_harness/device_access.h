// When device memory may be touched: while a kernel, a copy or a matrix product runs, and never in
// between, because on a GPU the host cannot. A test that keeps its memory out of reach in between
// (mprotect) finds host code that forgets this.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ACCESS_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ACCESS_H_

#include <functional>

namespace late_phase {
namespace cuda_harness {

// Is called with true when the device begins to work, with false when it is done.
inline std::function<void(bool at_work)> on_device_access = [](bool) {};

class DeviceAccess {
 public:
  DeviceAccess() { on_device_access(true); }
  ~DeviceAccess() { on_device_access(false); }
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ACCESS_H_

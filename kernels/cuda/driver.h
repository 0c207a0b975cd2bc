// Whether the machine's CUDA driver supports the library. Versions are CUDA's: 13000
// is 13.0.
#ifndef LATE_PHASE_KERNELS_CUDA_DRIVER_H_
#define LATE_PHASE_KERNELS_CUDA_DRIVER_H_

#include <string>

namespace late_phase {

std::string CudaVersionText(int version);

// What to tell the user when the library is loaded; empty if all is well. `toolkit` is what the
// library was built with, `driver` the newest version that the driver supports, 0 without a driver.
// Within a major version every driver supports every toolkit.
[[nodiscard]] std::string DriverWarning(int toolkit, int driver);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_DRIVER_H_

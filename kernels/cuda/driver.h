// Whether the machine's CUDA driver serves the library. Versions as CUDA counts them: 13000
// is 13.0.
#ifndef LATE_PHASE_KERNELS_CUDA_DRIVER_H_
#define LATE_PHASE_KERNELS_CUDA_DRIVER_H_

#include <string>

namespace late_phase {

std::string CudaVersionText(int version);

// What to tell the user when the library is loaded; empty if there is nothing to tell. `toolkit` is
// what the library was built with, `driver` the newest version that the driver serves, 0 without a
// driver. Within a major version every driver serves every toolkit.
[[nodiscard]] std::string DriverWarning(int toolkit, int driver);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_DRIVER_H_

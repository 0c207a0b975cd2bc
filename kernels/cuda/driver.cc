#include "kernels/cuda/driver.h"

namespace late_phase {

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string DriverWarning(int toolkit, int driver) {
  const int major = toolkit / 1000;
  if (driver == 0 || driver / 1000 >= major) return "";
  std::string text =
      "late_phase: the CUDA driver is too old for the GPU kernels: they were built with CUDA " +
      CudaVersionText(toolkit) + ", the driver supports CUDA up to " + CudaVersionText(driver) +
      ". CPU kernels work. For the GPU, install a driver";
  if (major == 12) text += " of the 525 series or newer";
  if (major == 13) text += " of the 580 series or newer";
  return text + ", or build late_phase with a toolkit of CUDA " + std::to_string(driver / 1000) +
         " (LATE_PHASE_CUDA).";
}

}  // namespace late_phase

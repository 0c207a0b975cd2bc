#include "kernels/cuda/runtime.h"

#include <cuda_runtime.h>

namespace late_phase {
namespace {

// Never launched. It can be loaded only if the library was built for this GPU.
__global__ void Probe() {}

}  // namespace

CudaVersions AskCudaVersions() {
  CudaVersions versions = {CUDART_VERSION, 0};
  cudaDriverGetVersion(&versions.driver);  // stays 0 when there is no driver
  return versions;
}

CudaReport AskCuda() {
  CudaReport report = {AskCudaVersions(), 0, false};
  if (cudaGetDeviceCount(&report.devices) != cudaSuccess) report.devices = 0;
  if (report.devices > 0) {
    cudaFuncAttributes attributes;
    report.has_code = cudaFuncGetAttributes(&attributes, Probe) == cudaSuccess;
  }
  cudaGetLastError();  // the calls above may fail by design: leave no error behind
  return report;
}

}  // namespace late_phase

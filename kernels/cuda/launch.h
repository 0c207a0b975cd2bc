// How a CUDA core starts a kernel: a function in place of <<<...>>>, which only nvcc can parse, so
// that the CUDA harness (tests/cuda_harness) compiles and runs the same source.
#ifndef LATE_PHASE_KERNELS_CUDA_LAUNCH_H_
#define LATE_PHASE_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

namespace late_phase {

// Empty on success, else an error message. Clears the runtime's error, since it is reported
// here, so that the next caller does not see it again.
[[nodiscard]] inline std::string CudaErrorText(const std::string& what, cudaError_t error) {
  if (error == cudaSuccess) return "";
  cudaGetLastError();
  return what + ": " + cudaGetErrorString(error);
}

struct KernelLaunch {
  const char* name;  // of the kernel, for messages
  dim3 grid, block;
  size_t shared_bytes;  // dynamic shared memory; kernels/cuda/shared.h
  cudaStream_t stream;
};

// Empty, or an error message. On a GPU that covers only what is known before the kernel has run.
template <typename... Parameters, typename... Arguments>
[[nodiscard]] std::string LaunchKernel(const KernelLaunch& launch, void (*kernel)(Parameters...),
                                       Arguments&&... arguments) {
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t error = std::apply(
      [&](auto&... value) {
        void* addresses[] = {static_cast<void*>(&value)..., nullptr};
        return cudaLaunchKernel(kernel, launch.grid, launch.block, addresses, launch.shared_bytes,
                                launch.stream);
      },
      values);
  return CudaErrorText(std::string("CUDA kernel ") + launch.name, error);
}

// The grid for `blocks` blocks' work in a grid-stride loop: no more than the device runs at once,
// so that no block waits for a second round. Asks the runtime, which caches the answer: about a
// microsecond.
template <typename... Parameters>
unsigned GridForBlocks(int64_t blocks, void (*kernel)(Parameters...), int threads,
                       size_t shared_bytes) {
  int device = 0, multiprocessors = 1, resident = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared_bytes);
  return static_cast<unsigned>(
      std::max<int64_t>(1, std::min<int64_t>(blocks, int64_t{multiprocessors} * resident)));
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_LAUNCH_H_

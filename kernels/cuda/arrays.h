// Arrays in device memory: copied, cleared, converted between 16-bit types and float. On a stream:
// each function returns before its work is done, empty or with an error message.
#ifndef LATE_PHASE_KERNELS_CUDA_ARRAYS_H_
#define LATE_PHASE_KERNELS_CUDA_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/stream.h"
#include "kernels/half_types.h"

namespace late_phase {

// T: Half, BFloat16.
template <typename T>
[[nodiscard]] std::string WidenGpu(int64_t size, const T* from, float* to, CudaStream stream);
template <typename T>
[[nodiscard]] std::string RoundGpu(int64_t size, const float* from, T* to, CudaStream stream);

[[nodiscard]] std::string CopyGpu(size_t bytes, const void* from, void* to, CudaStream stream);
[[nodiscard]] std::string ZeroGpu(size_t bytes, void* to, CudaStream stream);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_ARRAYS_H_

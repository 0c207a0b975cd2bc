// Applies a function of single elements to whole arrays, with one kernel for all such functions: a
// grid-stride loop over packs of elements (kernels/cuda/elements.h).
//
//   struct Negate {
//     float* x;
//     template <int kLanes>  // for the kLanes elements from i on
//     __device__ __forceinline__ void At(int64_t i) const { ... }
//   };
//   return ForElements<4>("Negate", D, IsAligned<4>(x), Negate{x}, stream);
#ifndef LATE_PHASE_KERNELS_CUDA_FOR_ELEMENTS_H_
#define LATE_PHASE_KERNELS_CUDA_FOR_ELEMENTS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/launch.h"

namespace late_phase {

// At most 64 registers per thread: at least half of a multiprocessor's threads have work.
constexpr int kElementsThreads = 256, kElementsBlocks = 4;

template <int kLanes, class Function>
__global__ void __launch_bounds__(kElementsThreads, kElementsBlocks)
    ElementsKernel(int64_t D, Function function) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, packs = D / kLanes;
  for (int64_t i = thread; i < packs; i += stride) function.template At<kLanes>(i * kLanes);
  // The elements left over, fewer than kLanes, go to the first threads.
  const int64_t rest = packs * kLanes + thread;
  if (rest < D) function.template At<1>(rest);
}

template <int kLanes, class Function>
[[nodiscard]] std::string LaunchElements(const char* name, int64_t D, const Function& function,
                                         cudaStream_t stream) {
  constexpr int64_t kBlock = int64_t{kElementsThreads} * kLanes;
  const auto kernel = ElementsKernel<kLanes, Function>;
  const unsigned grid = GridForBlocks((D + kBlock - 1) / kBlock, kernel, kElementsThreads, 0);
  return LaunchKernel({name, grid, kElementsThreads, 0, stream}, kernel, D, function);
}

// All D elements, `kLanes` at a time where every array is aligned to that, else one by one; a warp
// still coalesces the reads of single elements.
template <int kLanes, class Function>
[[nodiscard]] std::string ForElements(const char* name, int64_t D, bool aligned,
                                      const Function& function, cudaStream_t stream) {
  if (D == 0) return "";
  return aligned ? LaunchElements<kLanes>(name, D, function, stream)
                 : LaunchElements<1>(name, D, function, stream);
}

template <int kLanes, typename T>
bool IsAligned(const T* array) {
  return reinterpret_cast<uintptr_t>(array) % (kLanes * sizeof(T)) == 0;
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_FOR_ELEMENTS_H_

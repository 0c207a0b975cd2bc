// Sums and maxima over the threads of a warp or a block of a CUDA kernel, always in the same order.
// All threads take part, and all have the result.
#ifndef LATE_PHASE_KERNELS_CUDA_REDUCE_H_
#define LATE_PHASE_KERNELS_CUDA_REDUCE_H_

#include <cuda_runtime.h>

#include "kernels/cuda/shared.h"

namespace late_phase {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFF;

struct Sum {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return a + b;
  }
};

// The larger number; NaN is ignored.
struct Largest {
  template <typename S>
  __device__ __forceinline__ S operator()(S a, S b) const {
    return fmax(a, b);
  }
};

// Over the warp. Every lane adds the same pairs, a + b or b + a, and so gets the same bits.
template <typename S, class Operation>
__device__ __forceinline__ S ReduceWarp(S value, Operation operation) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = operation(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over a block of kThreads threads along x, a multiple of a warp.
template <int kThreads, typename S, class Operation>
__device__ __forceinline__ S ReduceBlock(S value, Operation operation) {
  static_assert(kThreads % kWarp == 0, "whole warps");
  constexpr int kWarps = kThreads / kWarp;
  __shared__ Shared<S, kWarps> of_warp;
  value = ReduceWarp(value, operation);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) value = operation(value, S(of_warp[warp]));
  __syncthreads();  // the next reduction writes into the same array
  return value;
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_REDUCE_H_

// Shared memory of a CUDA kernel as types: plain arrays on a GPU, monitored ones in the CUDA
// harness (tests/cuda_harness), which finds races and reads of uninitialised memory.
//
//   __shared__ Shared<float, 32> sums;          // declared in the kernel
//   DynamicShared<float> rows(offset_bytes);    // part of the launch's shared_bytes, aligned to T
//   sums[warp] = sum;                           // float x = sums[i], not auto
#ifndef LATE_PHASE_KERNELS_CUDA_SHARED_H_
#define LATE_PHASE_KERNELS_CUDA_SHARED_H_

#if defined(__CUDACC__)

namespace late_phase {

template <typename T, int N>
struct Shared {
  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  T values[N];
};

template <typename T>
class DynamicShared {
 public:
  __device__ __forceinline__ explicit DynamicShared(int offset_bytes = 0) {
    extern __shared__ __align__(16) unsigned char late_phase_dynamic_shared[];
    values_ = reinterpret_cast<T*>(late_phase_dynamic_shared + offset_bytes);
  }
  __device__ __forceinline__ T& operator[](int i) const { return values_[i]; }

 private:
  T* values_;
};

}  // namespace late_phase

#else
#include <cuda_shared_tracked.h>  // the harness's
#endif

#endif  // LATE_PHASE_KERNELS_CUDA_SHARED_H_

// A function that the CPU and the CUDA cores share.
#ifndef LATE_PHASE_KERNELS_HOST_DEVICE_H_
#define LATE_PHASE_KERNELS_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define LATE_PHASE_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Always inlined: the caller's loop is vectorised only if it calls nothing.
#define LATE_PHASE_HOST_DEVICE inline __attribute__((always_inline))
#endif

#endif  // LATE_PHASE_KERNELS_HOST_DEVICE_H_

// __half for kernels in the CUDA harness: storage and conversions; arithmetic is done in float.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_

#include <cuda_runtime.h>

struct __half {
  __half() = default;
  // Rounds to the nearest, ties to even.
  __half(float value) : value(static_cast<_Float16>(value)) {}
  operator float() const { return static_cast<float>(value); }
  _Float16 value;
};
using half = __half;

inline __half __float2half(float value) { return value; }
inline __half __ushort_as_half(unsigned short bits) { return __builtin_bit_cast(__half, bits); }
inline unsigned short __half_as_ushort(__half value) {
  return __builtin_bit_cast(unsigned short, value);
}
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_

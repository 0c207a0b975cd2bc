// __nv_bfloat16 for kernels in the CUDA harness: storage and conversions; arithmetic is done in
// float.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_BF16_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_BF16_H_

#include <cuda_runtime.h>

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  // The upper half of a float. Rounds to the nearest, ties to even; a NaN stays one.
  __nv_bfloat16(float value) {
    const unsigned word = __float_as_uint(value);
    bits = value != value ? 0x7FFF : (word + 0x7FFF + (word >> 16 & 1)) >> 16;
  }
  operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
  unsigned short bits;
};

inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __builtin_bit_cast(__nv_bfloat16, bits);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_BF16_H_

// __half for kernels in the CUDA harness: storage and conversions; arithmetic is done in float.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_

#include <cuda_runtime.h>

struct __half {
  __half() = default;
  // Rounds to the nearest, ties to even; a NaN stays one. Not by _Float16, which Clang lacks on
  // most processors.
  __half(float value) {
    const unsigned word = __float_as_uint(value), sign = word >> 16 & 0x8000;
    const unsigned absolute = word & 0x7FFFFFFF;
    const float magnitude = __uint_as_float(absolute);
    unsigned rounded;
    if (value != value) {
      rounded = 0x7E00;
    } else if (magnitude >= 65520) {  // as far from 65504, the largest, as from what would be next
      rounded = 0x7C00;
    } else if (magnitude < 0x1p-14f) {  // subnormal: multiples of 2^-24, as floats next to 0.5 are
      rounded = __float_as_uint(magnitude + 0.5f) - __float_as_uint(0.5f);
    } else {
      rounded = (absolute + 0xFFF + (absolute >> 13 & 1) - kBias) >> 13;
    }
    bits = static_cast<unsigned short>(sign | rounded);
  }
  operator float() const {
    const unsigned sign = (bits & 0x8000u) << 16, absolute = bits & 0x7FFFu;
    const unsigned magnitude = absolute < 0x400    ? __float_as_uint(absolute * 0x1p-24f)
                               : absolute < 0x7C00 ? (absolute << 13) + kBias
                                                   : absolute << 13 | 0x7F800000;
    return __uint_as_float(sign | magnitude);
  }
  static constexpr unsigned kBias = (127 - 15) << 23;  // between the exponents, as a float has them
  unsigned short bits;
};
using half = __half;

inline __half __float2half(float value) { return value; }
inline __half __ushort_as_half(unsigned short bits) { return __builtin_bit_cast(__half, bits); }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_FP16_H_

// How a CUDA kernel reads and writes elements of arrays: several per instruction, and 16-bit
// types as floats.
#ifndef LATE_PHASE_KERNELS_CUDA_ELEMENTS_H_
#define LATE_PHASE_KERNELS_CUDA_ELEMENTS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/half_types.h"

namespace late_phase {

__device__ __forceinline__ float Widened(float x) { return x; }
__device__ __forceinline__ double Widened(double x) { return x; }
__device__ __forceinline__ float Widened(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ __forceinline__ float Widened(BFloat16 x) {
  return __bfloat162float(__ushort_as_bfloat16(x.bits));
}

// To the nearest, ties to even.
template <typename T>
__device__ __forceinline__ T Rounded(ComputeType<T> x) {
  return x;
}
template <>
__device__ __forceinline__ Half Rounded<Half>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
template <>
__device__ __forceinline__ BFloat16 Rounded<BFloat16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

// Elements that are read or written by one instruction, if they take at most 16 bytes.
template <typename T, int kLanes>
struct alignas(kLanes * sizeof(T)) Pack {
  T lane[kLanes];
};

template <typename T>
constexpr int kWidestPack = 16 / sizeof(T);

template <int kLanes, typename T>
__device__ __forceinline__ Pack<T, kLanes> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kLanes>*>(from);
}
template <int kLanes, typename T>
__device__ __forceinline__ void StorePack(const Pack<T, kLanes>& pack, T* to) {
  *reinterpret_cast<Pack<T, kLanes>*>(to) = pack;
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_ELEMENTS_H_

// 16-bit floating-point numbers as arrays hold them, for headers that are read without TensorFlow
// and without CUDA. Computations on them are in float.
#ifndef LATE_PHASE_KERNELS_HALF_TYPES_H_
#define LATE_PHASE_KERNELS_HALF_TYPES_H_

#include <cstdint>
#include <type_traits>

namespace late_phase {

struct Half {  // Eigen::half, CUDA's __half
  uint16_t bits;
};
struct BFloat16 {  // Eigen::bfloat16, CUDA's __nv_bfloat16
  uint16_t bits;
};

// What a core computes in where arrays hold T; also the type of arrays that accumulate many values:
// statistics, slots, sums and averages.
template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_HALF_TYPES_H_

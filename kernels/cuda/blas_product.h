// A row-major matrix product in the terms of BLAS, which is column-major.
#ifndef LATE_PHASE_KERNELS_CUDA_BLAS_PRODUCT_H_
#define LATE_PHASE_KERNELS_CUDA_BLAS_PRODUCT_H_

#include <cstdint>

#include "kernels/cuda/matmul.h"

namespace late_phase {

// Arrays read by columns are their own transposes, so BLAS computes Cᵀ = Bᵀ·Aᵀ: its left operand
// is B, its right one A, its result C.
//   left [m,k] or transposed [k,m]     right [k,n] or transposed [n,k]     result [m,n]
// with `left_stride` and so on from one column to the next.
struct BlasProduct {
  explicit BlasProduct(const CudaProduct& p)
      : m(p.n),
        n(p.m),
        k(p.k),
        transpose_left(p.transpose_b),
        transpose_right(p.transpose_a),
        left_stride(p.transpose_b ? p.k : p.n),
        right_stride(p.transpose_a ? p.m : p.k),
        result_stride(p.n) {}

  int64_t m, n, k;
  bool transpose_left, transpose_right;
  int64_t left_stride, right_stride, result_stride;
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_BLAS_PRODUCT_H_

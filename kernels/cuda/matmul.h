// Matrix products as CUDA cores ask for them: TensorFlow's BLAS on its stream in a program
// (kernels/op_kernel/gpu_device.cc), a plain loop in the CUDA harness.
#ifndef LATE_PHASE_KERNELS_CUDA_MATMUL_H_
#define LATE_PHASE_KERNELS_CUDA_MATMUL_H_

#include <cstdint>
#include <string>

namespace late_phase {

// C = A·B, or C + A·B if `add`. Row-major without gaps, in device memory:
//   A [m,k], or [k,m] if transpose_a     B [k,n], or [n,k] if transpose_b     C [m,n]
// Any size may be 0; a sum over k = 0 is 0.
struct CudaProduct {
  int64_t m, k, n;
  bool transpose_a = false, transpose_b = false, add = false;
};

class CudaMatmul {
 public:
  virtual ~CudaMatmul() = default;

  // Enqueued on the stream of the core's call. Empty, or an error message.
  [[nodiscard]] virtual std::string Run(const CudaProduct& product, const float* a, const float* b,
                                        float* c) const = 0;
  [[nodiscard]] virtual std::string Run(const CudaProduct& product, const double* a,
                                        const double* b, double* c) const = 0;
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_MATMUL_H_

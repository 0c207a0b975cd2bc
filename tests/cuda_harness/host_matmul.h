// Matrix products for CUDA cores in the harness: plain loops that sum in double.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_HOST_MATMUL_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_HOST_MATMUL_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/matmul.h"
#include "tests/cuda_harness/device_access.h"

namespace late_phase {
namespace cuda_harness {

class HostMatmul : public CudaMatmul {
 public:
  static constexpr const char* kRefused = "HostMatmul: refused";

  // Fails after this many products, so that a test sees where the error goes.
  explicit HostMatmul(int64_t products = std::numeric_limits<int64_t>::max()) : left_(products) {}

  int64_t refused() const { return left_ < 0 ? -left_ : 0; }

  std::string Run(const CudaProduct& product, const float* a, const float* b,
                  float* c) const override {
    return Multiply(product, a, b, c);
  }
  std::string Run(const CudaProduct& product, const double* a, const double* b,
                  double* c) const override {
    return Multiply(product, a, b, c);
  }

 private:
  template <typename T>
  [[nodiscard]] std::string Multiply(const CudaProduct& p, const T* a, const T* b, T* c) const {
    if (--left_ < 0) return kRefused;
    if (p.m < 0 || p.k < 0 || p.n < 0) return "HostMatmul: a size is negative";
    const DeviceAccess access;
    std::vector<double> row(p.n);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) row[j] = p.add ? c[i * p.n + j] : 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const double x = p.transpose_a ? a[k * p.m + i] : a[i * p.k + k];
        const T* column = p.transpose_b ? b + k : b + k * p.n;
        const int64_t stride = p.transpose_b ? p.k : 1;
        for (int64_t j = 0; j < p.n; ++j) row[j] += x * column[j * stride];
      }
      for (int64_t j = 0; j < p.n; ++j) c[i * p.n + j] = static_cast<T>(row[j]);
    }
    return "";
  }

  mutable int64_t left_;
};

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_HOST_MATMUL_H_

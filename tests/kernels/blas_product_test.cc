// What BLAS is asked for, carried out by columns as BLAS documents it, is the row-major product.
#include "kernels/cuda/blas_product.h"

#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_harness/host_matmul.h"

namespace late_phase {
namespace {

// BLAS's gemm: every operand column after column.
std::vector<double> ByColumns(const BlasProduct& p, const std::vector<double>& left,
                              const std::vector<double>& right, std::vector<double> result,
                              double beta) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const double a =
            p.transpose_left ? left.at(k + i * p.left_stride) : left.at(i + k * p.left_stride);
        const double b =
            p.transpose_right ? right.at(j + k * p.right_stride) : right.at(k + j * p.right_stride);
        sum += a * b;
      }
      double& c = result.at(i + j * p.result_stride);
      c = sum + beta * c;
    }
  }
  return result;
}

std::vector<double> Numbers(int64_t size, int step) {
  std::vector<double> numbers(size);
  for (int64_t i = 0; i < size; ++i) numbers[i] = static_cast<double>((i * step + 3) % 17) - 8;
  return numbers;
}

TEST(BlasProductTest, IsTheRowMajorProduct) {
  for (const auto& [m, k, n] : {std::tuple(2, 3, 4), std::tuple(5, 1, 3), std::tuple(1, 7, 2)}) {
    for (int options = 0; options < 8; ++options) {
      CudaProduct product{m, k, n};
      product.transpose_a = (options & 1) != 0;
      product.transpose_b = (options & 2) != 0;
      product.add = (options & 4) != 0;
      const auto a = Numbers(m * k, 5), b = Numbers(k * n, 7), c = Numbers(m * n, 11);
      std::vector<double> expected = c;
      ASSERT_EQ(cuda_harness::HostMatmul().Run(product, a.data(), b.data(), expected.data()), "");
      EXPECT_EQ(ByColumns(BlasProduct(product), b, a, c, product.add ? 1 : 0), expected)
          << m << " " << k << " " << n << ", options " << options;
    }
  }
}

}  // namespace
}  // namespace late_phase

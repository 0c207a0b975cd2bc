// Correct kernels for the test of the CUDA harness, written like the CUDA cores: compiled by
// nvcc and, for the harness, by the host compiler.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_TEST_KERNELS_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_TEST_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace late_phase {
namespace test_util {

// y = a · x     both [size]
template <typename T>
[[nodiscard]] std::string Scale(int64_t size, T a, const T* x, T* y, cudaStream_t stream);

// sums[r] = Σ x[r, c]     x: [rows, columns], sums: [rows]; a block of `threads` per row
template <typename T>
[[nodiscard]] std::string SumRows(int64_t rows, int64_t columns, const T* x, T* sums, int threads,
                                  cudaStream_t stream);

// y[r] = the elements of x[r] backwards, in dynamic shared memory     both [rows, columns]
[[nodiscard]] std::string ReverseRows(int64_t rows, int columns, const float* x, float* y,
                                      cudaStream_t stream);

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_TEST_KERNELS_H_

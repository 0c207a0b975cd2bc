#include "tests/cuda_harness/test_kernels.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared.h"

namespace late_phase {
namespace test_util {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFF;

template <typename T>
__global__ void __launch_bounds__(256)
    ScaleKernel(int64_t size, T a, const T* __restrict__ x, T* __restrict__ y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += stride) {
    y[i] = a * x[i];
  }
}

// REQUIRES: blockDim.x is a multiple of 32.
template <typename T>
__global__ void SumRowsKernel(int64_t columns, const T* __restrict__ x, T* __restrict__ sums) {
  __shared__ Shared<T, 32> warp_sums;
  const T* const row = x + blockIdx.x * columns;
  T sum = 0;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) sum += row[c];
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(kAllLanes, sum, delta);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  sum = 0;
  if (lane < warps) sum = warp_sums[lane];
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(kAllLanes, sum, delta);
  if (lane == 0) sums[blockIdx.x] = sum;
}

__global__ void ReverseRowsKernel(int columns, const float* __restrict__ x, float* __restrict__ y) {
  const DynamicShared<float> row;
  const int64_t start = int64_t{blockIdx.x} * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) row[c] = x[start + c];
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) y[start + c] = row[columns - 1 - c];
}

}  // namespace

template <typename T>
std::string Scale(int64_t size, T a, const T* x, T* y, cudaStream_t stream) {
  if (size == 0) return "";
  const unsigned grid = GridForBlocks((size + 255) / 256, ScaleKernel<T>, 256, 0);
  return LaunchKernel({"Scale", grid, 256, 0, stream}, ScaleKernel<T>, size, a, x, y);
}
template std::string Scale(int64_t, float, const float*, float*, cudaStream_t);
template std::string Scale(int64_t, double, const double*, double*, cudaStream_t);

template <typename T>
std::string SumRows(int64_t rows, int64_t columns, const T* x, T* sums, int threads,
                    cudaStream_t stream) {
  return LaunchKernel({"SumRows", static_cast<unsigned>(rows), threads, 0, stream},
                      SumRowsKernel<T>, columns, x, sums);
}
template std::string SumRows(int64_t, int64_t, const float*, float*, int, cudaStream_t);
template std::string SumRows(int64_t, int64_t, const double*, double*, int, cudaStream_t);

std::string ReverseRows(int64_t rows, int columns, const float* x, float* y, cudaStream_t stream) {
  return LaunchKernel(
      {"ReverseRows", static_cast<unsigned>(rows), 64, columns * sizeof(float), stream},
      ReverseRowsKernel, columns, x, y);
}

}  // namespace test_util
}  // namespace late_phase

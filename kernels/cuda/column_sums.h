// Sums over the rows of a matrix, in an order that depends only on the shape: the same bits in
// every run.
//
// Two levels. The rows are cut into slices, and a block adds the rows of one slice in a tile of 32
// columns: every warp a row at a time, 128 bytes of floats, then the warps' sums. A second
// launch adds the slices' sums in the same way, unless there is only one slice.
//
// The matrix is read from memory once: with 12,800 rows of 2000 floats 102 MB, on an A100 (1555
// GB/s) 66 µs. 63 tiles of 64 slices are 4032 blocks of 8 warps, several for every slot on the
// device; the sums of the slices, 0.5 MB written and read, are the second launch's 3 to 5 µs.
// Estimated, not measured.
#ifndef LATE_PHASE_KERNELS_CUDA_COLUMN_SUMS_H_
#define LATE_PHASE_KERNELS_CUDA_COLUMN_SUMS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/shared.h"

namespace late_phase {

// Blocks that sum over rows: a warp, along x, per row.
constexpr int kSumWarps = 8;

// In a block of [kSumWarps,kWarp] threads: the sum over y, in the threads with y = 0. All take
// part.
template <typename S>
__device__ __forceinline__ S SumOverWarps(S value) {
  __shared__ Shared<S, kSumWarps * kWarp> values;
  values[threadIdx.y * kWarp + threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.y == 0) {
#pragma unroll
    for (int warp = 1; warp < kSumWarps; ++warp) value += S(values[warp * kWarp + threadIdx.x]);
  }
  __syncthreads();  // the next sum writes into the same array
  return value;
}

constexpr int64_t ColumnTiles(int64_t columns) { return (columns + kWarp - 1) / kWarp; }

// A slice has many rows per thread, and there are enough slices to fill a device with few columns.
inline int64_t ColumnSumSlices(int64_t rows) { return std::clamp<int64_t>(rows / 64, 1, 64); }

// Elements of scratch.
inline int64_t ColumnSumsWorkspace(int64_t rows, int64_t columns) {
  return ColumnSumSlices(rows) * columns;
}

// value(row, column) is called once for every element, so that it may also write there.
template <typename S, class Value>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    ColumnSumsKernel(int64_t rows, int64_t columns, int64_t slices, Value value, S* sums) {
  const int64_t tiles = ColumnTiles(columns);
  for (int64_t item = blockIdx.x; item < slices * tiles; item += gridDim.x) {
    const int64_t slice = item / tiles, column = item % tiles * kWarp + threadIdx.x;
    const int64_t longer = rows % slices;  // the first slices have one more row
    const int64_t begin = rows / slices * slice + (slice < longer ? slice : longer);
    const int64_t end = begin + rows / slices + (slice < longer ? 1 : 0);
    S sum = 0;
    if (column < columns) {
#pragma unroll 4
      for (int64_t row = begin + threadIdx.y; row < end; row += kSumWarps) {
        sum += value(row, column);
      }
    }
    sum = SumOverWarps(sum);
    if (threadIdx.y == 0 && column < columns) sums[slice * columns + column] = sum;
  }
}

template <typename S>
struct MatrixElement {
  const S* matrix;  // [·,columns]
  int64_t columns;

  __device__ __forceinline__ S operator()(int64_t row, int64_t column) const {
    return matrix[row * columns + column];
  }
};

// sums[column] = Σ_row value(row, column); 0 without rows.
template <typename S, class Value>
[[nodiscard]] std::string ColumnSums(const char* name, int64_t rows, int64_t columns,
                                     const Value& value,
                                     S* sums,       // [columns] out
                                     S* workspace,  // scratch of ColumnSumsWorkspace elements
                                     cudaStream_t stream) {
  const dim3 block(kWarp, kSumWarps);
  auto add = [&](int64_t of_rows, int64_t slices, auto of_value, S* to) {
    const auto kernel = ColumnSumsKernel<S, decltype(of_value)>;
    const int64_t items = slices * ColumnTiles(columns);
    const unsigned grid = GridForBlocks(items, kernel, kSumWarps * kWarp, 0);
    return LaunchKernel({name, grid, block, 0, stream}, kernel, of_rows, columns, slices, of_value,
                        to);
  };
  const int64_t slices = ColumnSumSlices(rows);
  if (slices == 1) return add(rows, 1, value, sums);
  if (std::string error = add(rows, slices, value, workspace); !error.empty()) return error;
  return add(slices, 1, MatrixElement<S>{workspace, columns}, sums);
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_COLUMN_SUMS_H_

// Spawning sums squares, turns them into a scale, and draws its noise where it is added. Averages
// and copies are functions of single elements and share one kernel. The bits are the CPU core's:
// sums are taken in its order, and no multiply-add is fused (same_bits in kernels/BUILD), which
// tests/kernels/cuda_code_test.py verifies in the compiled code.
//
// Times at the kernels are rooflines of an A100 (1555 GB/s; 9.7 T operations a second in float, as
// none are fused, half as many in double) for 36.5 million float weights, a whole WRN 28-10:
// estimated, not measured. A multiprocessor needs some 8 KB in flight to hide the latency of
// memory. Late-phase weights are far fewer: below some 100,000, launches of 3 to 5 µs dominate.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/shared.h"
#include "kernels/member_rows.h"
#include "kernels/philox_normal.h"

namespace late_phase {
namespace {

static_assert(kRmsLanes == 64, "SquaresKernel adds the lanes of two warps.");

// total + the values of the warp's lanes, in their order; in every lane.
__device__ __forceinline__ double AddLanesInOrder(double total, double value) {
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) total = total + __shfl_sync(kAllLanes, value, lane);
  return total;
}

// Σ x² of each block of kBlockElements, in the order that kRmsLanes documents: a CUDA block for
// each, a thread per lane.
//
// Two operations in double per float that is read: memory-bound, 0.1 ms. The order allows no more
// than 64 threads per block; 34 registers let 25 blocks run on a multiprocessor, each thread with
// eight reads in flight: 51 KB.
template <typename T>
__global__ void __launch_bounds__(kRmsLanes)
    SquaresKernel(int64_t D, const T* __restrict__ row0, int64_t blocks, double* sums) {
  __shared__ Shared<double, kRmsLanes> lanes;
  const int lane = threadIdx.x;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t begin = block * kBlockElements;
    const int64_t end = D - begin < kBlockElements ? D : begin + kBlockElements;
    double sum = 0;
#pragma unroll 8
    for (int64_t i = begin + lane; i < end; i += kRmsLanes) {
      const double value = Widened(row0[i]);
      sum = sum + value * value;
    }
    lanes[lane] = sum;
    __syncthreads();
    if (lane < 32) {
      double total = AddLanesInOrder(0, lanes[lane]);
      total = AddLanesInOrder(total, lanes[32 + lane]);
      if (lane == 0) sums[block] = total;
    }
    __syncthreads();  // before the lanes are written again
  }
}

// One warp adds the blocks' sums in order and leaves the scale of the noise after them. Neither
// memory nor arithmetic is the limit, but latency: 2,228 additions one after the other, with a read
// before every 32 of them, take some 50 µs.
template <typename T>
__global__ void __launch_bounds__(32)
    ScaleKernel(int64_t D, ComputeType<T> sigma, int64_t blocks, double* sums) {
  double total = 0;
  for (int64_t first = 0; first < blocks; first += 32) {
    const int64_t block = first + threadIdx.x;
    total = AddLanesInOrder(total, block < blocks ? sums[block] : 0);  // + 0 changes nothing
  }
  if (threadIdx.x > 0) return;
  const double rms = std::sqrt(total / static_cast<double>(D));
  sums[blocks] = static_cast<ComputeType<T>>(sigma * rms);
}

constexpr int kNoiseThreads = 128;

// A thread per Philox counter draws four normals for every row. They belong to elements 64 apart,
// so that a warp reads and writes 32 consecutive elements at a time. No other thread touches these
// elements of row 0: they are read before they are overwritten, so the order of rows does not
// matter.
//
// A normal takes some 35 operations in float (division and square root are ten each) and half as
// many in integers, which run in parallel, for the 4 bytes that are written: arithmetic
// is the limit, 1.3 ms for ten rows, where memory alone would take 1.0 ms. 36 registers let 12
// blocks, three quarters of the threads, run on a multiprocessor; the two pairs of normals are
// independent of each other.
template <typename T>
__global__ void __launch_bounds__(kNoiseThreads)
    NoiseKernel(SpawnArgs<T> args, NormalStream stream, int64_t counters,
                const double* __restrict__ scale_in_double) {
  using S = ComputeType<T>;
  const S scale = static_cast<S>(*scale_in_double);
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t counter = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; counter < counters;
       counter += threads) {
    const int64_t first = counter / kNormalStride * kNormalChunk + counter % kNormalStride;
    S source[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int64_t i = first + n * kNormalStride;
      source[n] = i < args.D ? Widened(args.rows[i]) : S(0);
    }
    for (int64_t k = 0; k < args.K; ++k) {
      float normals[4];
      FourNormals(stream, static_cast<uint32_t>(k), counter, normals);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int64_t i = first + n * kNormalStride;
        if (i >= args.D) continue;
        args.rows[k * args.D + i] = Rounded<T>(source[n] + scale * static_cast<S>(normals[n]));
      }
    }
  }
}

// Functions of single elements: At<kLanes>(i) does its work for the kLanes elements from i on.
// All of them are memory-bound. Bytes per float weight (twice that for double):
//   CopyRow       4 + 4 (K − 1)   row 0 is read once            1.0 ms for ten rows
//   FirstSample   8               16-bit types: 6               0.2 ms
//   NextSample    12              16-bit types: 10              0.3 ms
//   MeanOfRows    4 K + 4         2 K operations in double      1.0 ms for ten rows
// At most 40 registers for all but the last: at least six blocks of 256 threads on a
// multiprocessor. MeanOfRows takes 64, which lets four blocks run, each thread with four reads of
// 16 bytes in flight: 64 KB. GPUs with few units for double (sm_75, 86, 89) take some three times
// as long as their memory would.

// Rows 1 to K − 1 ← row 0.
template <typename T>
struct CopyRow {
  int64_t K, D;
  T* rows;

  template <int kLanes>
  __device__ __forceinline__ void At(int64_t i) const {
    const Pack<T, kLanes> source = LoadPack<kLanes>(rows + i);
    for (int64_t k = 1; k < K; ++k) StorePack(source, rows + k * D + i);
  }
};

// The first sample of an average, which may be uninitialised.
template <typename T>
struct FirstSample {
  const T* source;
  ComputeType<T>* average;

  template <int kLanes>
  __device__ __forceinline__ void At(int64_t i) const {
    const Pack<T, kLanes> x = LoadPack<kLanes>(source + i);
    Pack<ComputeType<T>, kLanes> y;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) y.lane[lane] = Widened(x.lane[lane]);
    StorePack(y, average + i);
  }
};

template <typename T>
struct NextSample {
  const T* source;
  ComputeType<T>* average;
  ComputeType<T> rate;

  template <int kLanes>
  __device__ __forceinline__ void At(int64_t i) const {
    const Pack<T, kLanes> x = LoadPack<kLanes>(source + i);
    Pack<ComputeType<T>, kLanes> y = LoadPack<kLanes>(average + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      y.lane[lane] = y.lane[lane] + rate * (Widened(x.lane[lane]) - y.lane[lane]);
    }
    StorePack(y, average + i);
  }
};

template <typename T>
struct MeanOfRows {
  int64_t K, D;
  const T* rows;
  T* mean;

  template <int kLanes>
  __device__ __forceinline__ void At(int64_t i) const {
    double first[kLanes], sums[kLanes];
    const Pack<T, kLanes> row0 = LoadPack<kLanes>(rows + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      first[lane] = Widened(row0.lane[lane]);
      sums[lane] = 0;
    }
#pragma unroll 4
    for (int64_t k = 1; k < K; ++k) {
      const Pack<T, kLanes> row = LoadPack<kLanes>(rows + k * D + i);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        sums[lane] = sums[lane] + (static_cast<double>(Widened(row.lane[lane])) - first[lane]);
      }
    }
    Pack<T, kLanes> result;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = first[lane] + sums[lane] / static_cast<double>(K);
      result.lane[lane] = Rounded<T>(static_cast<ComputeType<T>>(value));
    }
    StorePack(result, mean + i);
  }
};

// Every row of [K,D].
template <int kLanes, typename T>
bool AreRowsAligned(int64_t K, int64_t D, const T* rows) {
  return IsAligned<kLanes>(rows) && (K == 1 || D % kLanes == 0);
}

template <typename T>
constexpr int kLanesOf = kWidestPack<ComputeType<T>>;

}  // namespace

template <typename T>
std::string SpawnGpu(const SpawnArgs<T>& args, CudaStream stream) {
  if (args.D == 0) return "";
  if (args.sigma == 0) {
    constexpr int kLanes = kWidestPack<T>;
    return ForElements<kLanes>("SpawnCopies", args.D,
                               AreRowsAligned<kLanes>(args.K, args.D, args.rows),
                               CopyRow<T>{args.K, args.D, args.rows}, stream);
  }

  const int64_t blocks = SpawnSums(args.D) - 1;
  const unsigned grid = GridForBlocks(blocks, SquaresKernel<T>, kRmsLanes, 0);
  std::string error = LaunchKernel({"SpawnSquares", grid, kRmsLanes, 0, stream}, SquaresKernel<T>,
                                   args.D, args.rows, blocks, args.sums);
  if (!error.empty()) return error;
  error = LaunchKernel({"SpawnScale", 1, 32, 0, stream}, ScaleKernel<T>, args.D, args.sigma, blocks,
                       args.sums);
  if (!error.empty()) return error;

  const int64_t counters = (args.D + kNormalChunk - 1) / kNormalChunk * kNormalStride;
  const unsigned noise_grid = GridForBlocks((counters + kNoiseThreads - 1) / kNoiseThreads,
                                            NoiseKernel<T>, kNoiseThreads, 0);
  return LaunchKernel({"SpawnNoise", noise_grid, kNoiseThreads, 0, stream}, NoiseKernel<T>, args,
                      MakeNormalStream(args.seed[0], args.seed[1]), counters, args.sums + blocks);
}

template <typename T>
std::string SwaUpdateGpu(int64_t D, const T* source, int64_t count, ComputeType<T>* average,
                         CudaStream stream) {
  constexpr int kLanes = kLanesOf<T>;
  const bool aligned = IsAligned<kLanes>(source) && IsAligned<kLanes>(average);
  if (count == 0) {
    return ForElements<kLanes>("SwaUpdate", D, aligned, FirstSample<T>{source, average}, stream);
  }
  const auto rate = static_cast<ComputeType<T>>(1.0 / (static_cast<double>(count) + 1));
  return ForElements<kLanes>("SwaUpdate", D, aligned, NextSample<T>{source, average, rate}, stream);
}

template <typename T>
std::string CollapseGpu(int64_t K, int64_t D, const T* rows, T* mean, CudaStream stream) {
  constexpr int kLanes = kLanesOf<T>;
  const bool aligned = AreRowsAligned<kLanes>(K, D, rows) && IsAligned<kLanes>(mean);
  return ForElements<kLanes>("Collapse", D, aligned, MeanOfRows<T>{K, D, rows, mean}, stream);
}

#define LATE_PHASE_INSTANTIATE(T)                                                             \
  template std::string SpawnGpu(const SpawnArgs<T>&, CudaStream);                             \
  template std::string SwaUpdateGpu(int64_t, const T*, int64_t, ComputeType<T>*, CudaStream); \
  template std::string CollapseGpu(int64_t, int64_t, const T*, T*, CudaStream)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
LATE_PHASE_INSTANTIATE(Half);
LATE_PHASE_INSTANTIATE(BFloat16);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

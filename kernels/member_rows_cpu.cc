// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each. They are plain loops, which the compiler vectorises; with -ffp-contract=off (kernels/BUILD)
// all instruction sets, and CUDA, give the same bits.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/normals.h"
#include "kernels/member_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/member_rows_cpu.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {

// Σ x² over one block, in the order that kRmsLanes documents.
template <typename T>
double BlockSquares(const T* x, int64_t size) {
  double sums[kRmsLanes] = {};
  int64_t i = 0;
  for (; i + kRmsLanes <= size; i += kRmsLanes) {
    for (int64_t j = 0; j < kRmsLanes; ++j) {
      const double value = x[i + j];
      sums[j] += value * value;
    }
  }
  for (int64_t j = 0; i + j < size; ++j) {
    const double value = x[i + j];
    sums[j] += value * value;
  }
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

// Elements [begin, end) of all rows, begin being a multiple of kNormalChunk. Row 0 is the source,
// so it is written last.
template <typename T>
void SpawnBlock(const SpawnArgs<T>& args, const NormalStream& stream, T scale, int64_t begin,
                int64_t end) {
  float normals[kNormalChunk];
  for (int64_t i = begin; i < end; i += kNormalChunk) {
    const int64_t size = std::min(kNormalChunk, end - i);
    const T* source = args.rows + i;
    for (int64_t k = args.K - 1; k >= 0; --k) {
      FillNormals(stream, static_cast<uint32_t>(k), i / kNormalChunk, 1, normals);
      T* row = args.rows + k * args.D + i;
      for (int64_t j = 0; j < size; ++j) row[j] = source[j] + scale * static_cast<T>(normals[j]);
    }
  }
}

template <typename T>
void SwaBlock(const T* HWY_RESTRICT source, T rate, T* HWY_RESTRICT average, int64_t size) {
  for (int64_t i = 0; i < size; ++i) average[i] += rate * (source[i] - average[i]);
}

// kPiece elements of the mean, whose sums stay in registers, or the fewer at the end.
constexpr int64_t kPiece = 32;

template <typename T>
HWY_INLINE void CollapsePiece(int64_t K, int64_t D, const T* HWY_RESTRICT rows,
                              T* HWY_RESTRICT mean, int64_t size) {
  double first[kPiece], sums[kPiece] = {};
  for (int64_t j = 0; j < size; ++j) first[j] = rows[j];
  for (int64_t k = 1; k < K; ++k) {
    const T* row = rows + k * D;
    for (int64_t j = 0; j < size; ++j) sums[j] += static_cast<double>(row[j]) - first[j];
  }
  const double members = static_cast<double>(K);
  for (int64_t j = 0; j < size; ++j) mean[j] = static_cast<T>(first[j] + sums[j] / members);
}

template <typename T>
void CollapseBlock(int64_t K, int64_t D, const T* rows, T* mean, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + kPiece <= end; i += kPiece) CollapsePiece(K, D, rows + i, mean + i, kPiece);
  CollapsePiece(K, D, rows + i, mean + i, end - i);
}

// One name per type, so that LATE_PHASE_FOR_TARGET can take an address.
double SquaresFloat(const float* x, int64_t size) { return BlockSquares(x, size); }
double SquaresDouble(const double* x, int64_t size) { return BlockSquares(x, size); }
void SpawnFloat(const SpawnArgs<float>& args, const NormalStream& stream, float scale,
                int64_t begin, int64_t end) {
  SpawnBlock(args, stream, scale, begin, end);
}
void SpawnDouble(const SpawnArgs<double>& args, const NormalStream& stream, double scale,
                 int64_t begin, int64_t end) {
  SpawnBlock(args, stream, scale, begin, end);
}
void SwaFloat(const float* source, float rate, float* average, int64_t size) {
  SwaBlock(source, rate, average, size);
}
void SwaDouble(const double* source, double rate, double* average, int64_t size) {
  SwaBlock(source, rate, average, size);
}
void CollapseFloat(int64_t K, int64_t D, const float* rows, float* mean, int64_t begin,
                   int64_t end) {
  CollapseBlock(K, D, rows, mean, begin, end);
}
void CollapseDouble(int64_t K, int64_t D, const double* rows, double* mean, int64_t begin,
                    int64_t end) {
  CollapseBlock(K, D, rows, mean, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {
namespace {

static_assert(kBlockElements % kNormalChunk == 0 && kBlockElements % kRmsLanes == 0,
              "Blocks must be whole chunks of noise and of the sum of squares.");

template <typename T>
void Spawn(const SpawnArgs<T>& args, const Parallel& parallel,
           double (*squares)(const T* x, int64_t size),
           void (*spawn)(const SpawnArgs<T>& args, const NormalStream& stream, T scale,
                         int64_t begin, int64_t end)) {
  const int64_t D = args.D;
  if (D == 0) return;
  if (args.sigma == 0) {
    ForBlocks(D, parallel, [&](int64_t begin, int64_t end) {
      for (int64_t k = 1; k < args.K; ++k) {
        std::copy(args.rows + begin, args.rows + end, args.rows + k * D + begin);
      }
    });
    return;
  }

  ForBlocks(D, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlockElements) {
      args.sums[i / kBlockElements] = squares(args.rows + i, std::min(kBlockElements, end - i));
    }
  });
  double total = 0;
  for (int64_t i = 0; i < SpawnSums(D) - 1; ++i) total += args.sums[i];
  const T scale = static_cast<T>(args.sigma * std::sqrt(total / static_cast<double>(D)));

  const NormalStream stream = MakeNormalStream(args.seed[0], args.seed[1]);
  ForBlocks(D, parallel,
            [&](int64_t begin, int64_t end) { spawn(args, stream, scale, begin, end); });
}

template <typename T>
void SwaUpdate(int64_t D, const T* source, int64_t count, T* average, const Parallel& parallel,
               void (*update)(const T* source, T rate, T* average, int64_t size)) {
  const T rate = static_cast<T>(1.0 / (static_cast<double>(count) + 1));
  ForBlocks(D, parallel, [&](int64_t begin, int64_t end) {
    if (count == 0) {
      std::copy(source + begin, source + end, average + begin);
    } else {
      update(source + begin, rate, average + begin, end - begin);
    }
  });
}

template <typename T>
void Collapse(int64_t K, int64_t D, const T* rows, T* mean, const Parallel& parallel,
              void (*collapse)(int64_t K, int64_t D, const T* rows, T* mean, int64_t begin,
                               int64_t end)) {
  ForBlocks(D, parallel,
            [&](int64_t begin, int64_t end) { collapse(K, D, rows, mean, begin, end); });
}

}  // namespace

template <>
void SpawnCpu(const SpawnArgs<float>& args, const Parallel& parallel) {
  Spawn(args, parallel, LATE_PHASE_FOR_TARGET(SquaresFloat), LATE_PHASE_FOR_TARGET(SpawnFloat));
}
template <>
void SpawnCpu(const SpawnArgs<double>& args, const Parallel& parallel) {
  Spawn(args, parallel, LATE_PHASE_FOR_TARGET(SquaresDouble), LATE_PHASE_FOR_TARGET(SpawnDouble));
}
template <>
void SwaUpdateCpu(int64_t D, const float* source, int64_t count, float* average,
                  const Parallel& parallel) {
  SwaUpdate(D, source, count, average, parallel, LATE_PHASE_FOR_TARGET(SwaFloat));
}
template <>
void SwaUpdateCpu(int64_t D, const double* source, int64_t count, double* average,
                  const Parallel& parallel) {
  SwaUpdate(D, source, count, average, parallel, LATE_PHASE_FOR_TARGET(SwaDouble));
}
template <>
void CollapseCpu(int64_t K, int64_t D, const float* rows, float* mean, const Parallel& parallel) {
  Collapse(K, D, rows, mean, parallel, LATE_PHASE_FOR_TARGET(CollapseFloat));
}
template <>
void CollapseCpu(int64_t K, int64_t D, const double* rows, double* mean, const Parallel& parallel) {
  Collapse(K, D, rows, mean, parallel, LATE_PHASE_FOR_TARGET(CollapseDouble));
}

}  // namespace late_phase
#endif  // HWY_ONCE

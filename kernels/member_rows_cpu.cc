// The loops are compiled once per instruction set: foreach_target.h includes this file again for each. They are plain loops, which
// the compiler vectorises; with -ffp-contract=off (kernels/BUILD) every instruction set, and CUDA, gives the same bits.
#include "kernels/member_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu_target.h"
#include "kernels/philox_normal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/member_rows_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

// The Philox function of kernels/philox_normal.h for the counters of one chunk of a row: words[n][j] is word n of counter j. Spelled out
// because the compiler finds no use for the 32-bit widening product; integers, so the bits are the same.
void ChunkWords(const NormalStream& stream, uint32_t row, int64_t chunk,
                uint32_t (*HWY_RESTRICT words)[kNormalStride]) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t j = 0; j < kNormalStride; ++j) {
    const PhiloxWords x = NormalWords(stream, row, chunk * kNormalStride + j);
    for (int n = 0; n < 4; ++n) words[n][j] = x.word[n];
  }
#else
  const hn::ScalableTag<uint32_t> d;
  const hn::Repartition<uint64_t, decltype(d)> wide;
  using V = hn::Vec<decltype(d)>;
  // The high and low halves of x · y, lane by lane.
  auto multiply = [&](V x, V y, V* low) HWY_ATTR {
    const auto even = hn::MulEven(x, y);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), y);
    *low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
    return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  };
  const uint64_t first = static_cast<uint64_t>(chunk) * kNormalStride;
  for (size_t j = 0; j < kNormalStride; j += hn::Lanes(d)) {
    V c0 = hn::Iota(d, static_cast<uint32_t>(first + j));
    V c1 = hn::Set(d, static_cast<uint32_t>(first >> 32));
    V c2 = hn::Set(d, stream.row_offset[0] + row), c3 = hn::Set(d, stream.row_offset[1]);
    PhiloxKey key = stream.key;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      V low0, low2;
      const V high0 = multiply(c0, hn::Set(d, kPhiloxMultiplier0), &low0);
      const V high2 = multiply(c2, hn::Set(d, kPhiloxMultiplier1), &low2);
      c0 = hn::Xor(hn::Xor(high2, c1), hn::Set(d, key.word[0]));
      c1 = low2;
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key.word[1]));
      c3 = low0;
      key = NextPhiloxKey(key);
    }
    hn::StoreU(c0, d, words[0] + j);
    hn::StoreU(c1, d, words[1] + j);
    hn::StoreU(c2, d, words[2] + j);
    hn::StoreU(c3, d, words[3] + j);
  }
#endif
}

// The normals of one chunk of a row: FourNormals for each of its counters.
void ChunkNormals(const NormalStream& stream, uint32_t row, int64_t chunk,
                  float* HWY_RESTRICT normals) {
  uint32_t words[4][kNormalStride];
  ChunkWords(stream, row, chunk, words);
  for (int pair = 0; pair < 4; pair += 2) {
    float* HWY_RESTRICT out = normals + pair * kNormalStride;
    for (int64_t j = 0; j < kNormalStride; ++j) {
      float first, second;
      NormalPair(words[pair][j], words[pair + 1][j], &first, &second);
      out[j] = first;
      out[j + kNormalStride] = second;
    }
  }
}

// Elements [begin, end) of all rows, begin being a multiple of kNormalChunk. Row 0 is the source, so it is written last.
template <typename T>
void SpawnBlock(const SpawnArgs<T>& args, const NormalStream& stream, T scale, int64_t begin,
                int64_t end) {
  float normals[kNormalChunk];
  for (int64_t i = begin; i < end; i += kNormalChunk) {
    const int64_t size = std::min(kNormalChunk, end - i);
    const T* source = args.rows + i;
    for (int64_t k = args.K - 1; k >= 0; --k) {
      ChunkNormals(stream, static_cast<uint32_t>(k), i / kNormalChunk, normals);
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

  std::vector<double> sums((D + kBlockElements - 1) / kBlockElements);
  ForBlocks(D, parallel, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlockElements) {
      sums[i / kBlockElements] = squares(args.rows + i, std::min(kBlockElements, end - i));
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
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

// Normal random numbers as a function of (seed, row, element): no state, no order, the same bits on
// every processor.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a
// counter and a key into four random words; Box-Muller turns two words into two normals. Logarithm,
// sine and cosine are series written out below in additions, multiplications, divisions and square
// roots, which IEEE 754 rounds the same everywhere, so that CPU and GPU agree bit for bit. This
// needs flags that keep the compiler from fusing multiplications with additions: SAME_BITS in
// tools/bazel/defs.bzl.
//
// Normals are floats for arrays of any type: double weights get the same noise as float weights,
// and 32 random bits per normal (resolution 2⁻²⁴ relative, largest value √(66 ln 2) = 6.8) are
// ample for noise.
#ifndef LATE_PHASE_KERNELS_PHILOX_NORMAL_H_
#define LATE_PHASE_KERNELS_PHILOX_NORMAL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace late_phase {

struct PhiloxWords {
  uint32_t word[4];
};
struct PhiloxKey {
  uint32_t word[2];
};

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;

// The key of the next round.
LATE_PHASE_HOST_DEVICE PhiloxKey NextPhiloxKey(PhiloxKey key) {
  return {{key.word[0] + 0x9E3779B9, key.word[1] + 0xBB67AE85}};
}

LATE_PHASE_HOST_DEVICE PhiloxWords Philox(PhiloxWords counter, PhiloxKey key) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxMultiplier0} * c0, b = uint64_t{kPhiloxMultiplier1} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key.word[0];
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key.word[1];
    c3 = static_cast<uint32_t>(a);
    key = NextPhiloxKey(key);
  }
  return {{c0, c1, c2, c3}};
}

// The nearest float of a word, from two exact halves: AVX2 converts signed integers only.
LATE_PHASE_HOST_DEVICE float WordToFloat(uint32_t x) {
  const float high = static_cast<float>(static_cast<int32_t>(x >> 16));
  const float low = static_cast<float>(static_cast<int32_t>(x & 0xFFFF));
  return high * 65536.0f + low;
}

// ln u for a normal u > 0. u = 2^e · m with m in [√½, √2), and ln m = 2 artanh s = 2 (s + s³/3 +
// s⁵/5 + …) with s = (m − 1)/(m + 1), |s| < 0.172. Exact at 1 and relatively precise near it. The
// first omitted term is below 2e-9 of the sum.
LATE_PHASE_HOST_DEVICE float Logarithm(float u) {
  int32_t bits;
  std::memcpy(&bits, &u, sizeof(bits));
  constexpr int32_t kRootOfHalf = 0x3F3504F3;  // the bits of √½
  const int32_t e = (bits - kRootOfHalf) >> 23;
  bits -= e * (1 << 23);
  float m;
  std::memcpy(&m, &bits, sizeof(m));
  const float f = m - 1.0f;
  const float s = f / (m + 1.0f);
  const float q = s * s;
  float p = 2.0f / 9;
  p = p * q + 2.0f / 7;
  p = p * q + 2.0f / 5;
  p = p * q + 2.0f / 3;
  p = p * q * s;
  // 2s is f − s·f, whose first term is exact.
  const float series = (f - s * f) + p;
  return static_cast<float>(e) * 0.693147180559945309f + series;
}

// sin and cos of 2π·x/2³². The nearest quarter turn is taken off in integers; the rest, at most
// π/4, goes through the Taylor series (first omitted term: below 2e-9).
LATE_PHASE_HOST_DEVICE void SineCosine(uint32_t x, float* sine, float* cosine) {
  const uint32_t quarter = (x + (uint32_t{1} << 29)) >> 30;  // 0 to 4
  const int32_t rest = static_cast<int32_t>(x - (quarter << 30));
  const float a = static_cast<float>(rest) * 1.46291807926715968e-9f;  // 2π/2³²
  const float q = a * a;
  float s = 1.0f / 362880;
  s = s * q - 1.0f / 5040;
  s = s * q + 1.0f / 120;
  s = s * q - 1.0f / 6;
  s = s * q * a + a;
  float c = -1.0f / 3628800;
  c = c * q + 1.0f / 40320;
  c = c * q - 1.0f / 720;
  c = c * q + 1.0f / 24;
  c = c * q - 0.5f;
  c = c * q + 1.0f;
  const bool odd = (quarter & 1) != 0;
  const float sine_size = odd ? c : s, cosine_size = odd ? s : c;
  *sine = (quarter & 2) != 0 ? -sine_size : sine_size;
  *cosine = ((quarter + 1) & 2) != 0 ? -cosine_size : cosine_size;
}

// Box-Muller: two words to two independent normals, finite for any words.
LATE_PHASE_HOST_DEVICE void NormalPair(uint32_t radius_word, uint32_t angle_word, float* first,
                                       float* second) {
  // In [2⁻³³, 1].
  const float u = WordToFloat(radius_word) * 0x1p-32f + 0x1p-33f;
  const float radius = std::sqrt(-2.0f * Logarithm(u));
  float sine, cosine;
  SineCosine(angle_word, &sine, &cosine);
  *first = radius * cosine;
  *second = radius * sine;
}

// The stream of a seed: all of its 128 bits count, and similar seeds give unrelated streams.
struct NormalStream {
  PhiloxKey key;
  uint32_t row_offset[2];
};

LATE_PHASE_HOST_DEVICE NormalStream MakeNormalStream(int64_t seed0, int64_t seed1) {
  const uint64_t a = static_cast<uint64_t>(seed0), b = static_cast<uint64_t>(seed1);
  const PhiloxWords mixed = Philox({{static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                                     static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)}},
                                   {{0, 0}});
  return {{{mixed.word[0], mixed.word[1]}}, {mixed.word[2], mixed.word[3]}};
}

// Four normals come from one counter. They go to elements kNormalStride apart, so that consecutive
// counters, which are what the lanes of a vector or the threads of a warp work on, write
// consecutive elements. Element i of a row:
//   chunk i / kNormalChunk, counter chunk · kNormalStride + i % kNormalStride, number (i /
//   kNormalStride) % 4 of that counter's
constexpr int64_t kNormalStride = 64;
constexpr int64_t kNormalChunk = 4 * kNormalStride;

LATE_PHASE_HOST_DEVICE PhiloxWords NormalWords(const NormalStream& stream, uint32_t row,
                                               int64_t counter) {
  return Philox(
      {{static_cast<uint32_t>(counter), static_cast<uint32_t>(static_cast<uint64_t>(counter) >> 32),
        stream.row_offset[0] + row, stream.row_offset[1]}},
      stream.key);
}

LATE_PHASE_HOST_DEVICE void FourNormals(const NormalStream& stream, uint32_t row, int64_t counter,
                                        float normals[4]) {
  const PhiloxWords x = NormalWords(stream, row, counter);
  NormalPair(x.word[0], x.word[1], &normals[0], &normals[1]);
  NormalPair(x.word[2], x.word[3], &normals[2], &normals[3]);
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_PHILOX_NORMAL_H_

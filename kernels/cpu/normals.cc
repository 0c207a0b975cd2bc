// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each. With -ffp-contract=off (kernels/BUILD) all of them, and CUDA, give the same bits.
#include "kernels/cpu/normals.h"

#include "kernels/cpu/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/normals.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The Philox function of kernels/philox_normal.h for the counters of one chunk of a row:
// words[n][j] is word n of counter j. Written by hand because the compiler does not use the 32-bit
// widening product; these are integers, so the bits are the same.
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
  const size_t lanes = hn::Lanes(d);
  const V c1_start = hn::Set(d, static_cast<uint32_t>(first >> 32));
  const V c2_start = hn::Set(d, stream.row_offset[0] + row);
  const V c3_start = hn::Set(d, stream.row_offset[1]);
  const V multiplier0 = hn::Set(d, kPhiloxMultiplier0),
          multiplier1 = hn::Set(d, kPhiloxMultiplier1);
  // Two vectors at a time: while a round waits for its products, the other vector fills the gap.
  for (size_t j = 0; j < kNormalStride; j += 2 * lanes) {
    V a0 = hn::Iota(d, static_cast<uint32_t>(first + j)),
      b0 = hn::Iota(d, static_cast<uint32_t>(first + j + lanes));
    V a1 = c1_start, b1 = c1_start, a2 = c2_start, b2 = c2_start, a3 = c3_start, b3 = c3_start;
    PhiloxKey key = stream.key;
    auto round = [&](V* c0, V* c1, V* c2, V* c3) HWY_ATTR {
      V low0, low2;
      const V high0 = multiply(*c0, multiplier0, &low0);
      const V high2 = multiply(*c2, multiplier1, &low2);
      *c0 = hn::Xor(hn::Xor(high2, *c1), hn::Set(d, key.word[0]));
      *c1 = low2;
      *c2 = hn::Xor(hn::Xor(high0, *c3), hn::Set(d, key.word[1]));
      *c3 = low0;
    };
    for (int i = 0; i < kPhiloxRounds; ++i) {
      round(&a0, &a1, &a2, &a3);
      round(&b0, &b1, &b2, &b3);
      key = NextPhiloxKey(key);
    }
    hn::StoreU(a0, d, words[0] + j);
    hn::StoreU(a1, d, words[1] + j);
    hn::StoreU(a2, d, words[2] + j);
    hn::StoreU(a3, d, words[3] + j);
    hn::StoreU(b0, d, words[0] + j + lanes);
    hn::StoreU(b1, d, words[1] + j + lanes);
    hn::StoreU(b2, d, words[2] + j + lanes);
    hn::StoreU(b3, d, words[3] + j + lanes);
  }
#endif
}

// FourNormals for each counter of a chunk; the compiler vectorises the loops.
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

void Fill(const NormalStream& stream, uint32_t row, int64_t chunk, int64_t chunks, float* normals) {
  for (int64_t i = 0; i < chunks; ++i) {
    ChunkNormals(stream, row, chunk + i, normals + i * kNormalChunk);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

void FillNormals(const NormalStream& stream, uint32_t row, int64_t chunk, int64_t chunks,
                 float* normals) {
  LATE_PHASE_FOR_TARGET(Fill)(stream, row, chunk, chunks, normals);
}

}  // namespace late_phase
#endif  // HWY_ONCE

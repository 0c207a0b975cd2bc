// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
#include "tools/bench/memory_pass.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/cpu/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/memory_pass.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The elements after the last whole vector are skipped.
template <int kReads, int kWrites>
void Pass(const float* const* reads, float* const* writes, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const float* from[kReads];
  float* to[kWrites + 1];  // C++ has no arrays of length 0
  std::copy_n(reads, kReads, from);
  std::copy_n(writes, kWrites, to);
  const auto scale = hn::Set(d, 1.0f / kReads);
  auto unused = hn::Zero(d);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = begin; i + lanes <= end; i += lanes) {
    auto sum = hn::LoadU(d, from[0] + i);
    for (int n = 1; n < kReads; ++n) sum = hn::Add(sum, hn::LoadU(d, from[n] + i));
    sum = hn::Mul(sum, scale);
    for (int n = 0; n < kWrites; ++n) hn::StoreU(sum, d, to[n] + i);
    if (kWrites == 0) unused = hn::Max(unused, sum);
  }
  // If the values were not used, the compiler would drop the reads.
  if (kWrites == 0 && hn::GetLane(unused) < 0) std::abort();
}

void MemoryBlock(const float* const* reads, int read_count, float* const* writes, int write_count,
                 int64_t begin, int64_t end) {
  switch (100 * read_count + write_count) {
    case 100:
      return Pass<1, 0>(reads, writes, begin, end);
    case 101:
      return Pass<1, 1>(reads, writes, begin, end);
    case 110:
      return Pass<1, 10>(reads, writes, begin, end);
    case 200:
      return Pass<2, 0>(reads, writes, begin, end);
    case 201:
      return Pass<2, 1>(reads, writes, begin, end);
    case 302:
      return Pass<3, 2>(reads, writes, begin, end);
    case 403:
      return Pass<4, 3>(reads, writes, begin, end);
    case 504:
      return Pass<5, 4>(reads, writes, begin, end);
    case 1001:
      return Pass<10, 1>(reads, writes, begin, end);
    default:
      std::abort();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

void MemoryPass(int64_t D, const std::vector<const float*>& reads,
                const std::vector<float*>& writes, const Parallel& parallel) {
  const auto block = LATE_PHASE_FOR_TARGET(MemoryBlock);
  ForBlocks(D, parallel, [&](int64_t begin, int64_t end) {
    block(reads.data(), static_cast<int>(reads.size()), writes.data(),
          static_cast<int>(writes.size()), begin, end);
  });
}

}  // namespace late_phase
#endif  // HWY_ONCE

// Compiled once per instruction set: foreach_target.h includes this file again for each.
#include "kernels/cpu/gradient_rows.h"

#include <algorithm>

#include "kernels/cpu/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gradient_rows.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
void PackAndAdd(const GradientRowsArgs<T>& a) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t stored = a.columns + a.padding;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dz = a.dz + r * a.stride;
    const T scale = a.scales == nullptr ? T(1) : a.scales[r];
    T* sum = a.sums + (a.tokens == nullptr ? 0 : int64_t{a.tokens[r]} * a.sums_stride);
    for (int64_t begin = 0; begin < stored; begin += a.panel_width) {
      const int64_t width = std::min(a.panel_width, stored - begin);
      const int64_t given = std::min(width, a.columns - begin);
      T* packed = a.packed + begin * a.rows + r * width;
      int64_t j = 0;
      for (; j + lanes <= given; j += lanes) {
        const auto value = hn::Mul(hn::LoadU(d, dz + begin + j), hn::Set(d, scale));
        hn::StoreU(value, d, packed + j);
        if (a.sums == nullptr) continue;
        hn::StoreU(hn::Add(hn::LoadU(d, sum + begin + j), value), d, sum + begin + j);
      }
      for (; j < given; ++j) {
        packed[j] = scale * dz[begin + j];
        if (a.sums != nullptr) sum[begin + j] += packed[j];
      }
      for (; j < width; ++j) packed[j] = 0;
    }
  }
}

void PackAndAddFloat(const GradientRowsArgs<float>& args) { PackAndAdd(args); }
void PackAndAddDouble(const GradientRowsArgs<double>& args) { PackAndAdd(args); }

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

template <>
void PackAndAddGradientRows(const GradientRowsArgs<float>& args) {
  LATE_PHASE_FOR_TARGET(PackAndAddFloat)(args);
}
template <>
void PackAndAddGradientRows(const GradientRowsArgs<double>& args) {
  LATE_PHASE_FOR_TARGET(PackAndAddDouble)(args);
}

}  // namespace late_phase
#endif  // HWY_ONCE

// LATE_PHASE_CPU limits both our own loops and the generated products. One process per setting: the
// choice is made once.
#include "kernels/cpu/cpu_target.h"

#include <libxsmm.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cpu/matmul.h"

namespace late_phase {
namespace {

std::string Wish() {
  const char* wish = std::getenv("LATE_PHASE_CPU");
  return wish == nullptr ? "" : wish;
}

TEST(CpuTarget, NeverExceedsTheWish) {
  if (Wish() == "baseline") {
    EXPECT_EQ(ChosenCpuTarget(), CpuTarget::kBaseline);
  } else if (Wish() == "avx2") {
    EXPECT_LE(ChosenCpuTarget(), CpuTarget::kAvx2);
  }
}

TEST(CpuTarget, AnUnknownWishIsIgnored) {
#if defined(__x86_64__)
  if (Wish().empty() || Wish() == "sse9") {
    EXPECT_EQ(ChosenCpuTarget() >= CpuTarget::kAvx2, __builtin_cpu_supports("avx2") != 0);
  }
#endif
}

TEST(CpuTarget, ProductsKeepToIt) {
  // The first product of a process must not undo the choice.
  const float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
  float c[4] = {};
  Matmul<float>({2, 2, 2, 2, 2, false, false}).Run(a, b, c);
  EXPECT_EQ(c[0], 19);
  EXPECT_EQ(c[3], 50);
  if (ChosenCpuTarget() == CpuTarget::kBaseline) {
    EXPECT_EQ(libxsmm_get_target_archid(), LIBXSMM_TARGET_ARCH_GENERIC);
  } else if (ChosenCpuTarget() == CpuTarget::kAvx2) {
    EXPECT_EQ(libxsmm_get_target_archid(), LIBXSMM_X86_AVX2);
  } else {
    EXPECT_GE(libxsmm_get_target_archid(), LIBXSMM_X86_AVX512_CORE);
  }
}

TEST(CpuTarget, NamesAreThoseOfTheVariable) {
  EXPECT_STREQ(CpuTargetName(CpuTarget::kBaseline), "baseline");
  EXPECT_STREQ(CpuTargetName(CpuTarget::kAvx2), "avx2");
  EXPECT_STREQ(CpuTargetName(CpuTarget::kAvx512), "avx512");
}

}  // namespace
}  // namespace late_phase

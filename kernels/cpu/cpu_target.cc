#include "kernels/cpu/cpu_target.h"

#include <libxsmm.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace late_phase {
namespace {

CpuTarget MachineTarget() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  // What Highway's AVX3 assumes.
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (avx512) return CpuTarget::kAvx512;
  if (avx2) return CpuTarget::kAvx2;
#endif
  return CpuTarget::kBaseline;
}

CpuTarget Choose() {
  const CpuTarget machine = MachineTarget();
  CpuTarget target = machine;
  if (const char* wish = std::getenv("LATE_PHASE_CPU"); wish != nullptr && *wish != '\0') {
    bool known = false;
    for (CpuTarget each : {CpuTarget::kBaseline, CpuTarget::kAvx2, CpuTarget::kAvx512}) {
      if (std::strcmp(wish, CpuTargetName(each)) != 0) continue;
      target = std::min(each, machine);
      known = true;
    }
    if (!known) {
      std::fprintf(stderr,
                   "late_phase: LATE_PHASE_CPU must be baseline, avx2 or avx512. Received: "
                   "LATE_PHASE_CPU=%s; using %s\n",
                   wish, CpuTargetName(machine));
    }
  }
  libxsmm_init();  // or else the first product would, discarding what is set here
  switch (target) {
    case CpuTarget::kBaseline:
      // No generated code at all: products run the portable loops of matmul.cc.
      libxsmm_set_target_archid(LIBXSMM_TARGET_ARCH_GENERIC);
      break;
    case CpuTarget::kAvx2:
      libxsmm_set_target_archid(LIBXSMM_X86_AVX2);
      break;
    case CpuTarget::kAvx512:
      break;  // libxsmm's own choice, the best the machine has
  }
  return target;
}

}  // namespace

CpuTarget ChosenCpuTarget() {
  static const CpuTarget chosen = Choose();
  return chosen;
}

const char* CpuTargetName(CpuTarget target) {
  switch (target) {
    case CpuTarget::kBaseline:
      return "baseline";
    case CpuTarget::kAvx2:
      return "avx2";
    case CpuTarget::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace late_phase

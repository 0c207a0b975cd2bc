// Which instruction set the CPU cores use: chosen once per process, at run time.
//
// The library is built for plain x86-64 and carries AVX2 and AVX-512 versions of its inner loops,
// so one file runs everywhere. LATE_PHASE_CPU=baseline|avx2|avx512 lowers the choice (never raises
// it above what the machine has): results of different instruction sets differ by rounding, so runs
// that must agree bit for bit across machines set it.
//
// A core compiles its loops once per target with Highway's foreach_target.h and picks one with
// LATE_PHASE_FOR_TARGET.
#ifndef LATE_PHASE_KERNELS_CPU_CPU_TARGET_H_
#define LATE_PHASE_KERNELS_CPU_CPU_TARGET_H_

// Of Highway's x86 targets we build AVX2, AVX3 (AVX-512) and the portable baseline. Must come
// before a file's first Highway include.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

namespace late_phase {

enum class CpuTarget { kBaseline, kAvx2, kAvx512 };

// The target in use. Reads LATE_PHASE_CPU at the first call, and tells the matrix-product library
// to keep to it.
CpuTarget ChosenCpuTarget();

// "baseline", "avx2" or "avx512".
const char* CpuTargetName(CpuTarget target);

}  // namespace late_phase

// Address of FUNCTION, defined in late_phase::HWY_NAMESPACE, compiled for the chosen target. To
// be used within namespace late_phase, in the HWY_ONCE part of a file. We choose it ourselves
// because Highway's own table needs its shared library, and a plug-in that people copy around
// should need only TensorFlow.
#if defined(__x86_64__)
#define LATE_PHASE_FOR_TARGET(FUNCTION)                                                    \
  (::late_phase::ChosenCpuTarget() == ::late_phase::CpuTarget::kAvx512 ? &N_AVX3::FUNCTION \
   : ::late_phase::ChosenCpuTarget() == ::late_phase::CpuTarget::kAvx2                     \
       ? &N_AVX2::FUNCTION                                                                 \
       : &HWY_STATIC_DISPATCH(FUNCTION))
#else
#define LATE_PHASE_FOR_TARGET(FUNCTION) (&HWY_STATIC_DISPATCH(FUNCTION))
#endif

#endif  // LATE_PHASE_KERNELS_CPU_CPU_TARGET_H_

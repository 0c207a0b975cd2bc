// AMX, the matrix instructions of newer Intel processors, on machines that announce it but refuse
// to run it.
//
// Some virtual machines and sandboxes report AMX, and even that the process may use it, but end the
// first process that does so with SIGILL. Others have it but hide the list of its palettes (CPUID
// leaf 0x1D), so that oneDNN, which computes TensorFlow's products of bfloat16, configures palette
// 0, and the tiles do not work either. oneDNN believes all of them. So AMX is tried the way oneDNN
// would use it, in a child process that may die of it, and where that fails oneDNN is told to do
// without, through an environment variable that it reads when it is first used.
#ifndef LATE_PHASE_KERNELS_CPU_AMX_H_
#define LATE_PHASE_KERNELS_CPU_AMX_H_

namespace late_phase {

// The variable oneDNN reads, and its value for every instruction set but AMX.
inline constexpr char kOneDnnVariable[] = "ONEDNN_MAX_CPU_ISA";
inline constexpr char kOneDnnWithoutAmx[] = "AVX512_CORE_FP16";

enum class Amx { kNone, kGranted, kRefused };

// Asks the processor and, if the answer is yes, tries it: a few milliseconds.
[[nodiscard]] Amx AskAmx();

// The parts of AskAmx: `announced` is the processor's answer, `use` what is tried, in a child.
[[nodiscard]] Amx TryAmx(bool announced, void (*use)());
bool AmxIsAnnounced();
unsigned TilePalette();                // the one oneDNN would use: the last one announced
void MultiplyTiles(unsigned palette);  // a product of one by one, as oneDNN would make it

// "none", "granted" or "announced, but refused".
const char* AmxText(Amx amx);

// Sets oneDNN's variable if AMX is refused and the user has not set it. Returns whether it did.
bool KeepOneDnnFromAmx(Amx amx);

// Whether a child process reaches the end of `instructions`, which an illegal one prevents. Their
// effects stay in the child. Also false if no child can be started.
bool RunsInChild(void (*instructions)());

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_AMX_H_

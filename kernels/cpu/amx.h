// AMX, the matrix instructions of newer Intel processors, on machines that announce it and refuse
// it.
//
// Some virtual machines and sandboxes say that there is AMX, even that the process may use it, and
// end the first process that does with SIGILL. Others have it, but hide the list of its palettes
// (CPUID leaf 0x1D), so that oneDNN, which computes TensorFlow's products of bfloat16, configures
// palette 0, and the tiles do not work either. oneDNN believes them all. So AMX is tried the way
// oneDNN would use it, in a child process that may die of it, and where that fails oneDNN is told
// to do without, which it reads from the environment when it is first used.
#ifndef LATE_PHASE_KERNELS_CPU_AMX_H_
#define LATE_PHASE_KERNELS_CPU_AMX_H_

namespace late_phase {

// The variable oneDNN reads, and its value for every instruction set but AMX.
inline constexpr char kOneDnnVariable[] = "ONEDNN_MAX_CPU_ISA";
inline constexpr char kOneDnnWithoutAmx[] = "AVX512_CORE_FP16";

enum class Amx { kNone, kGranted, kRefused };

// Asks the processor, and tries it if the answer is yes: a few milliseconds.
[[nodiscard]] Amx AskAmx();

// The parts of AskAmx: `announced` is the processor's answer, `use` what is tried, in a child.
[[nodiscard]] Amx TryAmx(bool announced, void (*use)());
bool AmxIsAnnounced();
unsigned TilePalette();                // the one oneDNN would use: the last that is announced
void MultiplyTiles(unsigned palette);  // a product of one by one, as oneDNN would make it

// "none", "granted" or "announced, but refused".
const char* AmxText(Amx amx);

// Sets oneDNN's variable if AMX is refused and the user has not set it. Returns whether it did.
bool KeepOneDnnFromAmx(Amx amx);

// Whether a child process comes to the end of `instructions`, which an illegal one prevents.
// Nothing that they do is seen here. False as well if there can be no child.
bool RunsInChild(void (*instructions)());

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_AMX_H_

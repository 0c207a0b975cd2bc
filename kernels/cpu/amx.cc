#include "kernels/cpu/amx.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace late_phase {
namespace {

// The layout that LDTILECFG reads.
struct alignas(64) TileConfiguration {
  uint8_t palette = 0;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {4, 4, 4};
  uint8_t rows[16] = {1, 1, 1};
};
static_assert(sizeof(TileConfiguration) == 64);

void EndInFailure(int) { _exit(1); }

}  // namespace

bool AmxIsAnnounced() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    return (edx & kTiles) != 0 && (edx & kBfloat16) != 0;
  }
#endif
  return false;
}

unsigned TilePalette() {
  unsigned eax = 0;
#if defined(__x86_64__)
  // Queried as oneDNN does, even where the processor's leaves end before this one.
  unsigned ebx, ecx, edx;
  __cpuid_count(0x1d, 0, eax, ebx, ecx, edx);
#endif
  return eax;
}

void MultiplyTiles(unsigned palette) {
#if defined(__x86_64__)
  // Linux must be asked for the tiles' memory (ARCH_REQ_XCOMP_PERM). Its answer does not
  // matter.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  syscall(SYS_arch_prctl, kRequestPermission, kTileData);
  TileConfiguration configuration;
  configuration.palette = static_cast<uint8_t>(palette);
  asm volatile(
      "ldtilecfg %0\n"
      "tilezero %%tmm0\n"
      "tilezero %%tmm1\n"
      "tilezero %%tmm2\n"
      "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n"
      "tilerelease\n"
      :
      : "m"(configuration));
#else
  (void)palette;
#endif
}

bool RunsInChild(void (*instructions)()) {
  // A fork whose exit sends no SIGCHLD: the surrounding program may have a handler for it, and may
  // wait for any child.
  const long child = syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
  if (child == 0) {
    std::signal(SIGILL, EndInFailure);   // and no core file
    std::signal(SIGSEGV, EndInFailure);  // a palette that does not exist
    instructions();
    _exit(0);
  }
  if (child < 0) return false;
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(static_cast<pid_t>(child), &status, __WALL);
  } while (ended < 0 && errno == EINTR);
  return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Amx TryAmx(bool announced, void (*use)()) {
  if (!announced) return Amx::kNone;
  return RunsInChild(use) ? Amx::kGranted : Amx::kRefused;
}

Amx AskAmx() {
  return TryAmx(AmxIsAnnounced(), [] { MultiplyTiles(TilePalette()); });
}

const char* AmxText(Amx amx) {
  switch (amx) {
    case Amx::kNone:
      return "none";
    case Amx::kGranted:
      return "granted";
    case Amx::kRefused:
      return "announced, but refused";
  }
  return "unknown";
}

bool KeepOneDnnFromAmx(Amx amx) {
  constexpr char kOldName[] = "DNNL_MAX_CPU_ISA";  // which oneDNN reads as well
  if (amx != Amx::kRefused || std::getenv(kOneDnnVariable) != nullptr ||
      std::getenv(kOldName) != nullptr) {
    return false;
  }
  return setenv(kOneDnnVariable, kOneDnnWithoutAmx, 0) == 0;
}

}  // namespace late_phase

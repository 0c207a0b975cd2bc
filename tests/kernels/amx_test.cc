// AMX that is announced and refused. What this machine has, only the last tests ask.
#include "kernels/cpu/amx.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

class OneDnnVariable : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    unsetenv("ONEDNN_MAX_CPU_ISA");
    unsetenv("DNNL_MAX_CPU_ISA");
  }
  static std::string Value() {
    const char* value = std::getenv("ONEDNN_MAX_CPU_ISA");
    return value == nullptr ? "unset" : value;
  }
};

TEST_F(OneDnnVariable, IsSetWhereAmxIsRefused) {
  EXPECT_TRUE(KeepOneDnnFromAmx(Amx::kRefused));
  EXPECT_EQ(Value(), "AVX512_CORE_FP16");
}

TEST_F(OneDnnVariable, IsLeftAloneWhereNothingIsRefused) {
  EXPECT_FALSE(KeepOneDnnFromAmx(Amx::kNone));
  EXPECT_FALSE(KeepOneDnnFromAmx(Amx::kGranted));
  EXPECT_EQ(Value(), "unset");
}

TEST_F(OneDnnVariable, IsTheUsersIfTheUserHasSetIt) {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_FALSE(KeepOneDnnFromAmx(Amx::kRefused));
  EXPECT_EQ(Value(), "AVX2");
  Clear();
  setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_FALSE(KeepOneDnnFromAmx(Amx::kRefused));
  EXPECT_EQ(Value(), "unset");
}

int written = 0;
int ended_children = 0;

TEST(RunsInChild, IsTrueIfTheChildComesToTheEnd) {
  EXPECT_TRUE(RunsInChild([] { written = 1; }));
  EXPECT_EQ(written, 0);
}

// The signal that comes of an illegal instruction.
TEST(RunsInChild, IsFalseForAnIllegalInstruction) {
  EXPECT_FALSE(RunsInChild([] { __builtin_trap(); }));
  EXPECT_FALSE(RunsInChild([] { kill(getpid(), SIGILL); }));
}

TEST(RunsInChild, IsFalseForAChildThatIsKilled) {
  EXPECT_FALSE(RunsInChild([] { kill(getpid(), SIGKILL); }));
}

TEST(RunsInChild, LeavesNoChildAndNoSignalToTheProgram) {
  const auto before = std::signal(SIGCHLD, [](int) { ++ended_children; });
  EXPECT_TRUE(RunsInChild([] {}));
  EXPECT_EQ(ended_children, 0);
  std::signal(SIGCHLD, SIG_IGN);  // as in programs that let the system collect their children
  EXPECT_TRUE(RunsInChild([] {}));
  std::signal(SIGCHLD, before);
  EXPECT_EQ(waitpid(-1, nullptr, __WALL | WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(TryAmx, IsWhatTheTrialSaysOfWhatIsAnnounced) {
  EXPECT_EQ(TryAmx(true, [] {}), Amx::kGranted);
  EXPECT_EQ(TryAmx(true, [] { __builtin_trap(); }), Amx::kRefused);
  EXPECT_EQ(TryAmx(false, [] {}), Amx::kNone);
}

// Palette 0 is none: what oneDNN configures where the palettes are hidden. 255 does not exist.
TEST(MultiplyTiles, FailsWithoutAPalette) {
  EXPECT_FALSE(RunsInChild([] { MultiplyTiles(0); }));
  EXPECT_FALSE(RunsInChild([] { MultiplyTiles(255); }));
}

TEST(AskAmx, AgreesWithTheMachine) {
  const bool works = RunsInChild([] { MultiplyTiles(TilePalette()); });
  EXPECT_EQ(AskAmx(), works ? Amx::kGranted : AmxIsAnnounced() ? Amx::kRefused : Amx::kNone);
  // Linux lists what the processor announces, unless it has switched it off.
  std::ostringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  const bool listed = text.str().find(" amx_bf16") != std::string::npos;
  EXPECT_LE(listed, AmxIsAnnounced());
}

}  // namespace
}  // namespace late_phase

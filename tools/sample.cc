// tools/latephase sample: text written by a trained run's network.
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/enwik8_run.h"
#include "tools/program.h"

namespace late_phase {
namespace {

constexpr char kCommand[] = "tools/latephase sample";

int Main(int argc, char** argv) {
  Enwik8Flags flags;
  Enwik8::Sampling sampling;
  std::string dir, weights = "collapsed";
  sampling.prompt = "The ";
  CLI::App app("Text that a trained network writes after a prompt.", kCommand);
  app.add_option("RUN_DIR", dir, "folder of a run; of several models the late-phase one is taken")
      ->required();
  app.add_option("--prompt", sampling.prompt, "how the text begins")->capture_default_str();
  app.add_option("--length", sampling.length, "characters to write")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "higher is bolder; 0: the likeliest always")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "of the choices")->capture_default_str();
  app.add_option("--weights", weights, "collapsed or swa")
      ->check(CLI::IsMember({"collapsed", "swa"}))
      ->capture_default_str();
  AddDeviceFlags(&flags, &app);
  ParseCommandLine(argc, argv, &app);
  const std::string folder = RunFolderIn(dir);
  ChooseDevice(&flags);
  const std::unique_ptr<RestoredRun> restored = RestoreRun(folder, flags, /*with_text=*/false);
  sampling.set = WeightSetOf(weights, *restored);
  std::string text;
  Require(restored->task->Sample(restored->run.get(), sampling, &text));
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace

int Sample(int argc, char** argv) {
  return RunProgram(kCommand, [&] { return Main(argc, argv); });
}

}  // namespace late_phase

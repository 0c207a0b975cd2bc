// sample: text written by a trained run's network.
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/enwik8_experiment.h"
#include "tools/program/runs.h"
#include "tools/program/session.h"
#include "tools/program/weight_names.h"

namespace late_phase {
namespace {

int Main(int argc, char** argv) {
  SessionFlags session;
  Enwik8::Sampling sampling;
  std::string dir, weights = "collapsed";
  sampling.prompt = "The ";
  CLI::App app("Writes text with a trained network, starting from a prompt.",
               CommandName("sample"));
  app.add_option("RUN_DIR", dir,
                 "folder of a run; from a folder of several models the late-phase one is taken")
      ->required();
  app.add_option("--prompt", sampling.prompt, "how the text begins")->capture_default_str();
  app.add_option("--length", sampling.length, "characters to write")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature,
                 "higher values are bolder; 0: always the likeliest character")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "seed of the random choices")->capture_default_str();
  app.add_option("--weights", weights, "collapsed or swa")
      ->check(CLI::IsMember({"collapsed", "swa"}))
      ->capture_default_str();
  AddSessionFlags(&session, &app);
  ParseCommandLine(argc, argv, &app);
  const std::string folder = RunFolderIn(dir);
  Enwik8Experiment experiment;
  const std::string program = ReadProgram(folder), enwik8 = experiment.info().name;
  if (program != enwik8) {
    throw UsageError(absl::StrCat("RUN_DIR must be a run of ", enwik8,
                                  ", whose networks write text. Received: ", folder, ", a run of ",
                                  program));
  }
  ReadSettings(folder + "/config.toml", program, experiment.Settings());
  ChooseDevice(&session);
  experiment.recipe().device = session.device;
  const std::unique_ptr<Enwik8> task = experiment.MakeTaskWithoutText(folder + "/checkpoint");
  const std::unique_ptr<Run> run = RestoreRun(folder, session.threads, task.get());
  sampling.set = ParseWeightSet(weights, *task, *run);
  const std::string text = Require(task->Sample(run.get(), sampling));
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace

int SampleCommand(int argc, char** argv) {
  return RunProgram(CommandName("sample"), [&] { return Main(argc, argv); });
}

}  // namespace late_phase

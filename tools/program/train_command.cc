// train PROGRAM: trains the program's models, each in a run folder, and writes their metrics to
// results.json, from which python/late_phase_cli/PROGRAM_table.py and plot.py make the table and
// the curves.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/out_folder.h"
#include "tools/program/train_plan.h"
#include "tools/program/train_run.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The one of a plan's runs that this command is to train.
void KeepOnly(const Training& training, std::vector<PlannedRun>* runs) {
  const std::string folder = training.out + "/" + training.only;
  runs->erase(std::remove_if(runs->begin(), runs->end(),
                             [&](const PlannedRun& run) { return run.folder != folder; }),
              runs->end());
  if (runs->empty()) {
    throw UsageError("`only` must be the folder of one of the runs. Received: only=" +
                     training.only);
  }
}

// Makes sure that all workers are about to train the same run, and gives it to them.
void JoinWorkers(Training* training) {
  Facts facts;
  for (const Setting& setting : training->experiment->Settings()) {
    facts.emplace_back(setting.name, setting.get());
  }
  facts.emplace_back("data", training->experiment->DataDigest());
  RequireSame(facts, training->workers.get());
  training->experiment->recipe().workers = training->workers.get();
}

void RequireOneRun(const std::vector<PlannedRun>& runs) {
  if (runs.size() == 1) return;
  throw UsageError(absl::StrCat(
      "several workers must train a single run: give one `model`, and `seeds` 1. Received: ",
      runs.size(), " runs"));
}

// The runs of the command, checked.
std::vector<PlannedRun> CheckedRuns(const Training& training,
                                    std::vector<std::unique_ptr<Task>>* tasks) {
  std::vector<PlannedRun> runs = PlanRuns(*training.experiment, training.out);
  if (!training.only.empty()) KeepOnly(training, &runs);
  if (training.workers != nullptr || training.worker_flags.local_workers > 0) RequireOneRun(runs);
  if (runs.size() > 1 && fs::exists(training.out + "/checkpoint")) {
    throw UsageError(absl::StrCat(
        "`model` and `seeds` must be those of the one run in `out`. Received: ", runs.size(),
        " runs, out=", training.out, ", which has the checkpoint of one"));
  }
  for (const PlannedRun& run : runs) tasks->push_back(CheckedTask(run, training.session));
  return runs;
}

// Trains the runs one after the other and writes the results.
void TrainRuns(const std::string& program, const Training& training,
               const std::vector<PlannedRun>& runs, std::vector<std::unique_ptr<Task>> tasks) {
  Json results = {{"program", program}, {"runs", Json::array()}};
  for (size_t i = 0; i < runs.size(); ++i) {
    results["runs"].push_back(TrainRun(runs[i], training, std::move(tasks[i])));
  }
  if (!training.first()) return;
  const FinishFirst finish(TrainCommandName(program) + ": writing the results");
  SetEnding(TrainCommandName(program) + ": the results are written", 0);
  const bool several = runs.size() > 1;
  if (several) WriteFile(training.out + "/results.json", results.dump(1) + "\n");
  // The states that runs were forked from are no longer needed.
  for (const PlannedRun& run : runs) {
    std::error_code ignored;
    if (run.keep_fork && training.only.empty()) fs::remove_all(run.folder + "/fork", ignored);
  }
  TellDriver(
      {{"finished", program}, {"folder", training.only.empty() ? training.out : runs[0].folder}});
}

// serves: set if this process has a server, which runs to its end.
int Main(const std::string& program, int argc, char** argv, bool* serves) {
  Training training = ReadTraining(program, argc, argv, serves);
  DataFiles files;
  training.experiment->OpenData(training.data, &files);
  ChooseDevice(&training.session);
  if (training.workers != nullptr) JoinWorkers(&training);
  training.experiment->recipe().device = training.session.device;
  std::vector<std::unique_ptr<Task>> tasks;
  const std::vector<PlannedRun> runs = CheckedRuns(training, &tasks);
  const bool several = runs.size() > 1;
  if (training.dry_run) {
    std::fputs(ConfigFile(training.experiment.get()).c_str(), stdout);
    return 0;
  }
  if (training.worker_flags.local_workers > 0 && training.workers == nullptr) {
    if (!HasDriver()) throw UsageError("`local_workers` needs the driver, which starts them");
    TellDriver(LocalWorkersJson(training));
    return 0;
  }
  const int64_t parallel = several ? RunsAtATime(training, runs, tasks) : 1;
  FolderLock lock;  // to the end: two processes would write the same checkpoints
  if (training.first()) {
    const FinishFirst finish(TrainCommandName(program) + ": writing its settings");
    lock = LockOutFolder(training.only.empty() ? training.out : runs[0].folder);
    RemoveUnfinishedSettings(training.out);
    // First of all: a folder with anything else in it would neither be free nor resume.
    if (several || !training.resume) WriteConfig(training.out, training.experiment.get());
    if (several || training.resume) SetEnding(ResumeText(training), 0);
  }
  if (parallel > 1 && HasDriver()) {
    TellDriver(PlanJson(training, runs, tasks, parallel));
    return 0;
  }
  TrainRuns(program, training, runs, std::move(tasks));
  return 0;
}

}  // namespace

int TrainCommand(int argc, char** argv) {
  const std::string program = argc > 1 ? argv[1] : "";
  bool serves = false;
  const int status = RunProgram(TrainCommandName(program),
                                [&] { return Main(program, argc - 1, argv + 1, &serves); });
  if (!serves) return status;
  // TensorFlow's server cannot be stopped, and its threads use what would be destroyed.
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace late_phase

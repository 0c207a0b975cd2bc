#include "tools/program/runs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/program/session.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;

std::string CheckpointsIn(const std::string& folder) { return folder + "/checkpoint"; }

// As RunFolderIn, but empty if there is none.
std::string FindRun(const std::string& dir) {
  std::string found;
  const std::unique_ptr<Experiment> experiment = ReadExperiment(dir);
  const int64_t first_seed = experiment->recipe().seed;
  for (const PlannedRun& run : PlanRuns(*experiment, dir)) {
    if (run.experiment->recipe().seed == first_seed && fs::exists(CheckpointsIn(run.folder))) {
      found = run.folder;
    }
  }
  return found;
}

}  // namespace

std::vector<PlannedRun> PlanRuns(const Experiment& experiment, const std::string& out) {
  const Recipe& recipe = experiment.recipe();
  const bool controls = recipe.model == "all-controls", several = controls || recipe.model == "all";
  std::vector<PlannedRun> runs;
  for (int64_t i = 0; i < experiment.seeds; ++i) {
    const int64_t seed = recipe.seed + i;
    const std::string parent = experiment.seeds > 1 ? absl::StrCat(out, "/seed-", seed) : out;
    std::map<std::string, size_t> planned;  // this seed's, by model
    for (const ExperimentInfo::Model& model : experiment.info().models) {
      const bool chosen = several ? model.group == "all" || (controls && !model.group.empty())
                                  : model.name == recipe.model;
      if (!chosen) continue;
      PlannedRun run{experiment.Copy(), several ? parent + "/" + model.name : parent, "", false};
      run.experiment->seeds = 1;
      run.experiment->recipe().seed = seed;
      run.experiment->recipe().model = model.name;
      if (const auto same = planned.find(model.fork_of); same != planned.end()) {
        run.fork_from = runs[same->second].folder;
        runs[same->second].keep_fork = true;
      }
      planned[model.name] = runs.size();
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::string ReadProgram(const std::string& folder) {
  const std::string config = folder + "/config.toml";
  if (!fs::exists(config)) {
    throw UsageError(absl::StrCat(
        "RUN_DIR must be the folder of a run, with config.toml and checkpoint/. Received: ",
        folder));
  }
  return ReadValue(config, "program");
}

std::unique_ptr<Experiment> ReadExperiment(const std::string& folder) {
  const std::string program = ReadProgram(folder), config = folder + "/config.toml";
  std::unique_ptr<Experiment> experiment;
  try {
    experiment = MakeExperiment(program);
  } catch (const UsageError& error) {
    throw UsageError(absl::StrCat(error.what(), " in ", config));
  }
  ReadSettings(config, program, experiment->Settings());
  return experiment;
}

std::string RunFolderIn(const std::string& dir) {
  const std::string found = FindRun(dir);
  if (found.empty()) {
    throw UsageError(absl::StrCat("RUN_DIR must hold a run with its checkpoint/. Received: ", dir));
  }
  return found;
}

std::string PretrainedCheckpoints(Experiment* experiment) {
  const std::string& dir = experiment->recipe().pretrained;
  const std::string received = ". Received: pretrained=" + dir;
  const UsageError none(
      "`pretrained` must be the folder of a trained run, with config.toml and checkpoint/" +
      received);
  if (!fs::exists(dir + "/config.toml")) throw none;
  const ExperimentInfo& info = experiment->info();
  if (ReadProgram(dir) != info.name) {
    throw UsageError(absl::StrCat("`pretrained` must be a run of ", info.name, received,
                                  ", a run of ", ReadProgram(dir)));
  }
  const std::string folder = FindRun(dir);
  if (folder.empty()) throw none;
  const std::unique_ptr<Experiment> other = ReadExperiment(folder);
  const SettingList wanted = experiment->Settings(), found = other->Settings();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].name;
    const std::vector<std::string>& must = info.network_settings;
    if (std::find(must.begin(), must.end(), name) == must.end()) continue;
    if (wanted[i].get() == found[i].get()) continue;
    throw UsageError(absl::StrCat("`pretrained` must be a run with ", name, " = ", wanted[i].get(),
                                  ", as this one", received, ", where ", name, " = ",
                                  found[i].get()));
  }
  return CheckpointsIn(folder);
}

std::unique_ptr<Run> RestoreRun(const std::string& folder, int64_t threads, Task* task) {
  std::unique_ptr<Run> run = Require(task->MakeRun(static_cast<int>(threads)));
  // The number of threads only changes the rounding, which does not matter here.
  Require(run->Restore(CheckpointsIn(folder)));
  return run;
}

}  // namespace late_phase

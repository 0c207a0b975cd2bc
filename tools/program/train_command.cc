// tools/latephase train PROGRAM: trains the program's models, each in a run folder, and writes
// their metrics to results.json. The table and the curves are made from there by
// python/late_phase_cli/PROGRAM_table.py and plot.py beside it.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/experiment.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/progress_line.h"
#include "tools/program/runs.h"
#include "tools/program/session.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string CommandOf(const std::string& program) { return "tools/latephase train " + program; }

struct Command {
  std::unique_ptr<Experiment> experiment;
  SessionFlags session;
  std::string data, preset, out;
  bool resume = false, dry_run = false;
};

Command Parse(const std::string& name, int argc, char** argv) {
  Command command;
  command.experiment = MakeExperiment(name);
  const Program& program = command.experiment->program();
  const SettingList settings = command.experiment->Settings();
  command.preset = program.preset;
  CLI::App app(program.description, CommandOf(name));
  app.add_option("--preset", command.preset,
                 PresetRule(name) + "; its values are the defaults of the flags below")
      ->capture_default_str();
  app.add_option("--out", command.out, "folder of the run; by default runs/" + name + "-PRESET");
  app.add_flag("--resume", command.resume, "goes on with the run in that folder, as it was set up");
  app.add_flag("--dry-run", command.dry_run,
               "only checks settings and data, and prints the config.toml that the run would have");
  app.add_option("--data", command.data, program.data_help);
  AddSessionFlags(&command.session, &app);
  AddFlags(settings, &app);
  ParseCommandLine(argc, argv, &app);
  if (command.out.empty()) {
    command.out = "runs/" + name + "-" + fs::path(command.preset).stem().string();
  }
  const std::string config = command.out + "/config.toml";
  if (command.resume) {
    if (!fs::exists(config)) {
      throw UsageError("`out` must hold a run to resume, with its config.toml. Received: out=" +
                       command.out);
    }
    ReadSettings(config, name, settings);
  } else {
    if (fs::exists(command.out) && !fs::is_empty(command.out)) {
      throw UsageError(
          "`out` must be new or empty, unless the run in it is to go on with "
          "--resume. Received: out=" +
          command.out);
    }
    ReadPreset(name, command.preset, settings);
  }
  ApplyFlags(settings, app);
  return command;
}

std::string ConfigFile(Experiment* experiment) {
  return absl::StrCat("# Every value used; `", CommandOf(experiment->program().name),
                      " --preset FILE --out DIR` does the same again.\n",
                      ConfigText(experiment->Settings()));
}

void WriteConfig(const std::string& folder, Experiment* experiment) {
  WriteFile(folder + "/config.toml", ConfigFile(experiment));
}

Json ToJson(const Metrics& metrics) {
  Json json = Json::object();
  for (const auto& [name, value] : metrics) json[name] = value;
  return json;
}

// The final metrics of a trained model on a split, by weight set.
Json Evaluate(Task* task, Run* run, Split split) {
  Json results;
  Metrics metrics;
  Require(task->Evaluate(run, split, WeightSet::kCollapsed, 0, &metrics));
  results["collapsed"] = ToJson(metrics);
  if (HasAverage(run->options(), run->step())) {
    Require(task->Evaluate(run, split, WeightSet::kSwa, 0, &metrics));
    results["swa"] = ToJson(metrics);
  }
  if (split == Split::kTest && task->MembersAt(run->step()) > 1) {
    std::vector<Metrics> members;
    Require(task->EvaluateMembers(run, split, &members, &metrics));
    if (HasMembers(run->options(), run->step())) {
      results["current"] = ToJson(members[LastMember(run->options(), run->step())]);
    }
    for (const Metrics& member : members) results["members"].push_back(ToJson(member));
    results["ensemble"] = ToJson(metrics);
  }
  return results;
}

// "LatePhase ops on CPU:0 (Rank1LstmTokens, …), 25 kinds of other ops on CPU:0"
std::string PlacementText(const Run& run) {
  std::vector<std::string> parts;
  for (const auto& [device, types] : run.placement()) {
    std::vector<std::string> ours;
    for (const std::string& type : types) {
      if (absl::StartsWith(type, "LatePhase>")) ours.push_back(type.substr(10));
    }
    const std::string name = device.substr(device.rfind("device:") + 7);
    parts.push_back(absl::StrCat(name, " runs ", types.size(), " kinds of ops",
                                 ours.empty() ? "" : ", of ours ", absl::StrJoin(ours, ", ")));
  }
  return absl::StrJoin(parts, "; ");
}

std::string CheckpointsOf(const PlannedRun& planned) { return planned.folder + "/checkpoint"; }
std::string ForkOf(const PlannedRun& planned) { return planned.fork_from + "/fork"; }
bool CanFork(const PlannedRun& planned) {
  return !planned.fork_from.empty() && LatestCheckpoint(ForkOf(planned)).has_value();
}

// Brings a run to where it is to go on: its own checkpoint, the state it forks from, or its start.
void Begin(const PlannedRun& planned, const std::string& name, int64_t steps, Run* run) {
  const std::string checkpoints = CheckpointsOf(planned);
  if (LatestCheckpoint(checkpoints).has_value()) {
    std::string note;
    Require(run->Restore(checkpoints, &note));
    if (run->step() > steps) {
      throw UsageError(absl::StrCat("`steps` must be at least ", run->step(),
                                    ", the minibatches done already. Received: steps=", steps));
    }
    if (!note.empty()) note = " (" + note + ")";
    std::fprintf(stderr, "%s: goes on at step %ld%s\n", name.c_str(), long{run->step()},
                 note.c_str());
  } else if (CanFork(planned)) {
    Require(run->Fork(ForkOf(planned)));
    Require(RunFolder::CopyMetrics(planned.fork_from, planned.folder, run->step()));
    std::fprintf(stderr, "%s: forked from %s at step %ld, where they part\n", name.c_str(),
                 fs::path(planned.fork_from).filename().c_str(), long{run->step()});
  } else if (!planned.experiment->recipe().pretrained.empty()) {
    const std::string pretrained = PretrainedCheckpoints(planned.experiment.get());
    Require(run->StartFrom(pretrained));
    std::fprintf(stderr, "%s: starts from the weights in %s\n", name.c_str(), pretrained.c_str());
  } else {
    Require(run->Initialize());
  }
}

// The run's task. What is wrong with any of the runs is said before hours go into the first, and
// before anything is written.
std::unique_ptr<Task> CheckedTask(const PlannedRun& planned, const SessionFlags& session) {
  std::unique_ptr<Task> task = planned.experiment->MakeTask();
  const bool fresh = !LatestCheckpoint(CheckpointsOf(planned)).has_value() && !CanFork(planned);
  if (!fresh || planned.experiment->recipe().pretrained.empty()) return task;
  std::unique_ptr<Run> run;
  Require(task->MakeRun(static_cast<int>(session.threads), &run));
  Require(run->StartFrom(PretrainedCheckpoints(planned.experiment.get())));
  return task;
}

// Trains to the end, with a progress line.
TrainEnd TrainToTheEnd(const PlannedRun& planned, const std::string& name, Task* task, Run* run,
                       RunFolder* folder) {
  const Experiment& experiment = *planned.experiment;
  const Program& program = experiment.program();
  const TrainPlan& plan = task->plan();
  TrainOptions options;
  options.steps = plan.steps;
  options.log_every = experiment.log_every;
  options.checkpoint_every = experiment.checkpoint_every;
  if (experiment.evaluate_every > 0) {
    options.evaluate_every =
        std::max<int64_t>(1, std::llround(experiment.evaluate_every * plan.steps_per_epoch));
  }
  if (planned.keep_fork) {
    options.fork_at = std::llround(experiment.recipe().t0 * plan.steps_per_epoch);
  }
  options.advice = experiment.Advice();
  options.stop = Interrupted;
  ProgressLine line(60);
  bool placed = false;
  options.progress = [&](const TrainProgress& progress) {
    if (!placed) {
      line.Clear();
      std::fprintf(stderr, "%s: %s\n", name.c_str(), PlacementText(*run).c_str());
      placed = true;
    }
    line.Show(absl::StrFormat(
                  "%s: epoch %.2f of %.4g, step %d, %s, %s %s/s, %s left", name, progress.epoch,
                  static_cast<double>(progress.steps) / plan.steps_per_epoch, progress.step,
                  program.progress.Text(progress.metrics), CountText(progress.items_per_second),
                  program.items, DurationText(progress.seconds_left)),
              static_cast<double>(progress.step) / progress.steps);
  };
  TrainEnd end;
  Require(Train(task, run, folder, options, &end));
  return end;
}

// Evaluates a trained model, logs its metrics and returns them as results.json holds them.
Json FinalResults(const Experiment& experiment, const SessionFlags& session, const TrainEnd& end,
                  Task* task, Run* run, RunFolder* folder) {
  std::vector<tensorflow::Tensor> mean;
  Require(run->Fetch({}, {task->epoch_loss()}, &mean));
  const double epochs = static_cast<double>(run->step()) / task->steps_per_epoch();
  Json results = {
      {"program", experiment.program().name},
      {"model", experiment.recipe().model},
      {"seed", experiment.recipe().seed},
      {"steps", run->step()},
      {"epochs", epochs},
      {"parameters", task->parameters()},
      {"train", ToJson(task->OfLoss(mean[0].scalar<double>()()))},
  };
  for (const Split split : task->splits()) {
    Json& of_split = results[SplitName(split)] = Evaluate(task, run, split);
    for (const auto& [weights, metrics] : of_split.items()) {
      if (!metrics.is_object()) continue;
      Require(folder->LogEvaluation(run->step(), epochs, SplitName(split), weights,
                                    metrics.get<Metrics>()));
    }
  }
  results["seconds"] = end.seconds;
  results["items_per_second"] = run->step() * task->items_per_step() / end.seconds;
  results["input_wait"] = end.input_wait;
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  results["peak_bytes"] = int64_t{usage.ru_maxrss} * 1024;  // of this process
  results["expected_bytes"] = std::llround(task->plan().bytes);
  results["threads"] = session.threads;
  results["device"] = session.device;
  return results;
}

// "test 2.3210 bpc, with SWA 2.3180 bpc"
std::string TestText(const Program& program, const Json& test) {
  auto text = [&](const char* weights) {
    const Metrics metrics = test[weights].get<Metrics>();
    return absl::StrJoin(program.columns, ", ", [&](std::string* out, const Column& column) {
      out->append(column.Text(metrics));
    });
  };
  return absl::StrCat("test ", text("collapsed"),
                      test.contains("swa") ? ", with SWA " + text("swa") : "");
}

// What an interrupted program says of how to continue.
std::string ResumeText(const Command& command) {
  return absl::StrCat("To resume: ", CommandOf(command.experiment->program().name),
                      " --resume --out ", command.out);
}

// Trains one model, or resumes it, and returns its results. Ends the program if it is interrupted.
Json TrainOne(const PlannedRun& planned, const Command& command, std::unique_ptr<Task> task) {
  const Experiment& experiment = *planned.experiment;
  const Program& program = experiment.program();
  const std::string results_path = planned.folder + "/results.json";
  if (command.resume && fs::exists(results_path)) {
    // Finished already, unless it is to go on for longer now.
    const Json results = Json::parse(ReadFile(results_path), nullptr, /*allow_exceptions=*/false);
    if (results.is_object() && results.value("steps", 0) == task->plan().steps) return results;
  }
  const std::string name =
      experiment.recipe().model +
      (command.experiment->seeds > 1 ? absl::StrCat(", seed ", experiment.recipe().seed) : "");
  std::unique_ptr<Run> run;
  Require(task->MakeRun(static_cast<int>(command.session.threads), &run));
  Begin(planned, name, task->plan().steps, run.get());
  std::unique_ptr<RunFolder> folder;
  TrainEnd end;
  {
    const FinishFirst finish(
        name + ": will stop after this step and save its state; Ctrl-C again ends it at once");
    Require(RunFolder::Open(planned.folder, run->step(), &folder));
    WriteConfig(planned.folder, planned.experiment.get());
    SetEnding(ResumeText(command), 0);
    std::fprintf(stderr, "%s: %ld parameters, %ld minibatches of %.0f %s\n", name.c_str(),
                 long{task->parameters()}, long{task->plan().steps}, task->items_per_step(),
                 program.items.c_str());
    end = TrainToTheEnd(planned, name, task.get(), run.get(), folder.get());
    SetEnding(absl::StrCat(name, ": stopped at step ", run->step(), "; the state is saved\n",
                           ResumeText(command)),
              0);
  }
  const Json results =
      FinalResults(experiment, command.session, end, task.get(), run.get(), folder.get());
  const FinishFirst finish(name + ": writing its results");
  SetEnding(absl::StrCat(name, ": its results are written\n", ResumeText(command)), 0);
  WriteFile(results_path, results.dump(1) + "\n");
  std::fprintf(stderr, "%s: %s\n", name.c_str(), TestText(program, results["test"]).c_str());
  return results;
}

int Main(const std::string& program, int argc, char** argv) {
  Command command = Parse(program, argc, argv);
  DataFiles files;
  command.experiment->OpenData(command.data, &files);
  ChooseDevice(&command.session);
  command.experiment->recipe().device = command.session.device;
  const std::vector<PlannedRun> runs = PlanRuns(*command.experiment, command.out);
  std::vector<std::unique_ptr<Task>> tasks;
  for (const PlannedRun& run : runs) tasks.push_back(CheckedTask(run, command.session));
  if (command.dry_run) {
    std::fputs(ConfigFile(command.experiment.get()).c_str(), stdout);
    return 0;
  }
  const bool several = runs.size() > 1;
  {
    const FinishFirst finish(CommandOf(program) + ": writing its settings");
    MakeOutFolder(command.out);
    if (several) WriteConfig(command.out, command.experiment.get());
    if (several || command.resume) SetEnding(ResumeText(command), 0);
  }
  Json results = {{"program", program}, {"runs", Json::array()}};
  for (size_t i = 0; i < runs.size(); ++i) {
    results["runs"].push_back(TrainOne(runs[i], command, std::move(tasks[i])));
  }
  const FinishFirst finish(CommandOf(program) + ": writing the results");
  SetEnding(CommandOf(program) + ": the results are written", 0);
  if (several) WriteFile(command.out + "/results.json", results.dump(1) + "\n");
  // The states that late-phase runs were forked from have done their work.
  for (const PlannedRun& run : runs) {
    std::error_code ignored;
    if (run.keep_fork) fs::remove_all(run.folder + "/fork", ignored);
  }
  return 0;
}

}  // namespace

int TrainCommand(const std::string& program, int argc, char** argv) {
  return RunProgram(CommandOf(program), [&] { return Main(program, argc, argv); });
}

}  // namespace late_phase

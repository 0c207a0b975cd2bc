// train PROGRAM: trains the program's models, each in a run folder, and writes their metrics to
// results.json, from which python/late_phase_cli/PROGRAM_table.py and plot.py make the table and
// the curves.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/training/memory.h"
#include "nlohmann/json.hpp"
#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/experiment.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/progress_line.h"
#include "tools/program/runs.h"
#include "tools/program/session.h"
#include "tools/program/worker_flags.h"
#include "tools/program/worker_start.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string TrainCommandName(const std::string& program) { return CommandName("train " + program); }

struct Command {
  std::unique_ptr<Experiment> experiment;
  SessionFlags session;
  std::string data, preset, out;
  std::string only;  // the folder, below `out`, of one of several runs; empty: all of them
  bool resume = false, dry_run = false;
  int64_t parallel = 0;        // runs at a time; 0: not given
  bool threads_given = false;  // otherwise the cores are divided among concurrent runs
  WorkerFlags worker_flags;
  std::unique_ptr<Workers> workers;  // null: this process trains alone

  // Whether this process reads and writes the run's files.
  bool first() const { return workers == nullptr || workers->first(); }
};

// What a process that was killed while it wrote its settings has left of them.
std::vector<fs::path> UnfinishedSettings(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (absl::StartsWith(entry.path().filename().string(), "config.toml.part")) {
      paths.push_back(entry.path());
    }
  }
  return paths;
}

bool IsFree(const std::string& folder) {
  if (!fs::exists(folder)) return true;
  if (!fs::is_directory(folder)) return false;
  const auto entries = std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  return entries == static_cast<std::ptrdiff_t>(UnfinishedSettings(folder).size());
}

// Refuses a folder that cannot be resumed, or that has something else in it.
void CheckOut(const Command& command) {
  if (command.resume) {
    if (fs::exists(command.out + "/config.toml")) return;
    throw UsageError("`out` must hold a run to resume, with its config.toml. Received: out=" +
                     command.out);
  }
  if (!IsFree(command.out)) {
    throw UsageError(
        "`out` must be new or empty, unless the run in it is to be resumed with "
        "--resume. Received: out=" +
        command.out);
  }
}

Command Parse(const std::string& name, int argc, char** argv, bool* serves) {
  Command command;
  command.experiment = MakeExperiment(name);
  const ExperimentInfo& info = command.experiment->info();
  const SettingList settings = command.experiment->Settings();
  command.preset = info.preset;
  CLI::App app(info.description, TrainCommandName(name));
  AddPresetFlag(name, &command.preset, &app);
  app.add_option("--out", command.out, "folder of the run; default: runs/" + name + "-PRESET");
  app.add_flag("--resume", command.resume, "resume the run in that folder, with its settings");
  app.add_flag("--dry-run", command.dry_run,
               "only check settings and data, and print the config.toml that the run would have");
  app.add_option("--data", command.data, info.data_help);
  AddSessionFlags(&command.session, &app);
  app.add_option("--parallel", command.parallel,
                 "how many of several runs to train at a time, dividing the cores among them; "
                 "default: those that start from scratch, as far as cores and memory allow")
      ->check(CLI::Range(1, 1024));
  app.add_option("--only", command.only)->group("");  // of a plan (tools/program/driver.h)
  AddWorkerFlags(&command.worker_flags, &app);
  AddFlags(settings, &app);
  ParseCommandLine(argc, argv, &app);
  command.threads_given = app.count("--threads") > 0;
  if (command.out.empty()) {
    command.out = "runs/" + name + "-" + fs::path(command.preset).stem().string();
  }
  if (const std::optional<WorkerGroup> group = NamedWorkers(command.worker_flags)) {
    *serves = true;
    command.workers = MeetWorkers(*group, static_cast<int>(command.session.threads),
                                  TrainCommandName(name) + (command.resume ? " --resume" : ""));
  }
  const std::string config = command.out + "/config.toml";
  const std::string text = FromFirst(command.workers.get(), [&] {
    CheckOut(command);
    return command.resume ? ReadFile(config) : std::string();
  });
  if (command.resume) {
    ReadSettingsText(text, config, name, settings);
  } else {
    ReadPreset(name, command.preset, settings);
  }
  ApplyFlags(settings, app);
  return command;
}

std::string ConfigFile(Experiment* experiment) {
  return absl::StrCat("# Every value used; `", TrainCommandName(experiment->info().name),
                      " --preset FILE --out DIR` repeats the run.\n",
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
  results["collapsed"] = ToJson(Require(task->Evaluate(run, split, WeightSet::kCollapsed)));
  if (HasAverage(run->options(), run->step())) {
    results["swa"] = ToJson(Require(task->Evaluate(run, split, WeightSet::kSwa)));
  }
  if (split == Split::kTest && task->MembersAt(run->step()) > 1) {
    const Task::MemberMetrics metrics = Require(task->EvaluateMembers(run, split));
    if (HasMembers(run->options(), run->step())) {
      results["current"] = ToJson(metrics.members[LastMember(run->options(), run->step())]);
    }
    for (const Metrics& member : metrics.members) results["members"].push_back(ToJson(member));
    results["ensemble"] = ToJson(metrics.ensemble);
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

std::string CheckpointFolder(const PlannedRun& planned) { return planned.folder + "/checkpoint"; }
std::string ForkFolder(const PlannedRun& planned) { return planned.fork_from + "/fork"; }
bool CanFork(const PlannedRun& planned) {
  return !planned.fork_from.empty() && LatestCheckpoint(ForkFolder(planned)).has_value();
}

// Says something about a run; of several workers, the first one does.
template <typename... Args>
void Say(const Command& command, const Args&... text) {
  if (command.first()) std::fputs(absl::StrCat(text..., "\n").c_str(), stderr);
}

// Brings a run to its starting point: its own checkpoint, the state it forks from, or step 0.
void Begin(const Command& command, const PlannedRun& planned, const std::string& name,
           int64_t steps, Run* run) {
  const std::string checkpoints = CheckpointFolder(planned);
  auto if_there = [&](const std::string& folder) {
    return FromFirst(command.workers.get(),
                     [&] { return LatestCheckpoint(folder).has_value() ? folder : std::string(); });
  };
  const std::string pretrained = planned.experiment->recipe().pretrained;
  if (!if_there(checkpoints).empty()) {
    std::string note = Require(run->Restore(checkpoints));
    if (run->step() > steps) {
      throw UsageError(absl::StrCat("`steps` must be at least ", run->step(),
                                    ", the minibatches done already. Received: steps=", steps));
    }
    if (!note.empty()) note = " (" + note + ")";
    Say(command, name, ": resumes at step ", run->step(), note);
  } else if (CanFork(planned)) {
    Require(run->Fork(ForkFolder(planned)));
    Require(RunFolder::CopyMetrics(planned.fork_from, planned.folder, run->step()));
    Say(command, name, ": forked from ", fs::path(planned.fork_from).filename().string(),
        " at step ", run->step());
  } else if (!pretrained.empty()) {
    const std::string from = FromFirst(
        command.workers.get(), [&] { return PretrainedCheckpoints(planned.experiment.get()); });
    Require(run->StartFrom(from));
    Say(command, name, ": starts from the weights in ", from);
  } else {
    Require(run->Initialize());
  }
}

// The run's task. Problems with any of the runs are reported before hours are spent on the first,
// and before anything is written.
std::unique_ptr<Task> CheckedTask(const PlannedRun& planned, const SessionFlags& session) {
  std::unique_ptr<Task> task = planned.experiment->MakeTask();
  // Workers train one run, which checks this when it begins.
  if (planned.experiment->recipe().workers != nullptr) return task;
  const bool fresh = !LatestCheckpoint(CheckpointFolder(planned)).has_value() && !CanFork(planned);
  if (!fresh || planned.experiment->recipe().pretrained.empty()) return task;
  const std::unique_ptr<Run> run = Require(task->MakeRun(static_cast<int>(session.threads)));
  Require(run->StartFrom(PretrainedCheckpoints(planned.experiment.get())));
  return task;
}

// Trains to the end, with a progress line.
TrainEnd TrainToTheEnd(const Command& command, const PlannedRun& planned, const std::string& name,
                       Task* task, Run* run, RunFolder* folder) {
  const Experiment& experiment = *planned.experiment;
  const ExperimentInfo& info = experiment.info();
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
    options.forked = [&] { TellDriver({{"forked", planned.folder}}); };
  }
  options.advice = experiment.Advice();
  options.stop = Interrupted;
  ProgressLine line(60);
  bool placed = false;
  options.progress = [&](const TrainProgress& progress) {
    if (!command.first()) return;
    if (!placed) {
      line.Clear();
      if (!run->placement().empty()) Say(command, name, ": ", PlacementText(*run));
      placed = true;
    }
    const double done = static_cast<double>(progress.step) / progress.steps;
    const std::string metric = info.progress.Text(progress.metrics);
    const std::string left = DurationText(progress.seconds_left) + " left";
    line.Show(
        absl::StrFormat("%s: epoch %.2f of %.4g, step %d, %s, %s %s/s, %s", name, progress.epoch,
                        static_cast<double>(progress.steps) / plan.steps_per_epoch, progress.step,
                        metric, CountText(progress.items_per_second), info.items, left),
        done);
    TellDriver({{"progress", {{"done", done}, {"text", metric + ", " + left}}}});
  };
  TrainEnd end = Require(Train(task, run, folder, options));
  if (command.workers != nullptr) {
    // A signal during the last step has reached one of them only.
    int64_t interrupted = Interrupted() ? 1 : 0;
    Require(command.workers->Sum(absl::MakeSpan(&interrupted, 1)));
    end.stopped = end.stopped || interrupted > 0;
    if (end.stopped) command.workers->Part();
  }
  return end;
}

// Evaluates a trained model, logs its metrics and returns them as results.json holds them.
Json FinalResults(const Experiment& experiment, const SessionFlags& session, const TrainEnd& end,
                  Task* task, Run* run, RunFolder* folder) {
  const std::vector<tensorflow::Tensor> mean = Require(run->Fetch({}, {task->epoch_loss()}));
  const double epochs = static_cast<double>(run->step()) / task->steps_per_epoch();
  Json results = {
      {"program", experiment.info().name},
      {"model", experiment.recipe().model},
      {"seed", experiment.recipe().seed},
      {"steps", run->step()},
      {"epochs", epochs},
      {"parameters", task->parameters()},
      {"train", ToJson(task->LossMetrics(mean[0].scalar<double>()()))},
  };
  for (const Split split : task->splits()) {
    Json& of_split = results[SplitName(split)] = Evaluate(task, run, split);
    for (const auto& [weights, metrics] : of_split.items()) {
      if (!metrics.is_object()) continue;
      Require(folder->LogEvaluation(run->step(), epochs, SplitName(split), weights,
                                    metrics.get<Metrics>()));
    }
  }
  Require(LogMembers(
      *task, [task](int64_t t) { return task->Batch(t); }, run, folder));
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
std::string TestText(const ExperimentInfo& info, const Json& test) {
  auto text = [&](const char* weights) {
    const Metrics metrics = test[weights].get<Metrics>();
    return absl::StrJoin(info.columns, ", ", [&](std::string* out, const Column& column) {
      out->append(column.Text(metrics));
    });
  };
  return absl::StrCat("test ", text("collapsed"),
                      test.contains("swa") ? ", with SWA " + text("swa") : "");
}

// The command that resumes this one, with the same number of threads.
std::string ResumeCommand(const Command& command) {
  std::string text = absl::StrCat(TrainCommandName(command.experiment->info().name),
                                  " --resume --out ", command.out);
  if (command.parallel > 0) absl::StrAppend(&text, " --parallel ", command.parallel);
  if (command.threads_given) absl::StrAppend(&text, " --threads ", command.session.threads);
  const WorkerFlags& flags = command.worker_flags;
  if (flags.local_workers > 0) {
    absl::StrAppend(&text, " --local-workers ", flags.local_workers);
  } else if (!flags.workers.empty()) {
    absl::StrAppend(&text, " --workers ", flags.workers);
    if (flags.task >= 0) absl::StrAppend(&text, " --task ", flags.task);
  }
  return text;
}

// How to continue, as an interrupted program says it.
std::string ResumeText(const Command& command) { return "To resume: " + ResumeCommand(command); }

std::string ResultsPath(const PlannedRun& planned) { return planned.folder + "/results.json"; }

// The results of a finished run; null if it has not finished, or is now to be trained for longer.
Json FinishedResults(const PlannedRun& planned, const Task& task) {
  if (!fs::exists(ResultsPath(planned))) return nullptr;
  Json results = Json::parse(ReadFile(ResultsPath(planned)), nullptr, /*allow_exceptions=*/false);
  const bool whole = results.is_object() && results.value("steps", 0) == task.plan().steps;
  return whole ? std::move(results) : nullptr;
}

// "rank1", or with several seeds "rank1, seed 3"
std::string RunName(const PlannedRun& planned, const Command& command) {
  const Recipe& recipe = planned.experiment->recipe();
  return recipe.model + (command.experiment->seeds > 1 ? absl::StrCat(", seed ", recipe.seed) : "");
}

// Whether the run is finished, and its results; only the first worker has those.
bool IsFinished(const PlannedRun& planned, const Command& command, const Task& task,
                Json* results) {
  const std::string finished = FromFirst(command.workers.get(), [&]() -> std::string {
    *results = FinishedResults(planned, task);
    return results->is_null() ? "" : "yes";
  });
  return !finished.empty();
}

// Trains one model, or resumes it, and returns its results. Ends the program if it is interrupted.
Json TrainOne(const PlannedRun& planned, const Command& command, std::unique_ptr<Task> task) {
  const Experiment& experiment = *planned.experiment;
  const ExperimentInfo& info = experiment.info();
  if (Json results; command.resume && IsFinished(planned, command, *task, &results)) return results;
  const std::string name = RunName(planned, command);
  const std::unique_ptr<Run> run =
      Require(task->MakeRun(static_cast<int>(command.session.threads)));
  Begin(command, planned, name, task->plan().steps, run.get());
  std::unique_ptr<RunFolder> folder = RunFolder::Nowhere();
  TrainEnd end;
  {
    const FinishFirst finish(
        name +
        ": will stop after this step and save its state; press Ctrl-C again to end it at once");
    if (command.first()) {
      const bool trained = run->step() == task->plan().steps;
      folder = Require(RunFolder::Open(planned.folder, run->step(), trained));
      WriteConfig(planned.folder, planned.experiment.get());
    }
    SetEnding(ResumeText(command), 0);
    Say(command, name, ": ", task->parameters(), " parameters, ", task->plan().steps,
        " minibatches of ", absl::StrFormat("%.0f ", task->items_per_step()), info.items);
    end = TrainToTheEnd(command, planned, name, task.get(), run.get(), folder.get());
    SetEnding(absl::StrCat(name, ": stopped at step ", run->step(), "; the state is saved\n",
                           ResumeText(command)),
              0);
  }
  if (end.stopped) EndAsInterrupted();  // it was another worker that received the signal
  Json results =
      FinalResults(experiment, command.session, end, task.get(), run.get(), folder.get());
  if (command.workers != nullptr) {
    results["workers"] = command.workers->share().workers;
    command.workers->Part();
  }
  if (!command.first()) return results;
  const FinishFirst finish(name + ": writing its results");
  SetEnding(absl::StrCat(name, ": its results are written\n", ResumeText(command)), 0);
  WriteFile(ResultsPath(planned), results.dump(1) + "\n");
  Say(command, name, ": ", TestText(info, results["test"]));
  return results;
}

// The total bytes of the `count` largest runs.
double LargestBytes(const std::vector<std::unique_ptr<Task>>& tasks, int64_t count) {
  std::vector<double> bytes;
  for (const std::unique_ptr<Task>& task : tasks) bytes.push_back(task->plan().bytes);
  std::sort(bytes.rbegin(), bytes.rend());
  return std::accumulate(bytes.begin(), bytes.begin() + count, 0.0);
}

// How many of the runs to train at a time. By default those that start from scratch, at most one
// per core: small networks gain little from a second thread, so two runs side by side finish sooner
// than two in a row. Runs that are forked from another one do not count, since they would wait for
// it while their share of the cores is idle; they follow. This depends on the whole plan and not on
// what is left of it, so that a resumed run has as many threads as before.
int64_t RunsAtATime(const Command& command, const std::vector<PlannedRun>& runs,
                    const std::vector<std::unique_ptr<Task>>& tasks) {
  const int64_t all = runs.size();
  if (command.parallel > 0) {
    const int64_t parallel = std::min(command.parallel, all);
    Require(CheckFitsMemory(LargestBytes(tasks, parallel), absl::StrCat("parallel=", parallel)));
    return parallel;
  }
  if (!absl::StartsWith(command.session.device, "CPU")) return 1;
  const int64_t from_scratch =
      absl::c_count_if(runs, [](const PlannedRun& run) { return run.fork_from.empty(); });
  int64_t parallel = std::min<int64_t>(from_scratch, SessionFlags().threads);
  while (parallel > 1 && !CheckFitsMemory(LargestBytes(tasks, parallel), "").ok()) --parallel;
  return parallel;
}

// The plan of a command, for the driver (tools/program/driver.h).
Json PlanJson(const Command& command, const std::vector<PlannedRun>& runs,
              const std::vector<std::unique_ptr<Task>>& tasks, int64_t parallel) {
  const int64_t cores = SessionFlags().threads;
  const int64_t threads =
      command.threads_given ? command.session.threads : std::max<int64_t>(1, cores / parallel);
  Json common = {"train",
                 command.experiment->info().name,
                 "--resume",
                 "--out",
                 command.out,
                 "--threads",
                 std::to_string(threads),
                 "--device",
                 command.session.device};
  if (!command.data.empty()) common.insert(common.end(), {"--data", command.data});
  Json plan = {{"folder", command.out},
               {"parallel", parallel},
               {"threads", threads},
               {"runs", Json::array()}};
  std::set<std::string> finished;
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& run = runs[i];
    if (!FinishedResults(run, *tasks[i]).is_null()) finished.insert(run.folder);
    const bool ready = run.fork_from.empty() || finished.count(run.fork_from) > 0 || CanFork(run) ||
                       LatestCheckpoint(CheckpointFolder(run)).has_value();
    Json arguments = common;
    arguments.insert(arguments.end(), {"--only", run.folder.substr(command.out.size() + 1)});
    plan["runs"].push_back({{"name", RunName(run, command)},
                            {"model", run.experiment->recipe().model},
                            {"seed", run.experiment->recipe().seed},
                            {"folder", run.folder},
                            {"fork_from", run.fork_from.empty() ? Json() : Json(run.fork_from)},
                            {"finished", finished.count(run.folder) > 0},
                            {"ready", ready},
                            {"arguments", arguments}});
  }
  plan["collect"] = common;
  plan["collect"].insert(plan["collect"].end(), {"--parallel", "1"});
  plan["resume"] = ResumeCommand(command);
  return {{"plan", plan}};
}

// The one of a plan's runs that this command is to train.
void KeepOnly(const Command& command, std::vector<PlannedRun>* runs) {
  const std::string folder = command.out + "/" + command.only;
  runs->erase(std::remove_if(runs->begin(), runs->end(),
                             [&](const PlannedRun& run) { return run.folder != folder; }),
              runs->end());
  if (runs->empty()) {
    throw UsageError("`only` must be the folder of one of the runs. Received: only=" +
                     command.only);
  }
}

// Makes sure that all workers are about to train the same run, and gives it to them.
void JoinWorkers(Command* command) {
  Facts facts;
  for (const Setting& setting : command->experiment->Settings()) {
    facts.emplace_back(setting.name, setting.get());
  }
  facts.emplace_back("data", command->experiment->DataDigest());
  RequireSame(facts, command->workers.get());
  command->experiment->recipe().workers = command->workers.get();
}

// For the driver (tools/program/driver.h), which starts this command once for each worker.
Json LocalWorkersJson(const Command& command) {
  const int64_t workers = command.worker_flags.local_workers;
  const int64_t threads = command.threads_given
                              ? command.session.threads
                              : std::max<int64_t>(1, SessionFlags().threads / workers);
  return {{"local_workers", {{"count", workers}, {"folder", command.out}, {"threads", threads}}}};
}

void RequireOneRun(const std::vector<PlannedRun>& runs) {
  if (runs.size() == 1) return;
  throw UsageError(absl::StrCat(
      "several workers must train a single run: give one `model`, and `seeds` 1. Received: ",
      runs.size(), " runs"));
}

// The runs of the command, checked.
std::vector<PlannedRun> CheckedRuns(const Command& command,
                                    std::vector<std::unique_ptr<Task>>* tasks) {
  std::vector<PlannedRun> runs = PlanRuns(*command.experiment, command.out);
  if (!command.only.empty()) KeepOnly(command, &runs);
  if (command.workers != nullptr || command.worker_flags.local_workers > 0) RequireOneRun(runs);
  for (const PlannedRun& run : runs) tasks->push_back(CheckedTask(run, command.session));
  return runs;
}

// Trains the runs one after the other and writes the results.
void TrainRuns(const std::string& program, const Command& command,
               const std::vector<PlannedRun>& runs, std::vector<std::unique_ptr<Task>> tasks) {
  Json results = {{"program", program}, {"runs", Json::array()}};
  for (size_t i = 0; i < runs.size(); ++i) {
    results["runs"].push_back(TrainOne(runs[i], command, std::move(tasks[i])));
  }
  if (!command.first()) return;
  const FinishFirst finish(TrainCommandName(program) + ": writing the results");
  SetEnding(TrainCommandName(program) + ": the results are written", 0);
  const bool several = runs.size() > 1;
  if (several) WriteFile(command.out + "/results.json", results.dump(1) + "\n");
  // The states that runs were forked from are no longer needed.
  for (const PlannedRun& run : runs) {
    std::error_code ignored;
    if (run.keep_fork && command.only.empty()) fs::remove_all(run.folder + "/fork", ignored);
  }
  TellDriver(
      {{"finished", program}, {"folder", command.only.empty() ? command.out : runs[0].folder}});
}

// serves: set if this process has a server, which runs to its end.
int Main(const std::string& program, int argc, char** argv, bool* serves) {
  Command command = Parse(program, argc, argv, serves);
  DataFiles files;
  command.experiment->OpenData(command.data, &files);
  ChooseDevice(&command.session);
  if (command.workers != nullptr) JoinWorkers(&command);
  command.experiment->recipe().device = command.session.device;
  std::vector<std::unique_ptr<Task>> tasks;
  const std::vector<PlannedRun> runs = CheckedRuns(command, &tasks);
  const bool several = runs.size() > 1;
  if (command.dry_run) {
    std::fputs(ConfigFile(command.experiment.get()).c_str(), stdout);
    return 0;
  }
  if (command.worker_flags.local_workers > 0 && command.workers == nullptr) {
    if (!HasDriver()) throw UsageError("`local_workers` needs the driver, which starts them");
    TellDriver(LocalWorkersJson(command));
    return 0;
  }
  const int64_t parallel = several ? RunsAtATime(command, runs, tasks) : 1;
  if (command.first()) {
    const FinishFirst finish(TrainCommandName(program) + ": writing its settings");
    MakeOutFolder(command.out);
    for (const fs::path& path : UnfinishedSettings(command.out)) fs::remove(path);
    // First of all: a folder with anything else in it would neither be free nor resume.
    if (several || !command.resume) WriteConfig(command.out, command.experiment.get());
    if (several || command.resume) SetEnding(ResumeText(command), 0);
  }
  if (parallel > 1 && HasDriver()) {
    TellDriver(PlanJson(command, runs, tasks, parallel));
    return 0;
  }
  TrainRuns(program, command, runs, std::move(tasks));
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

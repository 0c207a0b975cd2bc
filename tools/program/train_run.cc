#include "tools/program/train_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/program/command_line.h"
#include "tools/program/driver.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/progress_line.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

// Says something about a run; of several workers, the first one does.
template <typename... Args>
void Say(const Training& training, const Args&... text) {
  if (training.first()) std::fputs(absl::StrCat(text..., "\n").c_str(), stderr);
}

// Brings a run to its starting point: its own checkpoint, the state it forks from, or step 0.
void Begin(const Training& training, const PlannedRun& planned, const std::string& name,
           int64_t steps, Run* run) {
  const std::string checkpoints = CheckpointFolder(planned);
  auto if_there = [&](const std::string& folder) {
    return FromFirst(training.workers.get(),
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
    Say(training, name, ": resumes at step ", run->step(), note);
  } else if (CanFork(planned)) {
    Require(run->Fork(ForkFolder(planned)));
    Require(RunFolder::CopyMetrics(planned.fork_from, planned.folder, run->step()));
    Say(training, name, ": forked from ", fs::path(planned.fork_from).filename().string(),
        " at step ", run->step());
  } else if (!pretrained.empty()) {
    const std::string from = FromFirst(
        training.workers.get(), [&] { return PretrainedCheckpoints(planned.experiment.get()); });
    Require(run->StartFrom(from));
    Say(training, name, ": starts from the weights in ", from);
  } else {
    Require(run->Initialize());
  }
}

// Trains to the end, with a progress line.
TrainEnd TrainToTheEnd(const Training& training, const PlannedRun& planned, const std::string& name,
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
    if (!training.first()) return;
    if (!placed) {
      line.Clear();
      if (!run->placement().empty()) Say(training, name, ": ", PlacementText(*run));
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
  if (training.workers != nullptr) {
    // A signal during the last step has reached one of them only.
    int64_t interrupted = Interrupted() ? 1 : 0;
    Require(training.workers->Sum(absl::MakeSpan(&interrupted, 1)));
    end.stopped = end.stopped || interrupted > 0;
    if (end.stopped) training.workers->Part();
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

std::string ResultsPath(const PlannedRun& planned) { return planned.folder + "/results.json"; }

// Whether the run is finished, and its results; only the first worker has those.
bool IsFinished(const PlannedRun& planned, const Training& training, const Task& task,
                Json* results) {
  const std::string finished = FromFirst(training.workers.get(), [&]() -> std::string {
    *results = FinishedResults(planned, task);
    return results->is_null() ? "" : "yes";
  });
  return !finished.empty();
}

}  // namespace

std::string RunName(const PlannedRun& planned, const Training& training) {
  const Recipe& recipe = planned.experiment->recipe();
  return recipe.model +
         (training.experiment->seeds > 1 ? absl::StrCat(", seed ", recipe.seed) : "");
}

bool CanFork(const PlannedRun& planned) {
  return !planned.fork_from.empty() && LatestCheckpoint(ForkFolder(planned)).has_value();
}

bool HasCheckpoint(const PlannedRun& planned) {
  return LatestCheckpoint(CheckpointFolder(planned)).has_value();
}

std::unique_ptr<Task> CheckedTask(const PlannedRun& planned, const SessionFlags& session) {
  std::unique_ptr<Task> task = planned.experiment->MakeTask();
  // Workers train one run, which checks this when it begins.
  if (planned.experiment->recipe().workers != nullptr) return task;
  const bool fresh = !HasCheckpoint(planned) && !CanFork(planned);
  if (!fresh || planned.experiment->recipe().pretrained.empty()) return task;
  const std::unique_ptr<Run> run = Require(task->MakeRun(static_cast<int>(session.threads)));
  Require(run->StartFrom(PretrainedCheckpoints(planned.experiment.get())));
  return task;
}

Json FinishedResults(const PlannedRun& planned, const Task& task) {
  if (!fs::exists(ResultsPath(planned))) return nullptr;
  Json results = Json::parse(ReadFile(ResultsPath(planned)), nullptr, /*allow_exceptions=*/false);
  // Of another type, too, it is not a number of minibatches.
  const bool whole = results.is_object() && results.value("steps", Json()) == task.plan().steps;
  return whole ? std::move(results) : nullptr;
}

Json TrainRun(const PlannedRun& planned, const Training& training, std::unique_ptr<Task> task) {
  const Experiment& experiment = *planned.experiment;
  const ExperimentInfo& info = experiment.info();
  if (Json results; training.resume && IsFinished(planned, training, *task, &results))
    return results;
  const std::string name = RunName(planned, training);
  const std::unique_ptr<Run> run =
      Require(task->MakeRun(static_cast<int>(training.session.threads)));
  Begin(training, planned, name, task->plan().steps, run.get());
  std::unique_ptr<RunFolder> folder = RunFolder::Nowhere();
  TrainEnd end;
  {
    const FinishFirst finish(
        name +
        ": will stop after this step and save its state; press Ctrl-C again to end it at once");
    if (training.first()) {
      const bool trained = run->step() == task->plan().steps;
      folder = Require(RunFolder::Open(planned.folder, run->step(), trained));
      WriteConfig(planned.folder, planned.experiment.get());
    }
    SetEnding(ResumeText(training), 0);
    Say(training, name, ": ", task->parameters(), " parameters, ", task->plan().steps,
        " minibatches of ", absl::StrFormat("%.0f ", task->items_per_step()), info.items);
    end = TrainToTheEnd(training, planned, name, task.get(), run.get(), folder.get());
    SetEnding(absl::StrCat(name, ": stopped at step ", run->step(), "; the state is saved\n",
                           ResumeText(training)),
              0);
  }
  if (end.stopped) EndAsInterrupted();  // it was another worker that received the signal
  Json results =
      FinalResults(experiment, training.session, end, task.get(), run.get(), folder.get());
  if (training.workers != nullptr) {
    results["workers"] = training.workers->share().workers;
    training.workers->Part();
  }
  if (!training.first()) return results;
  const FinishFirst finish(name + ": writing its results");
  SetEnding(absl::StrCat(name, ": its results are written\n", ResumeText(training)), 0);
  WriteFile(ResultsPath(planned), results.dump(1) + "\n");
  Say(training, name, ": ", TestText(info, results["test"]));
  return results;
}

}  // namespace late_phase

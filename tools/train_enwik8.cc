// tools/latephase train enwik8: trains base, rank1 and late-phase models, each in a run folder, and
// writes their figures to results.json. The table and the curves are drawn from there by
// tools/enwik8_table.py and tools/plot.py.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/enwik8_run.h"
#include "tools/files.h"
#include "tools/program.h"
#include "tools/progress_line.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kCommand[] = "tools/latephase train enwik8";

// Set by SIGINT and SIGTERM: the step is finished, the state saved.
volatile std::sig_atomic_t stop_requested = 0;

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

struct Command {
  Enwik8Config config;
  Enwik8Flags flags;
  std::string preset = "quick", out;
  bool resume = false;
};

Command Parse(int argc, char** argv) {
  Command command;
  const SettingList settings = Enwik8Settings(&command.config);
  CLI::App app("Trains the paper's enwik8 LSTM: plain, with rank-1 factors, with late-phase ones.",
               kCommand);
  app.add_option("--preset", command.preset,
                 PresetRule(kEnwik8) + "; its values are the defaults of the flags below")
      ->capture_default_str();
  app.add_option("--out", command.out, "folder of the run; by default runs/enwik8-PRESET");
  app.add_flag("--resume", command.resume, "goes on with the run in that folder, as it was set up");
  AddDataFlag(&command.flags, &app);
  AddDeviceFlags(&command.flags, &app);
  AddFlags(settings, &app);
  ParseCommandLine(argc, argv, &app);
  if (command.out.empty()) {
    command.out = "runs/enwik8-" + fs::path(command.preset).stem().string();
  }
  const std::string config = command.out + "/config.toml";
  if (command.resume) {
    if (!fs::exists(config)) {
      throw UsageError("`out` must hold a run to resume, with its config.toml. Received: out=" +
                       command.out);
    }
    ReadSettings(config, kEnwik8, settings);
  } else {
    if (fs::exists(command.out) && !fs::is_empty(command.out)) {
      throw UsageError(
          "`out` must be new or empty, unless the run in it is to go on with "
          "--resume. Received: out=" +
          command.out);
    }
    ReadPreset(kEnwik8, command.preset, settings);
  }
  ApplyFlags(settings, app);
  return command;
}

// One run of a comparison.
struct PlannedRun {
  Enwik8Config config;
  std::string folder;
  std::string fork_from;  // of the run that is the same until T0; empty: none
  bool keep_fork = false;
};

std::vector<PlannedRun> PlanRuns(const Command& command) {
  const bool all = command.config.options.model == "all";
  const std::vector<std::string> models =
      all ? std::vector<std::string>{"base", "rank1", "late-phase"}
          : std::vector<std::string>{command.config.options.model};
  std::vector<PlannedRun> runs;
  for (int64_t i = 0; i < command.config.seeds; ++i) {
    const int64_t seed = command.config.options.seed + i;
    const std::string parent =
        command.config.seeds > 1 ? absl::StrCat(command.out, "/seed-", seed) : command.out;
    for (const std::string& model : models) {
      PlannedRun run{command.config, all ? parent + "/" + model : parent, "", false};
      run.config.seeds = 1;
      run.config.options.seed = seed;
      run.config.options.model = model;
      run.config.options.device = command.flags.device;
      run.keep_fork = all && model == "rank1";
      if (all && model == "late-phase") run.fork_from = parent + "/rank1";
      runs.push_back(run);
    }
  }
  return runs;
}

void WriteConfig(const std::string& folder, Enwik8Config config) {
  WriteFile(folder + "/config.toml",
            absl::StrCat("# Every value used; `", kCommand,
                         " --preset FILE --out DIR` does the same again.\n",
                         ConfigText(Enwik8Settings(&config))));
}

Json ToJson(const Figures& figures) {
  Json json = Json::object();
  for (const auto& [name, value] : figures) json[name] = value;
  return json;
}

// The final figures of a trained model on a split, by weight set.
Json Evaluate(Enwik8* task, Run* run, Split split) {
  Json results;
  Figures figures;
  Require(task->Evaluate(run, split, WeightSet::kCollapsed, &figures));
  results["collapsed"] = ToJson(figures);
  if (HasAverage(run->options(), run->step())) {
    Require(task->Evaluate(run, split, WeightSet::kSwa, &figures));
    results["swa"] = ToJson(figures);
  }
  if (split == Split::kTest && task->members() > 1 && run->step() > run->options().start) {
    std::vector<Figures> members;
    Require(task->EvaluateMembers(run, split, &members, &figures));
    for (const Figures& member : members) results["members"].push_back(ToJson(member));
    results["ensemble"] = ToJson(figures);
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

// Brings a run to where it is to go on: its own checkpoint, the state it forks from, or its start.
void Begin(const PlannedRun& planned, const std::string& name, int64_t steps, Run* run) {
  const std::string checkpoints = planned.folder + "/checkpoint",
                    fork = planned.fork_from + "/fork";
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
  } else if (!planned.fork_from.empty() && LatestCheckpoint(fork).has_value()) {
    Require(run->Fork(fork));
    Require(RunFolder::CopyMetrics(planned.fork_from, planned.folder, run->step()));
    std::fprintf(stderr, "%s: forked from rank1 at step %ld, where the members begin\n",
                 name.c_str(), long{run->step()});
  } else {
    Require(run->Initialize());
  }
}

// Trains to the end, with a progress line.
TrainEnd TrainToTheEnd(const PlannedRun& planned, const std::string& name, Enwik8* task, Run* run,
                       RunFolder* folder) {
  const Enwik8Config& config = planned.config;
  const TrainPlan& plan = task->plan();
  TrainOptions options;
  options.steps = plan.steps;
  options.log_every = config.log_every;
  options.checkpoint_every = config.checkpoint_every;
  if (config.evaluate_every > 0) {
    options.evaluate_every =
        std::max<int64_t>(1, std::llround(config.evaluate_every * plan.steps_per_epoch));
  }
  if (planned.keep_fork) options.fork_at = std::llround(config.options.t0 * plan.steps_per_epoch);
  options.advice =
      absl::StrCat("Start again with a lower --learning-rate (now ", config.options.learning_rate,
                   ") or a smaller --clip-norm (now ", config.options.clip_norm, ").");
  options.stop = [] { return stop_requested != 0; };
  ProgressLine line(60);
  bool placed = false;
  options.progress = [&](const TrainProgress& progress) {
    if (!placed) {
      line.Clear();
      std::fprintf(stderr, "%s: %s\n", name.c_str(), PlacementText(*run).c_str());
      placed = true;
    }
    line.Show(
        absl::StrFormat("%s: epoch %.2f of %.4g, step %d, %.3f bpc, %s characters/s, %s left", name,
                        progress.epoch, static_cast<double>(progress.steps) / plan.steps_per_epoch,
                        progress.step, progress.figures.at("bpc"),
                        CountText(progress.items_per_second), DurationText(progress.seconds_left)),
        static_cast<double>(progress.step) / progress.steps);
  };
  TrainEnd end;
  Require(Train(task, run, folder, options, &end));
  return end;
}

// Evaluates a trained model, logs its figures and returns them as results.json holds them.
Json FinalResults(const Enwik8Config& config, const Enwik8Flags& flags, const TrainEnd& end,
                  Enwik8* task, Run* run, RunFolder* folder) {
  std::vector<tensorflow::Tensor> mean;
  Require(run->Fetch({}, {task->epoch_loss()}, &mean));
  Json results = {
      {"program", kEnwik8},
      {"model", config.options.model},
      {"seed", config.options.seed},
      {"steps", run->step()},
      {"epochs", static_cast<double>(run->step()) / task->steps_per_epoch()},
      {"parameters", task->parameters()},
      {"train", ToJson(task->OfLoss(mean[0].scalar<double>()()))},
      {"validation", Evaluate(task, run, Split::kValidation)},
      {"test", Evaluate(task, run, Split::kTest)},
      {"seconds", end.seconds},
      {"items_per_second", run->step() * task->items_per_step() / end.seconds},
      {"input_wait", end.input_wait},
      {"threads", flags.threads},
      {"device", flags.device},
  };
  for (const char* split : {"validation", "test"}) {
    for (const auto& [weights, figures] : results[split].items()) {
      if (!figures.is_object()) continue;
      Require(folder->LogEvaluation(run->step(), results["epochs"], split, weights,
                                    figures.get<Figures>()));
    }
  }
  return results;
}

// Trains one model, or goes on with it, and returns its results; null if it was stopped.
Json TrainOne(const PlannedRun& planned, const Command& command, const ByteText& text) {
  const Enwik8Config& config = planned.config;
  const std::string results_path = planned.folder + "/results.json";
  std::unique_ptr<Enwik8> task;
  Require(Enwik8::Create(config.options, &text, &task));
  if (command.resume && fs::exists(results_path)) {
    // Finished already, unless it is to go on for longer now.
    const Json results = Json::parse(ReadFile(results_path), nullptr, /*allow_exceptions=*/false);
    if (results.is_object() && results.value("steps", 0) == task->plan().steps) return results;
  }
  const std::string name =
      config.options.model +
      (command.config.seeds > 1 ? absl::StrCat(", seed ", config.options.seed) : "");
  std::unique_ptr<Run> run;
  Require(task->MakeRun(static_cast<int>(command.flags.threads), &run));
  Begin(planned, name, task->plan().steps, run.get());
  std::unique_ptr<RunFolder> folder;
  Require(RunFolder::Open(planned.folder, run->step(), &folder));
  WriteConfig(planned.folder, config);

  std::fprintf(stderr, "%s: %ld parameters, %ld minibatches of %.6g characters\n", name.c_str(),
               long{task->parameters()}, long{task->plan().steps}, task->items_per_step());
  const TrainEnd end = TrainToTheEnd(planned, name, task.get(), run.get(), folder.get());
  if (end.stopped) {
    std::fprintf(stderr, "%s: stopped at step %ld; the state is saved\n", name.c_str(),
                 long{run->step()});
    return Json();
  }
  Json results = FinalResults(config, command.flags, end, task.get(), run.get(), folder.get());
  WriteFile(results_path, results.dump(1) + "\n");
  const Json& test = results["test"];
  std::string text_of_swa;
  if (test.contains("swa")) {
    text_of_swa = absl::StrFormat(", with SWA %.4f", test["swa"]["bpc"].get<double>());
  }
  std::fprintf(stderr, "%s: test %.4f bpc%s\n", name.c_str(),
               test["collapsed"]["bpc"].get<double>(), text_of_swa.c_str());
  return results;
}

int Main(int argc, char** argv) {
  Command command = Parse(argc, argv);
  const ByteText text = OpenText(command.flags, command.config.options.limits);
  ChooseDevice(&command.flags);
  const std::vector<PlannedRun> runs = PlanRuns(command);
  // What is wrong with any of them is said before hours go into the first.
  for (const PlannedRun& run : runs) {
    std::unique_ptr<Enwik8> task;
    Require(Enwik8::Create(run.config.options, &text, &task));
  }
  MakeOutFolder(command.out);
  StopOnSignals();
  const bool several = runs.size() > 1;
  if (several) WriteConfig(command.out, command.config);
  Json results = {{"program", kEnwik8}, {"runs", Json::array()}};
  for (const PlannedRun& run : runs) {
    const Json result = stop_requested ? Json() : TrainOne(run, command, text);
    if (result.is_null()) {
      std::fprintf(stderr, "To go on: %s --resume --out %s\n", kCommand, command.out.c_str());
      return 0;
    }
    results["runs"].push_back(result);
  }
  if (several) WriteFile(command.out + "/results.json", results.dump(1) + "\n");
  // The states that late-phase runs were forked from have done their work.
  for (const PlannedRun& run : runs) {
    std::error_code ignored;
    if (run.keep_fork) fs::remove_all(run.folder + "/fork", ignored);
  }
  return 0;
}

}  // namespace

int TrainEnwik8(int argc, char** argv) {
  return RunProgram(kCommand, [&] { return Main(argc, argv); });
}

}  // namespace late_phase

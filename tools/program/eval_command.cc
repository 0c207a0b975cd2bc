// eval: the metrics of trained runs' weights, as a table and in evaluation.json.
// The plots are drawn from there by python/late_phase_cli/evaluation_plot.py.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/program/command_line.h"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/evaluation.h"
#include "tools/program/experiment.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/out_folder.h"
#include "tools/program/runs.h"
#include "tools/program/session.h"
#include "tools/program/weight_names.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;

constexpr char kGenerated[] = "generated";  // the value of --corrupt without a folder

struct Command {
  SessionFlags session;
  std::vector<std::string> dirs;
  std::string data, out, weights, flatness;
  EvaluationOptions options;
  int64_t corrupt_images = 1000;
  std::vector<std::string> for_images;  // flags given that only image networks know
};

// The arguments, with kGenerated inserted after a --corrupt that is not followed by a folder of
// images but by a flag, a run or nothing.
std::vector<std::string> WithCorrupt(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != "--corrupt") continue;
    const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "--";
    if (next[0] == '-' || fs::exists(fs::path(next) / "config.toml")) {
      arguments[i] = absl::StrCat("--corrupt=", kGenerated);
    }
  }
  return arguments;
}

void AddRunFlags(Command* command, CLI::App* app) {
  app->add_option("RUN_DIR", command->dirs,
                  "folders of runs; from a folder of several models the late-phase one is taken")
      ->required();
  app->add_option("--weights", command->weights,
                  absl::StrCat("comma-separated: ", kWeightNames, "; default: all that a run has"));
  app->add_option("--split", command->options.split,
                  "test, or validation if the run has a validation split")
      ->capture_default_str();
  app->add_option("--data", command->data, "as in training");
  app->add_option("--out", command->out,
                  "folder for evaluation.json and its plots; default: RUN_DIR/evaluation");
  AddSessionFlags(&command->session, app);
}

// Of image networks.
std::vector<CLI::Option*> AddImageFlags(Command* command, CLI::App* app) {
  EvaluationOptions* options = &command->options;
  return {
      app->add_flag("--ensemble", options->ensemble,
                    "also average the runs' probabilities, those of the collapsed weights "
                    "unless --weights says otherwise"),
      app->add_option("--ood", options->ood,
                      "image sets to tell apart from the run's own by the entropy of the "
                      "prediction: CIFAR folders, or files of records (label byte, 3072 bytes)"),
      app->add_option("--corrupt", options->corrupt,
                      "mean error on corrupted images: a folder of CIFAR-10-C or "
                      "CIFAR-100-C (.npy); without one, they are generated from test images"),
      app->add_option("--corrupt-images", command->corrupt_images,
                      "how many test images to generate corrupted ones from")
          ->check(CLI::Range(1, 10000))
          ->capture_default_str(),
      app->add_option("--flatness", command->flatness,
                      "comma-separated: σ of the relative noise on the weights at which the "
                      "rise of the loss is measured"),
      app->add_option("--flatness-split", options->flatness_split, "training or test images")
          ->check(CLI::IsMember({"training", "test"}))
          ->capture_default_str(),
      app->add_option("--flatness-images", options->flatness_images,
                      "how many images to use for it")
          ->check(CLI::Range(1, 1000000))
          ->capture_default_str(),
      app->add_option("--samples", options->samples,
                      "number of draws for mc-dropout, swag and flatness")
          ->check(CLI::Range(1, 100000))
          ->capture_default_str(),
      app->add_option("--seed", options->seed, "seed of all draws except those of mc-dropout")
          ->capture_default_str()};
}

// "0,0.1,0.2"
std::vector<double> ParseSigmas(const std::string& flatness) {
  std::vector<double> sigmas;
  if (flatness.empty()) return sigmas;
  for (const absl::string_view text : absl::StrSplit(flatness, ',')) {
    double sigma = -1;
    if (!absl::SimpleAtod(text, &sigma) || !(sigma >= 0) || std::isinf(sigma)) {
      throw UsageError(
          absl::StrCat("`flatness` must be a comma-separated list of numbers >= 0. "
                       "Received: flatness=",
                       flatness));
    }
    sigmas.push_back(sigma);
  }
  return sigmas;
}

Command Parse(int argc, char** argv) {
  Command command;
  CLI::App app("Evaluates the weights of trained runs.", CommandName("eval"));
  AddRunFlags(&command, &app);
  const std::vector<CLI::Option*> for_images = AddImageFlags(&command, &app);
  ParseCommandLine(WithCorrupt(argc, argv), &app);
  for (const CLI::Option* option : for_images) {
    if (option->count() > 0) command.for_images.push_back(option->get_name());
  }
  if (!command.weights.empty()) command.options.weights = absl::StrSplit(command.weights, ',');
  command.options.flatness = ParseSigmas(command.flatness);
  return command;
}

// Checked before the work rather than after it. An earlier evaluation is replaced; any other folder
// that is not empty is left alone.
void SettleOut(Command* command) {
  if (command->out.empty()) {
    if (command->dirs.size() > 1) {
      throw UsageError(
          absl::StrCat("`out` must be given for several runs: the folder for evaluation.json. "
                       "Received: ",
                       command->dirs.size(), " runs and no --out"));
    }
    command->out = (fs::path(command->dirs[0]) / "evaluation").string();
  }
  std::error_code ignored;
  fs::path there = fs::absolute(command->out);
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, ignored) || access(there.c_str(), W_OK) != 0) {
    throw UsageError("`out` must be a folder that can be created and written to. Received: out=" +
                     command->out);
  }
  if (fs::exists(command->out, ignored) && !fs::is_empty(command->out, ignored) &&
      !fs::exists(fs::path(command->out) / "evaluation.json", ignored)) {
    throw UsageError(
        "`out` must be new, empty, or the folder of an earlier evaluation. Received: out=" +
        command->out);
  }
}

void RequireSplit(const std::string& name, const std::vector<Split>& splits) {
  std::vector<std::string> names;
  for (const Split split : splits) names.push_back(SplitName(split));
  for (const std::string& there : names) {
    if (there == name) return;
  }
  throw UsageError(absl::StrCat("`split` must be one of ", absl::StrJoin(names, ", "),
                                ". Received: split=", name));
}

std::vector<EvaluatedRun> OpenRuns(const Command& command) {
  std::vector<EvaluatedRun> runs;
  DataFiles files;
  for (const std::string& dir : command.dirs) {
    EvaluatedRun one{RunFolderIn(dir), nullptr, nullptr, nullptr};
    one.experiment = ReadExperiment(one.folder);
    const std::string program = one.experiment->info().name;
    if (!runs.empty() && program != runs[0].experiment->info().name) {
      throw UsageError(absl::StrCat(
          "the runs must be of one program. Received: ", runs[0].experiment->info().name, " in ",
          runs[0].folder, " and ", program, " in ", one.folder));
    }
    if (!one.experiment->ClassifiesImages() && !command.for_images.empty()) {
      throw UsageError(absl::StrCat(command.for_images[0],
                                    " is for runs of cifar, whose networks classify images. "
                                    "Received: a run of ",
                                    program, ", ", one.folder));
    }
    one.experiment->recipe().device = command.session.device;
    one.experiment->OpenData(command.data, &files);
    one.task = one.experiment->MakeTask();
    RequireSplit(command.options.split, one.task->splits());
    one.run = RestoreRun(one.folder, command.session.threads, one.task.get());
    runs.push_back(std::move(one));
  }
  return runs;
}

// For one run, its weights and their metrics; for several, their folders as well.
std::string TableText(const std::vector<EvaluatedRun>& runs, const std::string& split,
                      const std::vector<Column>& further, const std::vector<EvaluationRow>& rows) {
  const bool several = runs.size() > 1;
  std::string text;
  for (const EvaluatedRun& run : runs) {
    absl::StrAppend(&text, run.folder, ", step ", run.run->step(), "\n");
  }
  std::vector<Column> columns = runs[0].experiment->info().columns;
  for (Column& column : columns) column.head = absl::StrCat(split, " ", column.head);
  columns.insert(columns.end(), further.begin(), further.end());
  absl::StrAppend(&text, "\n|", several ? " run |" : "", " weights |");
  for (const Column& column : columns) absl::StrAppend(&text, " ", column.head, " |");
  absl::StrAppend(&text, "\n|", several ? "---|" : "", "---|");
  for (size_t i = 0; i < columns.size(); ++i) absl::StrAppend(&text, "---|");
  for (const EvaluationRow& row : rows) {
    absl::StrAppend(&text, "\n|", several ? absl::StrCat(" ", row.run, " |") : "", " ", row.weights,
                    " |");
    for (const Column& column : columns) {
      absl::StrAppend(&text, " ", column.Number(row.metrics), " |");
    }
  }
  return text + "\n";
}

Json EvaluationJson(const std::vector<EvaluatedRun>& runs, const std::string& split,
                    const Evaluation& evaluation) {
  Json json = {{"program", runs[0].experiment->info().name}, {"split", split}};
  for (const EvaluatedRun& run : runs) {
    json["runs"].push_back({{"run", run.folder},
                            {"model", run.experiment->recipe().model},
                            {"seed", run.experiment->recipe().seed},
                            {"step", run.run->step()}});
  }
  for (const EvaluationRow& row : evaluation.rows) {
    Json one = {{"run", row.run}, {"weights", row.weights}};
    one.update(row.details);
    json["rows"].push_back(one);
  }
  json.update(evaluation.details);
  return json;
}

// The folder of corrupted images that the driver generates.
std::string GenerateCorruptedImages(const Command& command) {
  if (!HasDriver()) {
    throw UsageError("`corrupt` must name a folder of corrupted images. Received: corrupt=" +
                     command.options.corrupt);
  }
  Json need = {{"needs", "corruptions"},
               {"run", command.dirs[0]},
               {"data", nullptr},
               {"images", command.corrupt_images}};
  if (!command.data.empty()) need["data"] = command.data;
  return AskDriver(need);
}

int Main(int argc, char** argv) {
  Command command = Parse(argc, argv);
  ChooseDevice(&command.session);
  const std::vector<EvaluatedRun> runs = OpenRuns(command);
  SettleOut(&command);
  if (command.options.corrupt == kGenerated)
    command.options.corrupt = GenerateCorruptedImages(command);
  const std::string& split = command.options.split;
  const Evaluation evaluation = runs[0].experiment->Evaluate(runs, command.options);
  const FinishFirst finish(CommandName("eval") + ": writing its results");
  std::fputs(TableText(runs, split, evaluation.columns, evaluation.rows).c_str(), stdout);
  std::fputs(evaluation.below.c_str(), stdout);
  std::fflush(stdout);
  MakeOutFolder(command.out);
  WriteFile(command.out + "/evaluation.json",
            EvaluationJson(runs, split, evaluation).dump(1) + "\n");
  TellDriver({{"finished", "eval"}, {"folder", command.out}});
  return 0;
}

}  // namespace

int EvalCommand(int argc, char** argv) {
  return RunProgram(CommandName("eval"), [&] { return Main(argc, argv); });
}

}  // namespace late_phase

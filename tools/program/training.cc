#include "tools/program/training.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "tools/program/command_line.h"
#include "tools/program/driver.h"
#include "tools/program/files.h"
#include "tools/program/out_folder.h"

namespace late_phase {

namespace fs = std::filesystem;

std::string TrainCommandName(const std::string& program) { return CommandName("train " + program); }

Training ReadTraining(const std::string& name, int argc, char** argv, bool* serves) {
  Training training;
  training.experiment = MakeExperiment(name);
  const ExperimentInfo& info = training.experiment->info();
  const SettingList settings = training.experiment->Settings();
  training.preset = info.preset;
  CLI::App app(info.description, TrainCommandName(name));
  AddPresetFlag(name, &training.preset, &app);
  app.add_option("--out", training.out, "folder of the run; default: runs/" + name + "-PRESET");
  app.add_flag("--resume", training.resume, "resume the run in that folder, with its settings");
  app.add_flag("--dry-run", training.dry_run,
               "only check settings and data, and print the config.toml that the run would have");
  app.add_option("--data", training.data, info.data_help);
  AddSessionFlags(&training.session, &app);
  app.add_option("--parallel", training.parallel,
                 "how many of several runs to train at a time, dividing the cores among them; "
                 "default: those that start from scratch, as far as cores and memory allow")
      ->check(CLI::Range(1, 1024));
  app.add_option("--only", training.only)->group("");  // of a plan (tools/program/driver.h)
  AddWorkerFlags(&training.worker_flags, &app);
  AddFlags(settings, &app);
  ParseCommandLine(argc, argv, &app);
  training.threads_given = app.count("--threads") > 0;
  if (training.out.empty()) {
    training.out = "runs/" + name + "-" + fs::path(training.preset).stem().string();
  }
  if (const std::optional<WorkerGroup> group = NamedWorkers(training.worker_flags)) {
    *serves = true;
    training.workers = MeetWorkers(*group, static_cast<int>(training.session.threads),
                                   TrainCommandName(name) + (training.resume ? " --resume" : ""));
  }
  const std::string config = training.out + "/config.toml";
  const std::string text = FromFirst(training.workers.get(), [&] {
    CheckRunFolder(training.out, training.resume);
    return training.resume ? ReadFile(config) : std::string();
  });
  if (training.resume) {
    ReadSettingsText(text, config, name, settings);
  } else {
    ReadPreset(name, training.preset, settings);
  }
  ApplyFlags(settings, app);
  return training;
}

std::string ResumeCommand(const Training& training) {
  std::string text = absl::StrCat(TrainCommandName(training.experiment->info().name),
                                  " --resume --out ", training.out);
  if (training.parallel > 0) absl::StrAppend(&text, " --parallel ", training.parallel);
  if (training.threads_given) absl::StrAppend(&text, " --threads ", training.session.threads);
  const WorkerFlags& flags = training.worker_flags;
  if (flags.local_workers > 0) {
    absl::StrAppend(&text, " --local-workers ", flags.local_workers);
  } else if (!flags.workers.empty()) {
    absl::StrAppend(&text, " --workers ", flags.workers);
    if (flags.task >= 0) absl::StrAppend(&text, " --task ", flags.task);
  }
  return text;
}

std::string ResumeText(const Training& training) { return "To resume: " + ResumeCommand(training); }

std::string ConfigFile(Experiment* experiment) {
  return absl::StrCat("# Every value used; `", TrainCommandName(experiment->info().name),
                      " --preset FILE --out DIR` repeats the run.\n",
                      ConfigText(experiment->Settings()));
}

void WriteConfig(const std::string& folder, Experiment* experiment) {
  WriteFile(folder + "/config.toml", ConfigFile(experiment));
}

}  // namespace late_phase

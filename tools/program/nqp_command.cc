// nqp: runs the noisy quadratic problem, prints a table, writes results.json and
// config.toml. The plot is drawn from results.json by python/late_phase_cli/nqp_plot.py.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "models/nqp/simulation.h"
#include "models/nqp/theory.h"
#include "nlohmann/json.hpp"
#include "tools/program/commands.h"
#include "tools/program/driver.h"
#include "tools/program/files.h"
#include "tools/program/interrupt.h"
#include "tools/program/out_folder.h"
#include "tools/program/progress_line.h"
#include "tools/program/settings.h"

namespace late_phase {
namespace {

using Json = nlohmann::ordered_json;

struct Command {
  NqpOptions options;
  std::string preset = "quick", out = "runs/nqp";
  int64_t threads = std::max(1u, std::thread::hardware_concurrency());
};

SettingList NqpSettings(NqpOptions* o) {
  auto rate = [](double x) {
    return x > 0 && x < 2;
  };  // from 2 on, the largest curvature, 1, diverges
  return {
      AscendingIntegers("members", "numbers of members K to run, such as 1,2,5", 1, 1000,
                        &o->members),
      Integer("seeds", "number of runs of each K, with consecutive seeds", 1, 10000, &o->seeds),
      Integer("seed", "the first seed", 0, kMany, &o->seed),
      Integer("n", "dimensions", 1, 1000000, &o->n),
      Integer("batch", "batch size B", 1, 1000000000, &o->batch),
      Positive("target_norm", "norm of the optimum w*", &o->target_norm),
      NotNegative("distance", "distance of the starting point from w*, towards the origin",
                  &o->distance),
      Positive("phi", "initial value of the late-phase weights", &o->phi),
      Real("lr", "learning rate", "a number in (0, 2)", rate, &o->lr),
      Integer("iterations", "updates of the base weights", 1, kMany, &o->iterations),
      Integer("average_last", "number of last updates over which the loss is averaged", 1, kMany,
              &o->average_last),
      Real("drift_lr", "learning rate of the drift experiment", "a number in (0, 2)", rate,
           &o->drift_lr),
      Integer("drift_iterations", "updates of the drift experiment; 0: skip it", 0, kMany,
              &o->drift_iterations),
      Integer("drift_average_last", "number of last updates over which its loss is averaged", 1,
              kMany, &o->drift_average_last),
  };
}

// Exits for --help.
Command Parse(int argc, char** argv, SettingList* settings, NqpOptions* options) {
  Command command;
  *settings = NqpSettings(options);
  // Not part of config.toml, because results do not depend on it.
  const SettingList threads = {
      Integer("threads", "runs at a time; default: one per core", 1, 1024, &command.threads)};
  CLI::App app(
      "The noisy quadratic problem: late-phase weights against K independent models and closed "
      "forms.",
      CommandName("nqp"));
  AddPresetFlag("nqp", &command.preset, &app);
  app.add_option("--out", command.out, "folder for results.json, config.toml, nqp.png")
      ->capture_default_str();
  AddFlags(threads, &app);
  AddFlags(*settings, &app);
  ParseCommandLine(argc, argv, &app);
  ReadPreset("nqp", command.preset, *settings);
  ApplyFlags(*settings, app);
  ApplyFlags(threads, app);
  auto within = [](const char* name, int64_t value, const char* of, int64_t limit) {
    if (value > limit && limit > 0) {
      throw UsageError("`" + std::string(name) + "` must be at most `" + of +
                       "`. Received: " + name + "=" + std::to_string(value) + ", " + of + "=" +
                       std::to_string(limit));
    }
  };
  within("average_last", options->average_last, "iterations", options->iterations);
  within("drift_average_last", options->drift_average_last, "drift_iterations",
         options->drift_iterations);
  command.options = *options;
  return command;
}

// The program's threads: whichever is free takes the next task.
Parallel MakeThreads(int threads) {
  return {threads, [threads](int64_t tasks, const std::function<void(int64_t)>& task) {
            std::atomic<int64_t> next{0};
            auto work = [&] {
              for (int64_t i; (i = next++) < tasks;) task(i);
            };
            std::vector<std::thread> others;
            for (int i = 1; i < threads; ++i) others.emplace_back(work);
            work();
            for (std::thread& other : others) other.join();
          }};
}

// The progress of all runs together; they report from their threads.
class Progress {
 public:
  void Add(double share) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += share;
    if (done_ < 0.01) return;  // too early for an estimate
    char percent[32];
    std::snprintf(percent, sizeof(percent), "nqp: %3.0f %%, ", std::floor(done_ * 100 + 1e-6));
    line_.Show(percent + DurationText(line_.Seconds() * (1 - done_) / done_) + " left", done_);
  }
  // The seconds it took.
  double End() {
    line_.End();
    return line_.Seconds();
  }

 private:
  std::mutex mutex_;
  ProgressLine line_;
  double done_ = 0;
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Standard error of the mean, from the spread of the seeds; null for a single one.
Json SpreadError(const std::vector<double>& values) {
  if (values.size() < 2) return nullptr;
  const double mean = Mean(values), count = static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1) / count);
}

// Least-squares slope of log loss over log K; null for a single K.
Json Slope(const std::vector<int64_t>& members, const std::vector<std::vector<double>>& losses) {
  if (members.size() < 2) return nullptr;
  double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
  const double count = static_cast<double>(members.size());
  for (size_t j = 0; j < members.size(); ++j) {
    mean_x += std::log(static_cast<double>(members[j])) / count;
    mean_y += std::log(Mean(losses[j])) / count;
  }
  for (size_t j = 0; j < members.size(); ++j) {
    const double x = std::log(static_cast<double>(members[j])) - mean_x;
    xy += x * (std::log(Mean(losses[j])) - mean_y);
    xx += x * x;
  }
  return xy / xx;
}

Json MakeResults(const Command& command, const NqpResults& results, double seconds) {
  const NqpOptions& o = command.options;
  const NqpProblem problem(o.n, o.batch, o.target_norm);
  const double phi = SettledPhi(problem, o.phi, o.distance);
  Json rows = Json::array(), drift = Json::array();
  for (size_t j = 0; j < o.members.size(); ++j) {
    const int64_t K = o.members[j];
    const double closed = FullEnsembleLoss(problem, o.lr, K);
    const double error = FullEnsembleStandardError(problem, o.lr, K, o.average_last, o.seeds);
    const double full = Mean(results.full_ensemble[j]);
    rows.push_back({{"members", K},
                    {"late_phase", Mean(results.late_phase[j])},
                    {"late_phase_error", SpreadError(results.late_phase[j])},
                    {"late_phase_theory", LatePhaseLoss(problem, o.lr, phi, K)},
                    {"full_ensemble", full},
                    {"closed_form", closed},
                    {"closed_form_error", error},
                    {"deviation_in_errors", (full - closed) / error},
                    {"late_phase_seeds", results.late_phase[j]},
                    {"full_ensemble_seeds", results.full_ensemble[j]}});
    if (o.drift_iterations == 0) continue;
    drift.push_back({{"members", K},
                     {"late_phase", Mean(results.drift[j])},
                     {"late_phase_error", SpreadError(results.drift[j])},
                     {"long_run_theory", LatePhaseLongRunLoss(problem, o.drift_lr, K)},
                     {"late_phase_seeds", results.drift[j]}});
  }
  Json all = {{"program", "nqp"},
              {"preset", command.preset},
              {"lr", o.lr},
              {"iterations", o.iterations},
              {"average_last", o.average_last},
              {"seeds", o.seeds},
              {"rows", rows},
              {"late_phase_slope", Slope(o.members, results.late_phase)},
              {"full_ensemble_slope", Slope(o.members, results.full_ensemble)},
              {"drift_lr", o.drift_lr},
              {"drift_iterations", o.drift_iterations},
              {"drift", drift},
              {"drift_slope", o.drift_iterations ? Slope(o.members, results.drift) : Json()},
              {"threads", command.threads},
              {"seconds", std::round(seconds * 10) / 10}};
  return all;
}

std::string Number(const Json& value, const char* format) {
  if (value.is_null()) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), format, value.get<double>());
  return text;
}

void PrintTable(const Json& all) {
  std::printf("Steady-state loss, lr %s, %s updates\n\n", RealText(all["lr"]).c_str(),
              all["iterations"].dump().c_str());
  std::printf(
      "| K | late-phase | theory | K models | closed form | deviation, standard errors |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Json& row : all["rows"]) {
    std::printf(
        "| %ld | %s ± %s | %s | %s | %s ± %s | %s |\n", row["members"].get<long>(),
        Number(row["late_phase"], "%.3e").c_str(), Number(row["late_phase_error"], "%.1e").c_str(),
        Number(row["late_phase_theory"], "%.3e").c_str(),
        Number(row["full_ensemble"], "%.3e").c_str(), Number(row["closed_form"], "%.3e").c_str(),
        Number(row["closed_form_error"], "%.1e").c_str(),
        Number(row["deviation_in_errors"], "%+.1f").c_str());
  }
  std::printf("\nslope of log loss over log K: late-phase %s, K models %s (1/K: -1)\n",
              Number(all["late_phase_slope"], "%.3f").c_str(),
              Number(all["full_ensemble_slope"], "%.3f").c_str());
  if (all["drift"].empty()) return;
  std::printf(
      "\nIn the long run, lr %s, %s updates\n\n| K | late-phase | theory |\n|---|---|---|\n",
      RealText(all["drift_lr"]).c_str(), all["drift_iterations"].dump().c_str());
  for (const Json& row : all["drift"]) {
    std::printf("| %ld | %s ± %s | %s |\n", row["members"].get<long>(),
                Number(row["late_phase"], "%.3e").c_str(),
                Number(row["late_phase_error"], "%.1e").c_str(),
                Number(row["long_run_theory"], "%.3e").c_str());
  }
  std::printf("\nslope %s\n", Number(all["drift_slope"], "%.3f").c_str());
}

int Main(int argc, char** argv) {
  NqpOptions options;
  SettingList settings;
  const Command command = Parse(argc, argv, &settings, &options);
  MakeOutFolder(command.out);
  Progress progress;
  const NqpResults results = RunNqp(command.options, MakeThreads(static_cast<int>(command.threads)),
                                    [&](double share) { progress.Add(share); });
  const Json all = MakeResults(command, results, progress.End());
  const FinishFirst finish(CommandName("nqp") + ": writing its results");
  WriteFile(command.out + "/config.toml", "# Every value of this run; `" + CommandName("nqp") +
                                              " --preset FILE` repeats it.\n" +
                                              ConfigText(settings));
  WriteFile(command.out + "/results.json", all.dump(1) + "\n");
  PrintTable(all);
  std::printf("\n%.1f s on %ld threads; %s/results.json\n", all["seconds"].get<double>(),
              static_cast<long>(command.threads), command.out.c_str());
  std::fflush(stdout);
  TellDriver({{"finished", "nqp"}, {"folder", command.out}});
  return 0;
}

}  // namespace

int NqpCommand(int argc, char** argv) {
  return RunProgram(CommandName("nqp"), [&] { return Main(argc, argv); });
}

}  // namespace late_phase

// tools/latephase nqp: runs the noisy quadratic problem, prints a table, writes results.json and
// config.toml. The figure is drawn from results.json by tools/nqp_plot.py.
#include "models/nqp.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "models/nqp_theory.h"
#include "nlohmann/json.hpp"
#include "toml++/toml.h"

namespace late_phase {
namespace {

using Json = nlohmann::ordered_json;

// A mistake of the user's: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One value of a run. It comes as text, from a flag or a preset, and leaves as text to config.toml.
struct Setting {
  std::string name, help;
  std::string rule;                             // what its value must be, for messages
  std::function<bool(const std::string&)> set;  // false: breaks the rule
  std::function<std::string()> get;             // as TOML
};

template <typename T>
bool ParseNumber(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string RealText(double value) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  // A TOML float has a point or an exponent.
  return std::string(text).find_first_of(".e") == std::string::npos ? std::string(text) + ".0"
                                                                    : text;
}

Setting Integer(std::string name, std::string help, int64_t least, int64_t most, int64_t* value) {
  return {std::move(name), std::move(help),
          "an integer in [" + std::to_string(least) + ", " + std::to_string(most) + "]",
          [=](const std::string& text) {
            return ParseNumber(text, value) && *value >= least && *value <= most;
          },
          [=] { return std::to_string(*value); }};
}

Setting Real(std::string name, std::string help, std::string rule,
             std::function<bool(double)> holds, double* value) {
  return {std::move(name), std::move(help), std::move(rule),
          [=](const std::string& text) {
            return ParseNumber(text, value) && std::isfinite(*value) && holds(*value);
          },
          [=] { return RealText(*value); }};
}

bool ParseMembers(const std::string& text, std::vector<int64_t>* members) {
  members->clear();
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t K;
    if (!ParseNumber(part, &K) || K < 1 || K > 1000) return false;
    if (!members->empty() && K <= members->back()) return false;
    members->push_back(K);
  }
  return !members->empty() && text.back() != ',';
}

std::string MembersText(const std::vector<int64_t>& members) {
  std::string text;
  for (int64_t K : members) text += (text.empty() ? "" : ", ") + std::to_string(K);
  return "[" + text + "]";
}

struct Run {
  NqpOptions options;
  std::string preset = "quick", out = "runs/nqp";
  int64_t threads = std::max(1u, std::thread::hardware_concurrency());
};

std::vector<Setting> Settings(NqpOptions* o) {
  constexpr int64_t kMany = 1000000000000;  // updates: a century
  auto positive = [](double x) { return x > 0; };
  auto rate = [](double x) {
    return x > 0 && x < 2;
  };  // 2 is where the largest curvature, 1, diverges
  return {
      {"members", "numbers of members K, such as 1,2,5",
       "ascending integers in [1, 1000], with commas between",
       [o](const std::string& text) { return ParseMembers(text, &o->members); },
       [o] { return MembersText(o->members); }},
      Integer("seeds", "runs of each K, with consecutive seeds", 1, 10000, &o->seeds),
      Integer("seed", "the first seed", 0, kMany, &o->seed),
      Integer("n", "dimensions", 1, 1000000, &o->n),
      Integer("batch", "batch size B", 1, 1000000000, &o->batch),
      Real("target_norm", "norm of the optimum w*", "a number > 0", positive, &o->target_norm),
      Real(
          "distance", "distance of the start from w*, towards the origin", "a number >= 0",
          [](double x) { return x >= 0; }, &o->distance),
      Real("phi", "start of the late-phase weights", "a number > 0", positive, &o->phi),
      Real("lr", "learning rate", "a number in (0, 2)", rate, &o->lr),
      Integer("iterations", "updates of the base weights", 1, kMany, &o->iterations),
      Integer("average_last", "updates over which the loss is averaged", 1, kMany,
              &o->average_last),
      Real("drift_lr", "learning rate of the drift experiment", "a number in (0, 2)", rate,
           &o->drift_lr),
      Integer("drift_iterations", "updates of the drift experiment; 0 leaves it out", 0, kMany,
              &o->drift_iterations),
      Integer("drift_average_last", "updates over which its loss is averaged", 1, kMany,
              &o->drift_average_last),
  };
}

void Assign(const Setting& setting, const std::string& text, const std::string& from) {
  if (setting.set(text)) return;
  throw UsageError("`" + setting.name + "` must be " + setting.rule +
                   ". Received: " + setting.name + "=" + text + from);
}

std::string TomlText(const toml::node& node) {
  if (const auto* value = node.as_integer()) return std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) return RealText(value->get());
  if (const auto* value = node.as_string()) return value->get();
  std::string text;
  if (const auto* values = node.as_array()) {
    for (const toml::node& value : *values) text += (text.empty() ? "" : ",") + TomlText(value);
  }
  return text;
}

// Every value of the file; names that are no setting are refused.
void ReadPreset(const std::string& name, const std::vector<Setting>& settings) {
  const char* folder = std::getenv("LATE_PHASE_PRESETS");
  const bool is_path = name.size() > 5 && name.substr(name.size() - 5) == ".toml";
  const std::string path =
      is_path ? name : std::string(folder ? folder : "models/presets") + "/nqp-" + name + ".toml";
  if (!std::filesystem::exists(path)) {
    throw UsageError("`preset` must be quick, paper, or a .toml file. Received: preset=" + name);
  }
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    throw UsageError("`preset` must be a TOML file: line " +
                     std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()) + ". Received: preset=" + path);
  }
  for (const auto& [key, node] : table) {
    const std::string key_name(key.str());
    const auto setting = std::find_if(settings.begin(), settings.end(),
                                      [&](const Setting& s) { return s.name == key_name; });
    if (setting == settings.end()) {
      throw UsageError("a preset must hold settings of nqp only. Received: " + key_name + " in " +
                       path);
    }
    Assign(*setting, TomlText(node), " in " + path);
  }
}

std::string FlagOf(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// Exits for --help.
Run ParseRun(int argc, char** argv, std::vector<Setting>* settings, NqpOptions* options) {
  Run run;
  std::string threads = std::to_string(run.threads);
  *settings = Settings(options);
  CLI::App app(
      "The noisy quadratic problem: late-phase weights against K independent models and closed "
      "forms.",
      "tools/latephase nqp");
  app.add_option("--preset", run.preset,
                 "quick, paper, or a .toml file; its values are the defaults")
      ->capture_default_str();
  app.add_option("--out", run.out, "folder for results.json, config.toml, nqp.png")
      ->capture_default_str();
  app.add_option("--threads", threads, "runs at a time; results do not depend on it")
      ->capture_default_str();
  std::map<std::string, std::string> given;
  for (const Setting& setting : *settings) {
    app.add_option(FlagOf(setting.name), given[setting.name], setting.help + "; " + setting.rule);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "\nRun tools/latephase nqp --help for the flags.");
  }
  ReadPreset(run.preset, *settings);
  for (const Setting& setting : *settings) {
    if (app.count(FlagOf(setting.name)) > 0) Assign(setting, given[setting.name], "");
  }
  Assign(Integer("threads", "", 1, 1024, &run.threads), threads, "");
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
  run.options = *options;
  return run;
}

// The threads of the program: tasks are taken in order by whoever is free.
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

// A line on standard error: rewritten in place on a terminal, a new one every tenth otherwise.
class Progress {
 public:
  void Add(double share) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += share;
    const int percent = static_cast<int>(done_ * 100 + 1e-6);
    if (percent < shown_ + (terminal_ ? 1 : 10)) return;
    shown_ = percent;
    const double left = Seconds() * (1 - done_) / done_;
    std::fprintf(stderr, "%snqp: %3d %%, %.0f s left%s", terminal_ ? "\r" : "", percent,
                 std::max(0.0, left), terminal_ ? "   " : "\n");
  }
  void End() const {
    if (terminal_) std::fputs("\n", stderr);
  }
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::mutex mutex_;
  const bool terminal_ = isatty(2);
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double done_ = 0;
  int shown_ = 0;
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

Json MakeResults(const Run& run, const NqpResults& results, double seconds) {
  const NqpOptions& o = run.options;
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
              {"preset", run.preset},
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
              {"threads", run.threads},
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

// Written aside, then renamed: a file is there whole or not at all.
void WriteWhole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path aside = path.string() + ".part" + std::to_string(getpid());
  std::ofstream file(aside);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(aside, path, error);
  if (!file || error) {
    std::filesystem::remove(aside, error);
    throw std::runtime_error("cannot write " + path.string());
  }
}

// Before hours of work rather than after them.
void MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder) || access(folder.c_str(), W_OK) != 0) {
    throw UsageError("`out` must be a folder that can be made and written to. Received: out=" +
                     folder);
  }
}

int Main(int argc, char** argv) {
  NqpOptions options;
  std::vector<Setting> settings;
  const Run run = ParseRun(argc, argv, &settings, &options);
  MakeFolder(run.out);
  Progress progress;
  const NqpResults results = RunNqp(run.options, MakeThreads(static_cast<int>(run.threads)),
                                    [&](double share) { progress.Add(share); });
  progress.End();
  const Json all = MakeResults(run, results, progress.Seconds());

  std::string config =
      "# Every value of this run; `tools/latephase nqp --preset FILE` repeats it.\n";
  for (const Setting& setting : settings) config += setting.name + " = " + setting.get() + "\n";
  WriteWhole(std::filesystem::path(run.out) / "config.toml", config);
  WriteWhole(std::filesystem::path(run.out) / "results.json", all.dump(1) + "\n");
  PrintTable(all);
  std::printf("\n%.1f s on %ld threads; %s/results.json\n", all["seconds"].get<double>(),
              static_cast<long>(run.threads), run.out.c_str());
  return 0;
}

}  // namespace
}  // namespace late_phase

int main(int argc, char** argv) {
  try {
    return late_phase::Main(argc, argv);
  } catch (const late_phase::UsageError& error) {
    std::fprintf(stderr, "tools/latephase nqp: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tools/latephase nqp: %s\n", error.what());
    return 1;
  }
}

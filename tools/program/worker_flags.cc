#include "tools/program/worker_flags.h"

#include <cstdlib>
#include <sstream>

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"

namespace late_phase {
namespace {

using Json = nlohmann::json;

constexpr char kTfConfig[] = "TF_CONFIG";

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  return parts;
}

// {"cluster": {"worker": [HOST:PORT]}, "task": {"type": "worker", "index": I}}, as clusters set it
// for TensorFlow. A "chief" is the worker before the first one.
WorkerGroup ReadTfConfig(const std::string& text) {
  const std::string rule =
      "the environment's TF_CONFIG must hold a cluster of workers, and a task that is one of them";
  try {
    const Json config = Json::parse(text);
    const Json& cluster = config.at("cluster");
    WorkerGroup group;
    auto add = [&](const char* job) {
      if (!cluster.contains(job)) return;
      for (const Json& address : cluster[job]) group.addresses.push_back(address);
    };
    add("chief");
    const auto chiefs = static_cast<int64_t>(group.addresses.size());
    add("worker");
    const Json& task = config.at("task");
    const Json& index = task.at("index");
    const bool worker = task.at("type") == "worker";
    if (!worker && task["type"] != "chief") {
      throw UsageError(rule + ". Received: the task " + task.dump());
    }
    const auto workers = static_cast<int64_t>(group.addresses.size()) - chiefs;
    if (!index.is_number_integer() || index < 0 || index >= (worker ? workers : chiefs)) {
      throw UsageError(rule + ". Received: the task " + task.dump());
    }
    group.task = index.get<int64_t>() + (worker ? chiefs : 0);
    return group;
  } catch (const Json::exception&) {
    throw UsageError(rule + ". Received: TF_CONFIG=" + text);
  }
}

}  // namespace

void AddWorkerFlags(WorkerFlags* flags, CLI::App* app) {
  app->add_option(
      "--workers", flags->workers,
      "train together with others: HOST:PORT of each worker, this one included, "
      "separated by commas and in the same order everywhere; or TF_CONFIG, to read them "
      "from that environment variable");
  app->add_option("--task", flags->task, "which of the workers this is, an integer from 0")
      ->check(CLI::Range(0, 1000000));
  app->add_option("--worker-timeout", flags->timeout,
                  "seconds without an answer after which other workers count as lost, a number")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app->add_option("--local-workers", flags->local_workers,
                  "a number of workers to start on this machine, instead of naming them")
      ->check(CLI::Range(2, 1024));
}

std::optional<WorkerGroup> NamedWorkers(const WorkerFlags& flags) {
  if (flags.workers.empty()) {
    if (flags.task < 0) return std::nullopt;
    throw UsageError("`task` must be given together with `workers`. Received: task=" +
                     std::to_string(flags.task));
  }
  WorkerGroup group;
  if (flags.workers == kTfConfig) {
    const char* config = std::getenv(kTfConfig);
    group = ReadTfConfig(config == nullptr ? "" : config);
    if (flags.task >= 0) group.task = flags.task;
  } else {
    group.addresses = Split(flags.workers);
    group.task = flags.task;
  }
  group.patience = flags.timeout;
  if (const std::string complaint = group.Check(); !complaint.empty()) throw UsageError(complaint);
  return group;
}

}  // namespace late_phase

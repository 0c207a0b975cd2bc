#include "tools/program/train_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/training/memory.h"
#include "tools/program/train_run.h"

namespace late_phase {
namespace {

using Json = nlohmann::ordered_json;

// The total bytes of the `count` largest runs.
double LargestBytes(const std::vector<std::unique_ptr<Task>>& tasks, int64_t count) {
  std::vector<double> bytes;
  for (const std::unique_ptr<Task>& task : tasks) bytes.push_back(task->plan().bytes);
  std::sort(bytes.rbegin(), bytes.rend());
  return std::accumulate(bytes.begin(), bytes.begin() + count, 0.0);
}

}  // namespace

// By default those that start from scratch, at most one per core: small networks gain little from a
// second thread, so two runs side by side finish sooner than two in a row. Runs that are forked
// from another one do not count, since they would wait for it while their share of the cores is
// idle; they follow. This depends on the whole plan and not on what is left of it, so that a
// resumed run has as many threads as before.
int64_t RunsAtATime(const Training& training, const std::vector<PlannedRun>& runs,
                    const std::vector<std::unique_ptr<Task>>& tasks) {
  const int64_t all = runs.size();
  if (training.parallel > 0) {
    const int64_t parallel = std::min(training.parallel, all);
    Require(CheckFitsMemory(LargestBytes(tasks, parallel), absl::StrCat("parallel=", parallel)));
    return parallel;
  }
  if (!absl::StartsWith(training.session.device, "CPU")) return 1;
  const int64_t from_scratch =
      absl::c_count_if(runs, [](const PlannedRun& run) { return run.fork_from.empty(); });
  int64_t parallel = std::min<int64_t>(from_scratch, SessionFlags().threads);
  while (parallel > 1 && !CheckFitsMemory(LargestBytes(tasks, parallel), "").ok()) --parallel;
  return parallel;
}

Json PlanJson(const Training& training, const std::vector<PlannedRun>& runs,
              const std::vector<std::unique_ptr<Task>>& tasks, int64_t parallel) {
  const int64_t cores = SessionFlags().threads;
  const int64_t threads =
      training.threads_given ? training.session.threads : std::max<int64_t>(1, cores / parallel);
  Json common = {"train",
                 training.experiment->info().name,
                 "--resume",
                 "--out",
                 training.out,
                 "--threads",
                 std::to_string(threads),
                 "--device",
                 training.session.device};
  if (!training.data.empty()) common.insert(common.end(), {"--data", training.data});
  Json plan = {{"folder", training.out},
               {"parallel", parallel},
               {"threads", threads},
               {"runs", Json::array()}};
  std::set<std::string> finished;
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& run = runs[i];
    if (!FinishedResults(run, *tasks[i]).is_null()) finished.insert(run.folder);
    const bool ready = run.fork_from.empty() || finished.count(run.fork_from) > 0 || CanFork(run) ||
                       HasCheckpoint(run);
    Json arguments = common;
    arguments.insert(arguments.end(), {"--only", run.folder.substr(training.out.size() + 1)});
    plan["runs"].push_back({{"name", RunName(run, training)},
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
  plan["resume"] = ResumeCommand(training);
  return {{"plan", plan}};
}

Json LocalWorkersJson(const Training& training) {
  const int64_t workers = training.worker_flags.local_workers;
  const int64_t threads = training.threads_given
                              ? training.session.threads
                              : std::max<int64_t>(1, SessionFlags().threads / workers);
  return {{"local_workers", {{"count", workers}, {"folder", training.out}, {"threads", threads}}}};
}

}  // namespace late_phase

#include "tools/program/worker_start.h"

#include <cstdio>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tensorflow/c/c_api.h"
#include "tools/program/bind_address.h"
#include "tools/program/command_line.h"
#include "tools/program/session.h"
#include "tools/program/version_text.h"

namespace late_phase {
namespace {

using Json = nlohmann::json;

std::string WorkerName(const WorkerGroup& group, size_t task) {
  return absl::StrCat("task ", task, " (", group.addresses[task], ")");
}

}  // namespace

std::unique_ptr<Workers> MeetWorkers(const WorkerGroup& group, int threads,
                                     const std::string& command) {
  const std::string& address = group.addresses[group.task];
  const size_t colon = address.rfind(':');
  const std::string port = address.substr(colon + 1), bound = BindOnlyTo(address.substr(0, colon));
  std::unique_ptr<Workers> workers = Require(Workers::Open(group, threads));
  std::fprintf(stderr,
               "%s: task %ld of %zu listens on port %s of %s, to anybody who can reach it: "
               "TensorFlow's server knows no authentication\n",
               command.c_str(), long{group.task}, group.addresses.size(), port.c_str(),
               bound.empty() ? "every interface" : bound.c_str());
  RequireSame({{"version", kVersion}, {"tensorflow", TF_Version()}, {"command", command}},
              workers.get());
  return workers;
}

void RequireSame(const Facts& facts, Workers* workers) {
  const absl::StatusOr<std::vector<std::string>> gathered = workers->Gather(Json(facts).dump());
  if (absl::IsAborted(gathered.status())) {
    throw std::runtime_error(absl::StrCat("the other workers did not come within ",
                                          workers->group().patience,
                                          " s, or have ended: ", gathered.status().message()));
  }
  const std::vector<std::string> of_all = Require(gathered);
  const auto first = Json::parse(of_all[0]).get<Facts>();
  for (size_t task = 1; task < of_all.size(); ++task) {
    const auto others = Json::parse(of_all[task]).get<Facts>();
    for (size_t i = 0; i < first.size() && i < others.size(); ++i) {
      if (others[i] == first[i]) continue;
      workers->Part();
      throw UsageError(absl::StrCat("`", first[i].first, "` must be ", first[i].second,
                                    " for every worker, as for ", WorkerName(workers->group(), 0),
                                    ". Received: ", others[i].first, "=", others[i].second,
                                    " from ", WorkerName(workers->group(), task)));
    }
  }
}

std::string FromFirst(Workers* workers, const std::function<std::string()>& find) {
  if (workers == nullptr) return find();
  std::string text;
  absl::Status status;
  if (workers->first()) {
    try {
      text = find();
    } catch (const UsageError& error) {
      status = absl::InvalidArgumentError(error.what());
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
  }
  const absl::Status of_first = workers->OfFirst(status);
  if (!of_first.ok()) workers->Part();
  Require(of_first);
  return Require(workers->Broadcast(text));
}

}  // namespace late_phase

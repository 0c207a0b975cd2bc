// The workers that train together: TF_CONFIG, and the list of --workers (after 'l').
#include "tests/campaign/bytes/parser.h"
#include "tools/program/worker_flags.h"

namespace late_phase {

std::vector<std::string> GoodInputs() {
  return {"l127.0.0.1:2222,host-b.example:2223,[::1]:80",
          R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})",
          R"({"cluster": {"chief": ["c:1"], "worker": ["a:1"]}, "task":
              {"type": "chief", "index": 0}, "environment": "cloud"})"};
}

void Parse(const std::string& bytes) {
  const bool list = !bytes.empty() && bytes[0] == 'l';
  const std::string text = bytes.c_str();  // neither a flag nor a variable goes beyond a zero byte
  WorkerFlags flags;
  flags.workers = list ? text.substr(1) : "TF_CONFIG";
  if (list) flags.task = 0;
  setenv("TF_CONFIG", text.c_str(), 1);
  try {
    const std::optional<WorkerGroup> group = NamedWorkers(flags);
    // --task without --workers is refused, so only an empty list of no worker is none.
    Must(group.has_value(), "workers that are named are found");
    Must(group->Check().empty(), "an accepted group is a good one");
    Must(group->task >= 0 && group->task < group->share().workers, "the task is one of them");
    ++outcomes.accepted;
  } catch (const UsageError& error) {
    Must(std::string(error.what()).find("Received:") != std::string::npos,
         "the message says what was given");
    ++outcomes.refused;
  }
}

}  // namespace late_phase

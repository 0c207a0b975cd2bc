// The flags that say which processes train together. Without them there is one, which listens to
// nobody.
#ifndef LATE_PHASE_TOOLS_PROGRAM_WORKER_FLAGS_H_
#define LATE_PHASE_TOOLS_PROGRAM_WORKER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "optimizers/worker_group.h"
#include "tools/program/command_line.h"

namespace late_phase {

struct WorkerFlags {
  std::string workers;        // HOST:PORT,HOST:PORT or TF_CONFIG; empty: this process alone
  int64_t task = -1;          // -1: not given
  int64_t local_workers = 0;  // to be started by the driver; 0: none
  double timeout = WorkerGroup().patience;
};
void AddWorkerFlags(WorkerFlags* flags, CLI::App* app);

// The workers that the flags name, and which of them this is; none if they name none. Throws
// UsageError.
std::optional<WorkerGroup> NamedWorkers(const WorkerFlags& flags);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_WORKER_FLAGS_H_

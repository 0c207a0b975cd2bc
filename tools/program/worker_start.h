// How several workers begin to train together: they find each other, and make sure that they are
// about to do the same.
#ifndef LATE_PHASE_TOOLS_PROGRAM_WORKER_START_H_
#define LATE_PHASE_TOOLS_PROGRAM_WORKER_START_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optimizers/workers.h"

namespace late_phase {

// What must be the same on every worker: names and values, in an order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Opens this worker's server, says so, and waits for the others. Throws UsageError if one of them
// runs another version of the program or of TensorFlow, or another command.
std::unique_ptr<Workers> MeetWorkers(const WorkerGroup& group, int threads,
                                     const std::string& command);

// Throws UsageError, on every worker, if one of them has another value than the first one.
void RequireSame(const Facts& facts, Workers* workers);

// What `find` returns on the first worker, on every worker; what it throws there, UsageError or
// any other exception, all throw. Without workers, simply what it returns.
std::string FromFirst(Workers* workers, const std::function<std::string()>& find);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_WORKER_START_H_

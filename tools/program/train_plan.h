// What the driver is told about a training that it starts as several processes: independent runs,
// or the workers of one run.
#ifndef LATE_PHASE_TOOLS_PROGRAM_TRAIN_PLAN_H_
#define LATE_PHASE_TOOLS_PROGRAM_TRAIN_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/program/runs.h"
#include "tools/program/training.h"

namespace late_phase {

// How many of the runs to train at a time.
int64_t RunsAtATime(const Training& training, const std::vector<PlannedRun>& runs,
                    const std::vector<std::unique_ptr<Task>>& tasks);

// The messages "plan" and "local_workers" of tools/program/driver.h.
nlohmann::ordered_json PlanJson(const Training& training, const std::vector<PlannedRun>& runs,
                                const std::vector<std::unique_ptr<Task>>& tasks, int64_t parallel);
nlohmann::ordered_json LocalWorkersJson(const Training& training);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_TRAIN_PLAN_H_

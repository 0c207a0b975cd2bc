// One run of a training: checked, trained or resumed, evaluated.
#ifndef LATE_PHASE_TOOLS_PROGRAM_TRAIN_RUN_H_
#define LATE_PHASE_TOOLS_PROGRAM_TRAIN_RUN_H_

#include <memory>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/program/runs.h"
#include "tools/program/training.h"

namespace late_phase {

// The run's task. Problems with any of the runs are reported before hours are spent on the first,
// and before anything is written.
std::unique_ptr<Task> CheckedTask(const PlannedRun& planned, const SessionFlags& session);

// "rank1", or with several seeds "rank1, seed 3"
std::string RunName(const PlannedRun& planned, const Training& training);

// Whether it can begin without waiting for the run that it is forked from: with the state that it
// is to be forked from, or with one of its own.
bool CanFork(const PlannedRun& planned);
bool HasCheckpoint(const PlannedRun& planned);

// The results of a finished run; null if it has not finished, or is now to be trained for longer.
nlohmann::ordered_json FinishedResults(const PlannedRun& planned, const Task& task);

// Trains one model, or resumes it, and returns its results. Ends the program if it is interrupted.
nlohmann::ordered_json TrainRun(const PlannedRun& planned, const Training& training,
                                std::unique_ptr<Task> task);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_TRAIN_RUN_H_

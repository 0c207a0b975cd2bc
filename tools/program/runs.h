// The runs that an experiment's settings stand for, each in its folder; and how they are found and
// restored there.
#ifndef LATE_PHASE_TOOLS_PROGRAM_RUNS_H_
#define LATE_PHASE_TOOLS_PROGRAM_RUNS_H_

#include <memory>
#include <string>
#include <vector>

#include "tools/program/experiment.h"

namespace late_phase {

struct PlannedRun {
  std::unique_ptr<Experiment> experiment;  // of one model and one seed
  std::string folder;
  std::string fork_from;   // folder of the run that is the same until T0; empty: none
  bool keep_fork = false;  // another run is forked from this one
};
std::vector<PlannedRun> PlanRuns(const Experiment& experiment, const std::string& out);

// The name of the program in the folder's config.toml, its settings as they are there. Throw
// UsageError if it has none.
std::string ReadProgram(const std::string& folder);
std::unique_ptr<Experiment> ReadExperiment(const std::string& folder);

// The folder of one run inside RUN_DIR: RUN_DIR itself, or, of several, the last model's of the
// first seed. Throws UsageError if there is none.
std::string RunFolderIn(const std::string& dir);

// The checkpoints of the run that the experiment's `pretrained` names, of which RunFolderIn
// chooses. Throws UsageError if there is none, or if it is of another network or data.
std::string PretrainedCheckpoints(Experiment* experiment);

// At its newest checkpoint, to be evaluated.
std::unique_ptr<Run> RestoreRun(const std::string& folder, int64_t threads, Task* task);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_RUNS_H_

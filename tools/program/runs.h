// The runs that an experiment's settings stand for, each in its folder, and how they are found and
// restored.
#ifndef LATE_PHASE_TOOLS_PROGRAM_RUNS_H_
#define LATE_PHASE_TOOLS_PROGRAM_RUNS_H_

#include <memory>
#include <string>
#include <vector>

#include "tools/program/experiment.h"

namespace late_phase {

struct PlannedRun {
  std::unique_ptr<Experiment> experiment;  // for one model and one seed
  std::string folder;
  std::string fork_from;   // folder of the run that is identical until T0; empty: none
  bool keep_fork = false;  // another run will be forked from this one
};
std::vector<PlannedRun> PlanRuns(const Experiment& experiment, const std::string& out);

// The program's name in the folder's config.toml, and the settings there. Both throw UsageError if
// the folder has none.
std::string ReadProgram(const std::string& folder);
std::unique_ptr<Experiment> ReadExperiment(const std::string& folder);

// The folder of one run inside RUN_DIR: RUN_DIR itself or, if it has several, that of the first
// seed's last model. Throws UsageError if there is none.
std::string RunFolderIn(const std::string& dir);

// The checkpoints of the run that the experiment's `pretrained` names, chosen as by RunFolderIn.
// Throws UsageError if there is none, or if its network or data differ.
std::string PretrainedCheckpoints(Experiment* experiment);

// A run at its newest checkpoint, to be evaluated.
std::unique_ptr<Run> RestoreRun(const std::string& folder, int64_t threads, Task* task);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_RUNS_H_

// What a `train` command is to do, as its flags and the settings of its folder or preset say.
#ifndef LATE_PHASE_TOOLS_PROGRAM_TRAINING_H_
#define LATE_PHASE_TOOLS_PROGRAM_TRAINING_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tools/program/experiment.h"
#include "tools/program/session.h"
#include "tools/program/worker_flags.h"
#include "tools/program/worker_start.h"

namespace late_phase {

// "tools/latephase train PROGRAM"
std::string TrainCommandName(const std::string& program);

struct Training {
  std::unique_ptr<Experiment> experiment;
  SessionFlags session;
  std::string data, preset, out;
  std::string only;  // the folder, below `out`, of one of several runs; empty: all of them
  bool resume = false, dry_run = false;
  int64_t parallel = 0;        // runs at a time; 0: not given
  bool threads_given = false;  // otherwise the cores are divided among concurrent runs
  WorkerFlags worker_flags;
  std::unique_ptr<Workers> workers;  // null: this process trains alone

  // Whether this process reads and writes the run's files.
  bool first() const { return workers == nullptr || workers->first(); }
};

// Reads the command line and the settings, and refuses a folder that cannot be used. With several
// workers, meets the others. Throws UsageError for what the user can fix. `serves` is set if this
// process has a server, which runs to its end.
Training ReadTraining(const std::string& program, int argc, char** argv, bool* serves);

// The command that resumes this one, with the same number of threads; and the line that says so
// when it is interrupted.
std::string ResumeCommand(const Training& training);
std::string ResumeText(const Training& training);

// The config.toml of an experiment.
std::string ConfigFile(Experiment* experiment);
void WriteConfig(const std::string& folder, Experiment* experiment);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_TRAINING_H_

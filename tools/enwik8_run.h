// What the enwik8 commands share: the settings of a run, its folder, its text, its task.
#ifndef LATE_PHASE_TOOLS_ENWIK8_RUN_H_
#define LATE_PHASE_TOOLS_ENWIK8_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/enwik8.h"
#include "tools/settings.h"

namespace late_phase {

constexpr char kEnwik8[] = "enwik8";

// Everything that config.toml holds. `model` "all" and `seeds` > 1 stand for several runs.
struct Enwik8Config {
  std::string program = kEnwik8;
  Enwik8Options options;
  int64_t seeds = 1;
  int64_t log_every = 100, checkpoint_every = 500;  // minibatches
  double evaluate_every = 1;                        // epochs
};
SettingList Enwik8Settings(Enwik8Config* config);

// Flags that say how a command works, not what it computes.
struct Enwik8Flags {
  std::string data;    // the raw text
  std::string device;  // "CPU:0", "GPU:0"; empty: a GPU if there is one
  int64_t threads;
  Enwik8Flags();
};
void AddDataFlag(Enwik8Flags* flags, CLI::App* app);
void AddDeviceFlags(Enwik8Flags* flags, CLI::App* app);
// Settles `device`; UsageError if there is no such device.
void ChooseDevice(Enwik8Flags* flags);

// Throws std::runtime_error with the status's text if it is not OK; UsageError if the user can mend
// it.
void Require(const absl::Status& status);

ByteText OpenText(const Enwik8Flags& flags, const TextLimits& limits);

// The folder of one run inside RUN_DIR: RUN_DIR itself, or, of several models, the late-phase one's
// (of the first seed). Throws UsageError if there is none.
std::string RunFolderIn(const std::string& dir);

// A finished or unfinished run, restored from its folder to be evaluated.
struct RestoredRun {
  Enwik8Config config;
  ByteText text;
  std::unique_ptr<Enwik8> task;
  std::unique_ptr<Run> run;
};
// `with_text`: for evaluations.
std::unique_ptr<RestoredRun> RestoreRun(const std::string& folder, const Enwik8Flags& flags,
                                        bool with_text);

// Weight sets by name: "collapsed", "swa"; UsageError with the names there are.
WeightSet WeightSetOf(const std::string& name, const RestoredRun& restored);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_ENWIK8_RUN_H_

// A training program as the commands train and eval see it: its settings, its data, its task and
// the names of its metrics. MakeExperiment knows all of them.
#ifndef LATE_PHASE_TOOLS_PROGRAM_EXPERIMENT_H_
#define LATE_PHASE_TOOLS_PROGRAM_EXPERIMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/training/trainer.h"
#include "tools/program/data_files.h"
#include "tools/program/metrics.h"
#include "tools/program/settings.h"

namespace late_phase {

struct EvaluatedRun;
struct Evaluation;
struct EvaluationOptions;

// What is the same for all runs of an experiment.
struct ExperimentInfo {
  std::string name;
  std::string description;  // the first line of --help
  std::string data_help;    // of --data
  std::string preset;       // the default
  std::string items;        // what a minibatch consists of: "characters"
  struct Model {
    std::string name;
    std::string fork_of;  // the model it is identical to until T0; empty: none
    std::string group;    // the group it is trained in, "all" or "all-controls"; empty: neither
  };
  // In training order: each after the model it is forked from. "all-controls" includes the models
  // of "all".
  std::vector<Model> models;
  Column progress;              // for the training loss (Task::LossMetrics)
  std::vector<Column> columns;  // for a trained model (Task::Evaluate)
  // Settings that a run must share with the run whose weights it starts from.
  std::vector<std::string> network_settings;
};

// The values of one config.toml. `model` "all" and `seeds` > 1 stand for several runs.
class Experiment {
 public:
  virtual ~Experiment() = default;

  virtual const ExperimentInfo& info() const = 0;
  virtual Recipe& recipe() = 0;
  virtual const Recipe& recipe() const = 0;
  // With its own values; the data is shared.
  virtual std::unique_ptr<Experiment> Copy() const = 0;

  // Both throw UsageError for what the user can fix. Tasks may use the data as long as this
  // experiment, or a copy of it, exists.
  virtual void OpenData(const std::string& path, DataFiles* files) = 0;
  virtual std::unique_ptr<Task> MakeTask() const = 0;
  // A text that differs for other data, once they are open.
  virtual std::string DataDigest() const = 0;

  // Evaluates trained runs of this experiment. The default implementation computes the task's own
  // metrics for every requested weight set. Throws UsageError for what the user can fix, before
  // anything is computed.
  virtual Evaluation Evaluate(const std::vector<EvaluatedRun>& runs,
                              const EvaluationOptions& options) const;
  // Whether the image options of EvaluationOptions apply here.
  virtual bool ClassifiesImages() const { return false; }

  // The advice that ends the message about a loss that is not finite.
  virtual std::string Advice() const = 0;

  // All values of this object: the common ones, with the program's own in between.
  SettingList Settings();

  int64_t seeds = 1;
  int64_t log_every = 100, checkpoint_every = 500;  // minibatches
  double evaluate_every = 1;                        // epochs

 protected:
  // Network, data and optimizer.
  virtual SettingList OwnSettings() = 0;

 private:
  std::string name_;  // `program` in config.toml
};

// Throws UsageError, listing the known names, if there is no such program.
std::unique_ptr<Experiment> MakeExperiment(const std::string& name);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_EXPERIMENT_H_

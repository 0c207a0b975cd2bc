// A training program as the commands train and eval see it: what there is to set, its data, its
// task, and the words for its metrics. MakeExperiment knows them all.
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
  std::string preset;       // taken if none is given
  std::string items;        // what minibatches consist of: "characters"
  struct Model {
    std::string name;
    std::string fork_of;  // the model that it is until T0; empty: none
    std::string group;    // "all" or "all-controls", which it is trained in; empty: neither
  };
  // In the order in which they are trained, each after what it is forked from. "all-controls" has
  // the models of "all", too.
  std::vector<Model> models;
  Column progress;              // of the training loss (Task::LossMetrics)
  std::vector<Column> columns;  // of a trained model (Task::Evaluate)
  // Settings that must be the same in a run whose weights another one starts from.
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

  // Both throw UsageError for what the user can mend. Tasks may use the data for as long as this
  // experiment, or a copy of it, is there.
  virtual void OpenData(const std::string& path, DataFiles* files) = 0;
  virtual std::unique_ptr<Task> MakeTask() const = 0;

  // Evaluates trained runs of this experiment. Unless it is said otherwise: the metrics that its
  // tasks know, of every set of weights that is asked for. Throws UsageError for what the user can
  // mend, before anything is computed.
  virtual Evaluation Evaluate(const std::vector<EvaluatedRun>& runs,
                              const EvaluationOptions& options) const;
  // Whether the options of EvaluationOptions that are about images mean anything here.
  virtual bool ClassifiesImages() const { return false; }

  // Ends the message about a loss that is not finite.
  virtual std::string Advice() const = 0;

  // Every value, this object's: the common ones around the program's own.
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

// UsageError with the names there are if there is no such program.
std::unique_ptr<Experiment> MakeExperiment(const std::string& name);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_EXPERIMENT_H_

// The training program cifar: models/images/cifar.h with its settings and its images.
#ifndef LATE_PHASE_TOOLS_PROGRAM_CIFAR_EXPERIMENT_H_
#define LATE_PHASE_TOOLS_PROGRAM_CIFAR_EXPERIMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "models/images/cifar.h"
#include "tools/program/experiment.h"

namespace late_phase {

class CifarExperiment : public Experiment {
 public:
  const ExperimentInfo& info() const override;
  Recipe& recipe() override { return options_; }
  const Recipe& recipe() const override { return options_; }
  std::unique_ptr<Experiment> Copy() const override;
  void OpenData(const std::string& path, DataFiles* files) override;
  std::unique_ptr<Task> MakeTask() const override;
  std::string DataDigest() const override;
  Evaluation Evaluate(const std::vector<EvaluatedRun>& runs,
                      const EvaluationOptions& options) const override;
  bool ClassifiesImages() const override { return true; }
  std::string Advice() const override;

  const CifarOptions& options() const { return options_; }
  const CifarData& data() const { return *data_; }  // once it has been opened

 protected:
  SettingList OwnSettings() override;

 private:
  CifarOptions options_;
  std::shared_ptr<const CifarData> data_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_CIFAR_EXPERIMENT_H_

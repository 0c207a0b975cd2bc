// The training program enwik8: models/text/enwik8.h with its settings and its text.
#ifndef LATE_PHASE_TOOLS_PROGRAM_ENWIK8_EXPERIMENT_H_
#define LATE_PHASE_TOOLS_PROGRAM_ENWIK8_EXPERIMENT_H_

#include <memory>
#include <string>

#include "models/text/enwik8.h"
#include "tools/program/experiment.h"

namespace late_phase {

class Enwik8Experiment : public Experiment {
 public:
  const ExperimentInfo& info() const override;
  Recipe& recipe() override { return options_; }
  const Recipe& recipe() const override { return options_; }
  std::unique_ptr<Experiment> Copy() const override;
  void OpenData(const std::string& path, DataFiles* files) override;
  std::unique_ptr<Task> MakeTask() const override;
  std::string DataDigest() const override;
  std::string Advice() const override;

  // A task for a run's checkpoint without the text, for sampling only.
  std::unique_ptr<Enwik8> MakeTaskWithoutText(const std::string& checkpoints) const;

 protected:
  SettingList OwnSettings() override;

 private:
  Enwik8Options options_;
  std::shared_ptr<const ByteText> text_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_ENWIK8_EXPERIMENT_H_

// What a training run writes about itself: metrics.jsonl, one object per line, and TensorBoard
// events of the same metrics.
#ifndef LATE_PHASE_MODELS_TRAINING_RUN_FOLDER_H_
#define LATE_PHASE_MODELS_TRAINING_RUN_FOLDER_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/util/events_writer.h"

namespace late_phase {

// Named numbers of a model: {"bpc": 1.63}.
using Metrics = std::map<std::string, double>;

class RunFolder {
 public:
  // Opens the folder, creating it if necessary, for a run that resumes after `step`
  // minibatches: lines of later steps, left by a process that was killed, are dropped. `trained`:
  // these were the last, so evaluations at this step are of a process that was killed before its
  // results were complete; they are repeated, and dropped here.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path, int64_t step,
                                                         bool trained = false);
  // Of a worker that writes nothing: whatever it logs is dropped.
  static std::unique_ptr<RunFolder> Nowhere();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Takes over the lines of another run up to `step`: those of the run that this one was forked
  // from.
  [[nodiscard]] static absl::Status CopyMetrics(const std::string& from, const std::string& to,
                                                int64_t step);

  // {"kind": "train", "step": …, "epoch": …, metrics}
  [[nodiscard]] absl::Status LogTraining(int64_t step, double epoch, const Metrics& metrics);
  // {"kind": "evaluation", …, "split": "validation", "weights": "collapsed", metrics}
  [[nodiscard]] absl::Status LogEvaluation(int64_t step, double epoch, const std::string& split,
                                           const std::string& weights, const Metrics& metrics);
  // {"kind": "members", …, metrics}, of models/training/member_metrics.h
  [[nodiscard]] absl::Status LogMembers(int64_t step, double epoch, const Metrics& metrics);

  // OK as long as the folder is where it was, with what has been logged. To be asked before
  // anything else is written there, which would create a folder without the rest.
  [[nodiscard]] absl::Status Check() const;

  const std::string& path() const { return path_; }  // empty: nowhere
  std::string checkpoints() const { return path_ + "/checkpoint"; }
  // Seconds of training before this process, from the last line that was kept.
  double earlier_seconds() const { return earlier_seconds_; }

 private:
  RunFolder() = default;
  [[nodiscard]] absl::Status Write(const std::string& line);
  // A line, and TensorBoard's KIND/NAME of each metric.
  [[nodiscard]] absl::Status Log(const char* kind, int64_t step, double epoch,
                                 const Metrics& metrics);

  std::string path_;
  double earlier_seconds_ = 0;
  std::FILE* metrics_ = nullptr;
  std::unique_ptr<tensorflow::EventsWriter> events_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_RUN_FOLDER_H_

// Which lines of a run's metrics.jsonl still hold when the run is resumed. No TensorFlow.
#ifndef LATE_PHASE_MODELS_TRAINING_METRICS_LINES_H_
#define LATE_PHASE_MODELS_TRAINING_METRICS_LINES_H_

#include <cstdint>
#include <string>

namespace late_phase {

struct KeptLines {
  std::string text;    // whole lines, as they were
  double seconds = 0;  // of the last one that has any
};

// The lines up to `step`, of which only those about training if it is `trained`: those that are
// objects with a step. A last line that was cut off by a kill is dropped.
KeptLines KeepLines(const std::string& text, int64_t step, bool trained);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_METRICS_LINES_H_

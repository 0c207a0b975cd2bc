// An estimate of the memory that training takes, made before it starts.
#ifndef LATE_PHASE_MODELS_TRAINING_MEMORY_H_
#define LATE_PHASE_MODELS_TRAINING_MEMORY_H_

#include <string>

#include "absl/status/status.h"
#include "optimizers/late_phase_options.h"

namespace late_phase {

// What a training run holds at once, in numbers of its type.
struct TrainingNumbers {
  double base = 0;       // weights without members
  double members = 0;    // one member's weights
  double slots = 0;      // of the update rule, per weight: 1 for momentum, 2 for Adam
  double minibatch = 0;  // what the backward pass of a minibatch needs
};

// The peak of a run on the CPU: variables, a minibatch, and the process with its `data_bytes`.
// number_bytes: 4 or 8.
double TrainingBytes(const TrainingNumbers& numbers, const LatePhaseOptions& options,
                     double number_bytes, double data_bytes);

// Refuses a run that needs more bytes than the machine has, naming the values it was `received`
// with: TensorFlow would end the process.
[[nodiscard]] absl::Status CheckFitsMemory(double bytes, const std::string& received);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_MEMORY_H_

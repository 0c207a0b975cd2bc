// The training settings that all of the paper's experiments share: model, length, late phase.
#ifndef LATE_PHASE_MODELS_TRAINING_RECIPE_H_
#define LATE_PHASE_MODELS_TRAINING_RECIPE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "optimizers/late_phase_options.h"
#include "optimizers/worker_group.h"

namespace late_phase {

class Workers;

// What changes at T0. All but kMembers are controls: each does to a plain network part of what
// the late phase does, so that the difference is what the members add.
enum class AtT0 {
  kNothing,
  kMembers,     // Algorithm 1
  kAccumulate,  // only its rarer steps: gradients are accumulated over K minibatches
  kLowerRate,   // the learning rates are multiplied by Recipe::late_rate
  kDecayRate,   // the learning rates fall linearly, to zero at the end of training
};

struct Recipe {
  // A network ("base", "rank1", …); "late-phase"; or a control of a network, "rank1-accumulation",
  // "rank1-lower-rate", "rank1-decay", without its name if the network is "base".
  std::string model = "late-phase";
  // Folder of another run, whose weights this one starts from; empty: fresh weights.
  std::string pretrained;
  double epochs = 50;
  int64_t steps = 0;            // in all, instead of epochs; 0: epochs
  int64_t members = 10;         // K
  double t0 = 30;               // epochs before the members are spawned
  double sigma = 0.35;          // σ0
  double gamma = 1;             // γ of the base's step
  double base_decay_scale = 1;  // on the base's weight decay, from T0 on
  bool freeze_base = false;     // from T0 on, only the members are trained
  bool restart_cycle = false;   // each epoch starts a new cycle; an unfinished one is dropped
  double late_rate = 0;  // of the control lower-rate; 0: what accumulation's noise corresponds to
  // Epochs before averaging begins, -1: never; the first sample follows swa_every later.
  double swa_start = 40;
  double swa_every = 1;   // epochs
  int64_t swag_rank = 0;  // deviations that SWAG keeps; 0: no SWAG
  int64_t seed = 0;
  std::string dtype = "float32";  // or float64
  std::string device;             // "GPU:0"; empty: the CPU
  // Those that train together (optimizers/workers.h), which must outlive the task; null: this
  // process alone. Minibatches are divided among them, and all that they are is the joint one's.
  Workers* workers = nullptr;

  AtT0 at_t0() const;
  bool late_phase() const { return at_t0() == AtT0::kMembers; }
  // Whether the model is this network, or a control of it.
  bool IsNetwork(const std::string& network) const;
  Share share() const;  // this worker's, of every minibatch
};

// The recipe in minibatches, which depend on the data's size.
struct TrainPlan {
  int64_t steps_per_epoch = 0;
  int64_t steps = 0;  // in all
  LatePhaseOptions late_phase;
  // The memory that training takes, roughly (models/training/memory.h); the task fills it in.
  double bytes = 0;
};
absl::StatusOr<TrainPlan> PlanTraining(const Recipe& recipe, int64_t steps_per_epoch);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_RECIPE_H_

// How far the members of a run are apart, measured between two steps:
//
//   member_spread/NAME  √(mean_k,i (φ_ki − φ̄_i)²) / √(mean_i φ̄_i²) of a late-phase weight φ, with
//                       φ̄ its mean over the members
//   member_spread       the same over the numbers of all late-phase weights together
//   gradient_agreement  the mean over all pairs of members j ≠ k of cos(g_j, g_k), where g_k is the
//                       gradient of all base weights as one vector, for member k and minibatch
//                       t + k, t being the run's step. These are the gradients that a cycle sums,
//                       but of weights that stand still. 1: all alike; 0: nothing but noise, of
//                       which a sum of K grows as √K
//
// A run goes on in the same bits afterwards: everything is read and nothing written. Gradients are
// those of the training graph itself, run up to them with t and member fed in place of the clock's.
//
// Costs: the spread one pass over the late-phase weights; the agreement the forward and backward
// passes of K minibatches, those of one cycle, and 8 bytes for each base weight.
#ifndef LATE_PHASE_MODELS_TRAINING_MEMBER_METRICS_H_
#define LATE_PHASE_MODELS_TRAINING_MEMBER_METRICS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/training/run_folder.h"
#include "optimizers/late_phase.h"
#include "optimizers/run.h"

namespace late_phase {

// What a minibatch hands on to the next one: the tensor that reads it, and the one that is kept.
struct CarriedState {
  std::string read, kept;
};

// The feeds of minibatch t.
using MakeMinibatch = std::function<absl::StatusOr<Run::Feeds>(int64_t t)>;

// Of members that are spawned. A weight whose mean is zero has no spread, and is left out.
absl::StatusOr<Metrics> MemberSpread(const LatePhase& late_phase, Run* run);

// Nothing if there are no base weights, or if a member's gradient is zero or not finite.
absl::StatusOr<std::optional<double>> GradientAgreement(const LatePhase& late_phase,
                                                        const std::vector<CarriedState>& carried,
                                                        const MakeMinibatch& minibatch, Run* run);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_MEMBER_METRICS_H_

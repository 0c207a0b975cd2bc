#include "models/training/recipe.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace late_phase {

absl::Status PlanTraining(const Recipe& recipe, int64_t steps_per_epoch, TrainPlan* plan) {
  auto steps = [&](double epochs) { return std::llround(epochs * steps_per_epoch); };
  plan->steps_per_epoch = steps_per_epoch;
  plan->steps = recipe.steps > 0 ? recipe.steps : steps(recipe.epochs);
  LatePhaseOptions& late_phase = plan->late_phase;
  late_phase = LatePhaseOptions();
  if (recipe.late_phase() || recipe.accumulates()) {
    if (recipe.steps == 0 && recipe.t0 >= recipe.epochs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`t0` must be less than `epochs`, or no ",
          recipe.late_phase() ? "member is ever trained" : "gradients are ever gathered",
          ". Received: t0=", recipe.t0, ", epochs=", recipe.epochs));
    }
    late_phase.start = steps(recipe.t0);
    late_phase.base_scale = recipe.gamma;
    late_phase.base_decay_scale = recipe.base_decay_scale;
  }
  if (recipe.accumulates()) late_phase.cycle = recipe.members;
  if (recipe.late_phase()) {
    late_phase.members = recipe.members;
    late_phase.sigma = recipe.sigma;
    late_phase.freeze_base = recipe.freeze_base;
    late_phase.seed[0] = recipe.seed;
  }
  if (recipe.swa_start >= 0) {
    late_phase.swa_every = std::max<int64_t>(1, steps(recipe.swa_every));
    late_phase.swa_start = steps(recipe.swa_start) + late_phase.swa_every;
    if (recipe.swa_start < recipe.t0 && recipe.late_phase()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`swa_start` must be at least `t0`, because members that do not exist yet "
                       "cannot be averaged. Received: swa_start=",
                       recipe.swa_start, ", t0=", recipe.t0));
    }
  }
  late_phase.swag_rank = recipe.swag_rank;
  return late_phase.Check();
}

}  // namespace late_phase

#include "models/training/recipe.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "optimizers/workers.h"
#include "tensorflow/core/platform/errors.h"

namespace late_phase {
namespace {

struct Control {
  const char* name;
  AtT0 at_t0;
};
constexpr Control kControls[] = {{"accumulation", AtT0::kAccumulate},
                                 {"lower-rate", AtT0::kLowerRate},
                                 {"decay", AtT0::kDecayRate}};

// The control that a model's name ends with; null if it is not a control.
const Control* ControlIn(const std::string& model) {
  for (const Control& control : kControls) {
    if (model == control.name || absl::EndsWith(model, absl::StrCat("-", control.name))) {
      return &control;
    }
  }
  return nullptr;
}

// The factor on all learning rates.
Schedule RateScale(const Recipe& recipe, double t0, double steps) {
  switch (recipe.at_t0()) {
    case AtT0::kLowerRate:
      return Schedule::PiecewiseLinear({{0, 1}, {t0, 1}, {t0, recipe.late_rate}});
    case AtT0::kDecayRate:
      return Schedule::PiecewiseLinear({{t0, 1}, {steps, 0}});
    default:
      return 1.0;
  }
}

}  // namespace

AtT0 Recipe::at_t0() const {
  if (model == "late-phase") return AtT0::kMembers;
  const Control* control = ControlIn(model);
  return control == nullptr ? AtT0::kNothing : control->at_t0;
}

Share Recipe::share() const { return workers == nullptr ? Share() : workers->share(); }

bool Recipe::IsNetwork(const std::string& network) const {
  const Control* control = ControlIn(model);
  if (control == nullptr) return model == network;
  return model == (network == "base" ? control->name : absl::StrCat(network, "-", control->name));
}

absl::StatusOr<TrainPlan> PlanTraining(const Recipe& recipe, int64_t steps_per_epoch) {
  auto steps = [&](double epochs) { return std::llround(epochs * steps_per_epoch); };
  TrainPlan plan;
  plan.steps_per_epoch = steps_per_epoch;
  plan.steps = recipe.steps > 0 ? recipe.steps : steps(recipe.epochs);
  LatePhaseOptions& late_phase = plan.late_phase;
  const AtT0 at_t0 = recipe.at_t0();
  if (at_t0 != AtT0::kNothing) {
    if (recipe.steps == 0 && recipe.t0 >= recipe.epochs) {
      return absl::InvalidArgumentError(
          absl::StrCat("`t0` must be less than `epochs`, or the late phase never begins"
                       ". Received: t0=",
                       recipe.t0, ", epochs=", recipe.epochs));
    }
    late_phase.start = steps(recipe.t0);
    late_phase.rate_scale = RateScale(recipe, late_phase.start, plan.steps);
  }
  if (at_t0 == AtT0::kMembers || at_t0 == AtT0::kAccumulate) {
    late_phase.base_scale = recipe.gamma;
    late_phase.base_decay_scale = recipe.base_decay_scale;
  }
  if (recipe.restart_cycle && (at_t0 == AtT0::kMembers || at_t0 == AtT0::kAccumulate)) {
    if (steps_per_epoch < recipe.members) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`members` must be at most ", steps_per_epoch,
          ", the minibatches of an epoch, if each epoch begins a cycle of its own: else none is "
          "ever finished. Received: members=",
          recipe.members, ", restart_cycle=true"));
    }
    late_phase.restart_every = steps_per_epoch;
  }
  if (at_t0 == AtT0::kAccumulate) late_phase.cycle = recipe.members;
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
  TF_RETURN_IF_ERROR(late_phase.Check());
  return plan;
}

}  // namespace late_phase

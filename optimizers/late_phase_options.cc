#include "optimizers/late_phase_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "optimizers/number_text.h"

namespace late_phase {
namespace {

absl::Status Complain(const char* name, const char* rule, double value) {
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must be ", rule, ". Received: ", name, "=", value));
}

}  // namespace

absl::Status LatePhaseOptions::Check() const {
  if (members < 1) return Complain("members", "at least 1", members);
  if (start < 0) return Complain("start", "at least 0", start);
  if (cycle < 0) return Complain("cycle", "at least 1, or 0 for `members`", cycle);
  if (cycle != 0 && members > 1 && cycle != members) {
    return Complain("cycle", "equal to `members`, or `members` 1", cycle);
  }
  if (restart_every < 0) return Complain("restart_every", "at least 0", restart_every);
  if (restart_every > 0 && restart_every < std::max(cycle, members)) {
    return Complain("restart_every", "at least `cycle`, or the base never takes a step, or 0",
                    restart_every);
  }
  if (!(sigma >= 0) || std::isinf(sigma)) return Complain("sigma", "finite and >= 0", sigma);
  if (!(base_scale > 0 && base_scale <= 1)) return Complain("base_scale", "in (0, 1]", base_scale);
  if (!(base_decay_scale >= 0) || std::isinf(base_decay_scale)) {
    return Complain("base_decay_scale", "finite and >= 0", base_decay_scale);
  }
  if (!(clip_norm >= 0) || std::isinf(clip_norm)) {
    return Complain("clip_norm", "finite and >= 0", clip_norm);
  }
  if (swa_start >= 0 && swa_start < start && members > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`swa_start` must not be before `start`, because members that do not exist "
                     "yet cannot be averaged. Received: swa_start=",
                     swa_start, ", start=", start));
  }
  if (swa_every < 1) return Complain("swa_every", "at least 1", swa_every);
  if (swag_rank < 0 || swag_rank == 1) {
    return Complain("swag_rank", "at least 2, or 0 for no SWAG", swag_rank);
  }
  if (swag_rank > 0 && swa_start < 0) {
    return Complain("swag_rank", "0 without SWA, whose samples it describes", swag_rank);
  }
  if (swag_rank > 0 && members > 1) {
    return Complain("swag_rank", "0 with members, because SWAG describes one model", swag_rank);
  }
  return absl::OkStatus();
}

int64_t LatePhaseOptions::SinceRestart(int64_t t) const {
  return t - (restart_every > 0 ? std::max(start, t - t % restart_every) : start);
}

Settings LatePhaseOptions::Text() const {
  Settings text = {{"members", absl::StrCat(members)},
                   {"start", absl::StrCat(start)},
                   {"cycle", absl::StrCat(cycle)},
                   {"sigma", NumberText(sigma)},
                   {"base_scale", NumberText(base_scale)},
                   {"copy_slots", absl::StrCat(copy_slots)},
                   {"freeze_base", absl::StrCat(freeze_base)},
                   {"clip_norm", NumberText(clip_norm)},
                   {"swa_start", absl::StrCat(swa_start)},
                   {"swa_every", absl::StrCat(swa_every)},
                   {"seed", absl::StrCat(seed[0], ",", seed[1])}};
  // What is not used is left out: such a run is the same as before the setting existed.
  if (swag_rank > 0) text.push_back({"swag_rank", absl::StrCat(swag_rank)});
  if (restart_every > 0) text.push_back({"restart_every", absl::StrCat(restart_every)});
  if (base_decay_scale != 1) {
    text.push_back({"base_decay_scale", NumberText(base_decay_scale)});
  }
  if (rate_scale.Text() != "1") text.push_back({"rate_scale", rate_scale.Text()});
  return text;
}

}  // namespace late_phase

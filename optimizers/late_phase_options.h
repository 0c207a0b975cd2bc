// The settings of Algorithm 1.
//
// The controls of the paper are settings: gradient accumulation without members is members = 1 with
// cycle = K, where every weight is accumulated; a frozen base is `freeze_base`; a full
// late-phase deep ensemble declares every weight with AddMembers; T0 = 0 is start = 0.
#ifndef LATE_PHASE_OPTIMIZERS_LATE_PHASE_OPTIONS_H_
#define LATE_PHASE_OPTIMIZERS_LATE_PHASE_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "optimizers/schedule.h"
#include "optimizers/settings.h"

namespace late_phase {

struct LatePhaseOptions {
  int64_t members = 1;  // K
  int64_t start = 0;    // T0, in minibatches
  // Minibatches per base update from T0 on; 0: same as members. With one member there is nothing to
  // train in turn, and the weights declared with AddMembers take the same steps.
  int64_t cycle = 0;
  // Minibatches after which the cycle begins anew with member 0, counted from t = 0: an epoch's.
  // The base gradients of a cycle that is not finished by then are dropped. 0: cycles run on, and
  // nothing is dropped.
  int64_t restart_every = 0;
  double sigma = 0;       // σ0 of the noise at spawning
  double base_scale = 1;  // γ, from T0 on
  // Factor on the base's weight decay, from T0 on. The paper's 1 lets the decay act once in a
  // cycle, against the gradients of all its minibatches; `cycle` times `base_scale` keeps the
  // weights at which gradient and decay of SGD balance where they were before T0.
  double base_decay_scale = 1;
  Schedule rate_scale = 1.0;  // factor on every learning rate
  bool copy_slots = false;   // members inherit φ0's optimizer slots at T0; else they start at zero
  bool freeze_base = false;  // from T0 on, the base no longer changes
  double clip_norm = 0;      // per minibatch, by the global norm of all gradients; 0: no clipping
  int64_t swa_start = -1;    // first sample after this many minibatches; -1: no SWA
  int64_t swa_every = 1;     // minibatches between samples
  // SWAG: deviations from the average that are kept, of the newest samples; 0: no SWAG. Only
  // without members, whose mean the paper compares with it (optimizers/swag.h).
  int64_t swag_rank = 0;
  int64_t seed[2] = {0, 0};  // of the spawning noise

  [[nodiscard]] absl::Status Check() const;
  // The minibatches before t since cycles last began anew. REQUIRES: t >= start.
  int64_t SinceRestart(int64_t t) const;
  Settings Text() const;  // of every setting
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_LATE_PHASE_OPTIONS_H_

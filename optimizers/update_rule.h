// How a set of weights is updated: U_θ or U_φ of Algorithm 1. Base and members have one each.
#ifndef LATE_PHASE_OPTIMIZERS_UPDATE_RULE_H_
#define LATE_PHASE_OPTIMIZERS_UPDATE_RULE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "optimizers/number_text.h"
#include "optimizers/schedule.h"

namespace late_phase {

// Few, so in the order of reading: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct UpdateRule {
  enum class Kind { kSgd, kMomentum, kAdam };

  static UpdateRule Sgd(Schedule lr) { return {Kind::kSgd, std::move(lr)}; }
  // Nesterov momentum, whose velocity does not contain the learning rate.
  static UpdateRule Momentum(Schedule lr, double momentum = 0.9, bool nesterov = true) {
    UpdateRule rule{Kind::kMomentum, std::move(lr)};
    rule.momentum = momentum;
    rule.nesterov = nesterov;
    return rule;
  }
  // In TensorFlow's form: epsilon is added to the uncorrected root.
  static UpdateRule Adam(Schedule lr, double epsilon = 1e-8) {
    UpdateRule rule{Kind::kAdam, std::move(lr)};
    rule.epsilon = epsilon;
    return rule;
  }
  // Coupled L2, added whenever an update is applied.
  UpdateRule WithDecay(Schedule decay) const {
    UpdateRule rule = *this;
    rule.weight_decay = std::move(decay);
    return rule;
  }

  // Every value, for messages and checkpoints.
  std::string Text() const {
    switch (kind) {
      case Kind::kSgd:
        return absl::StrCat("sgd lr=", lr.Text(), " decay=", weight_decay.Text());
      case Kind::kMomentum:
        return absl::StrCat("momentum lr=", lr.Text(), " decay=", weight_decay.Text(),
                            " momentum=", NumberText(momentum), " nesterov=", nesterov);
      case Kind::kAdam:
        return absl::StrCat("adam lr=", lr.Text(), " decay=", weight_decay.Text(),
                            " beta1=", NumberText(beta1), " beta2=", NumberText(beta2),
                            " epsilon=", NumberText(epsilon));
    }
    return "";
  }

  Kind kind;
  Schedule lr;
  Schedule weight_decay = 0.0;
  double momentum = 0.9;
  bool nesterov = true;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_UPDATE_RULE_H_

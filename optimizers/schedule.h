// A number that follows the minibatch count t: constant, or linear between knots (the paper's
// annealing).
//
// Steps and epochs are the same thing in different units: Schedule::Epochs takes knots in epochs.
#ifndef LATE_PHASE_OPTIMIZERS_SCHEDULE_H_
#define LATE_PHASE_OPTIMIZERS_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

class Schedule {
 public:
  struct Knot {
    double at;  // minibatches
    double value;
  };

  // NOLINTNEXTLINE(google-explicit-constructor): a number is the constant schedule.
  Schedule(double constant) : knots_{{0, constant}} {}

  // Linear between neighbouring knots, constant before the first and after the last. Two knots at
  // one place make a jump: from there on the second value holds.
  static Schedule PiecewiseLinear(std::vector<Knot> knots) { return Schedule(std::move(knots)); }

  // The same with knots in epochs of `steps_per_epoch` minibatches.
  static Schedule Epochs(double steps_per_epoch, std::vector<Knot> knots);

  // The same, but constant within an epoch, at the value where it begins.
  Schedule ByEpoch(double steps_per_epoch) const;

  // There must be at least one knot, and knots must be in order and finite.
  [[nodiscard]] absl::Status Check(const std::string& name) const;

  double At(double t) const;

  // The value as a double scalar of the graph, for t as a double scalar.
  tensorflow::Output InGraph(const tensorflow::Scope& scope, tensorflow::Output t) const;

  // "0.1" or "0:0.1,1000:0.001", then " by 391" if it is constant within epochs.
  std::string Text() const;

 private:
  explicit Schedule(std::vector<Knot> knots) : knots_(std::move(knots)) {}
  std::vector<Knot> knots_;
  double epoch_ = 0;  // minibatches for which a value is held; 0: not held
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_SCHEDULE_H_

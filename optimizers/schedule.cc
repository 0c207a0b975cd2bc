#include "optimizers/schedule.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "optimizers/number_text.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

Schedule Schedule::Epochs(double steps_per_epoch, std::vector<Knot> knots) {
  for (Knot& knot : knots) knot.at *= steps_per_epoch;
  return Schedule(std::move(knots));
}

Schedule Schedule::ByEpoch(double steps_per_epoch) const {
  Schedule schedule = *this;
  schedule.epoch_ = steps_per_epoch;
  return schedule;
}

absl::Status Schedule::Check(const std::string& name) const {
  bool good = !knots_.empty();
  for (size_t i = 0; i < knots_.size(); ++i) {
    good = good && std::isfinite(knots_[i].at) && std::isfinite(knots_[i].value);
    if (i > 0) good = good && knots_[i].at >= knots_[i - 1].at;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must have finite knots in order. Received: ", name, "=", Text()));
}

double Schedule::At(double t) const {
  if (epoch_ > 0) t = std::floor(t / epoch_) * epoch_;
  // The last knot at or before t, and the distance to the next.
  if (t < knots_.front().at) return knots_.front().value;
  size_t i = 0;
  while (i + 1 < knots_.size() && knots_[i + 1].at <= t) ++i;
  if (i + 1 == knots_.size()) return knots_[i].value;
  const Knot &a = knots_[i], &b = knots_[i + 1];
  return a.value + (b.value - a.value) * ((t - a.at) / (b.at - a.at));
}

tensorflow::Output Schedule::InGraph(const tensorflow::Scope& scope, tensorflow::Output t) const {
  namespace tf_ops = tensorflow::ops;
  if (epoch_ > 0) {
    const auto epoch = tf_ops::Const(scope, epoch_);
    t = tf_ops::Mul(scope, tf_ops::Floor(scope, tf_ops::Div(scope, t, epoch)), epoch);
  }
  // The same arithmetic as At, for each piece; the piece that t lies in is selected.
  tensorflow::Output value = tf_ops::Const(scope, knots_.front().value);
  for (size_t i = 0; i < knots_.size(); ++i) {
    const Knot& a = knots_[i];
    tensorflow::Output piece = tf_ops::Const(scope, a.value);
    if (i + 1 < knots_.size() && knots_[i + 1].at > a.at) {
      const Knot& b = knots_[i + 1];
      const auto way =
          tf_ops::Div(scope, tf_ops::Sub(scope, t, a.at), tf_ops::Const(scope, b.at - a.at));
      piece = tf_ops::Add(scope, piece, tf_ops::Mul(scope, way, b.value - a.value));
    }
    value = tf_ops::SelectV2(scope, tf_ops::GreaterEqual(scope, t, a.at), piece, value);
  }
  return value;
}

std::string Schedule::Text() const {
  if (knots_.size() == 1) return NumberText(knots_[0].value);
  const std::string text = absl::StrJoin(knots_, ",", [](std::string* out, const Knot& knot) {
    absl::StrAppend(out, NumberText(knot.at), ":", NumberText(knot.value));
  });
  return epoch_ > 0 ? absl::StrCat(text, " by ", NumberText(epoch_)) : text;
}

}  // namespace late_phase

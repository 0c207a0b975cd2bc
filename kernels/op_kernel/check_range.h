// Hyper-parameters, whether inputs or attributes, and the ranges they must lie in.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_CHECK_RANGE_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_CHECK_RANGE_H_

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace late_phase {

// NaN lies in no range.
struct Range {
  double low, high;
  bool low_open = false, high_open = false;
};

// Rates, decay, Adam's epsilon, σ.
constexpr Range kNotNegative{0, std::numeric_limits<double>::infinity(), false, true};
// Momentum and Adam's betas.
constexpr Range kFraction{0, 1, false, true};

[[nodiscard]] inline absl::Status CheckRange(const std::string& op, const char* name, double value,
                                             const Range& range) {
  const bool above = range.low_open ? value > range.low : value >= range.low;
  const bool below = range.high_open ? value < range.high : value <= range.high;
  if (above && below) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": `", name, "` must be in ", range.low_open ? "(" : "[", range.low, ", ",
                   range.high, range.high_open ? ")" : "]", ". Received: ", name, "=", value));
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_CHECK_RANGE_H_

// How tests compare results with a double-precision oracle.
#ifndef LATE_PHASE_TESTS_SUPPORT_COMPARE_H_
#define LATE_PHASE_TESTS_SUPPORT_COMPARE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace late_phase {
namespace test_util {

template <typename T>
std::vector<T> Cast(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

// max|a − b| / max|b|; infinite if a value is missing or not finite.
template <typename Range>
double RelativeError(const Range& actual, const std::vector<double>& expected) {
  if (static_cast<size_t>(actual.size()) != expected.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double error = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
    scale = std::max(scale, std::abs(expected[i]));
  }
  return scale == 0 ? error : error / scale;
}

// Bounds that every implementation is held to.
template <typename T>
constexpr double kTolerance = sizeof(T) == 8 ? 1e-9 : 3e-5;

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_COMPARE_H_

#include "models/images/detection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace late_phase {

double Entropy(const double* probabilities, int64_t classes) {
  double entropy = 0;
  for (int64_t c = 0; c < classes; ++c) {
    const double p = probabilities[c];
    if (p != 0) entropy -= p * std::log(p);  // NaN is not 0 either
  }
  return entropy;
}

double Auroc(const std::vector<double>& negatives, const std::vector<double>& positives) {
  std::vector<std::pair<double, bool>> scores;  // score, whether it is a positive's
  scores.reserve(negatives.size() + positives.size());
  for (const double score : negatives) scores.emplace_back(score, false);
  for (const double score : positives) scores.emplace_back(score, true);
  const bool nan = std::any_of(scores.begin(), scores.end(),
                               [](const auto& score) { return std::isnan(score.first); });
  if (nan) return std::numeric_limits<double>::quiet_NaN();
  std::sort(scores.begin(), scores.end());
  // Wins of the positives, doubled so that halves are integers: up to 2·n·m, which fits.
  int64_t wins = 0, below = 0;  // negatives below the current scores
  for (size_t begin = 0, end = 0; begin < scores.size(); begin = end) {
    int64_t equal[2] = {0, 0};
    for (; end < scores.size() && scores[end].first == scores[begin].first; ++end) {
      ++equal[scores[end].second ? 1 : 0];
    }
    wins += equal[1] * (2 * below + equal[0]);
    below += equal[0];
  }
  return static_cast<double>(wins) /
         (2.0 * static_cast<double>(negatives.size()) * static_cast<double>(positives.size()));
}

std::vector<int64_t> Histogram(const std::vector<double>& values, double limit, int64_t bins) {
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (const double value : values) {
    if (std::isnan(value)) continue;
    const double bin = std::floor(value / limit * static_cast<double>(bins));
    ++counts[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(bins - 1)))];
  }
  return counts;
}

}  // namespace late_phase

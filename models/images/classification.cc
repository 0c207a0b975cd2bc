#include "models/images/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace late_phase {

void Softmax(const double* logits, int64_t classes, double* probabilities) {
  const double largest = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += probabilities[c] = std::exp(logits[c] - largest);
  for (int64_t c = 0; c < classes; ++c) probabilities[c] /= sum;
}

void ClassificationMetrics::Add(const double* probabilities, int32_t label) {
  const double* end = probabilities + classes_;
  ++count_;
  if (std::any_of(probabilities, end, [](double p) { return std::isnan(p); })) {
    nll_ = brier_ = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  nll_ -= std::log(std::max(probabilities[label], std::numeric_limits<double>::min()));
  for (int64_t c = 0; c < classes_; ++c) {
    const double off = probabilities[c] - (c == label ? 1 : 0);
    brier_ += off * off;
  }
  const double* largest = std::max_element(probabilities, end);  // the first of equals
  const double last = static_cast<double>(bins_.size() - 1);
  const double bin = std::ceil(*largest * static_cast<double>(bins_.size())) - 1;
  Bin& its = bins_[static_cast<size_t>(std::clamp(bin, 0.0, last))];
  ++its.count;
  its.right += largest - probabilities == label;
  its.confidence += *largest;
}

double ClassificationMetrics::accuracy() const {
  int64_t right = 0;
  for (const Bin& bin : bins_) right += bin.right;
  return static_cast<double>(right) / static_cast<double>(count_);
}

double ClassificationMetrics::nll() const { return nll_ / static_cast<double>(count_); }

double ClassificationMetrics::brier() const { return brier_ / static_cast<double>(count_); }

double ClassificationMetrics::ece() const {
  if (std::isnan(nll_)) return nll_;
  // |right/n − confidence/n| · n/count
  double sum = 0;
  for (const Bin& bin : bins_) sum += std::abs(static_cast<double>(bin.right) - bin.confidence);
  return sum / static_cast<double>(count_);
}

std::vector<ClassificationMetrics::Reliability> ClassificationMetrics::reliability() const {
  std::vector<Reliability> reliability;
  for (const Bin& bin : bins_) {
    const double n = static_cast<double>(bin.count);
    reliability.push_back({bin.count, bin.confidence / n, static_cast<double>(bin.right) / n});
  }
  return reliability;
}

std::map<std::string, double> ClassificationMetrics::ByName() const {
  return {{"accuracy", accuracy()}, {"nll", nll()}, {"ece", ece()}, {"brier", brier()}};
}

ClassificationMetrics Classify(const std::vector<double>& probabilities, const ImageView& images) {
  const int64_t all = static_cast<int64_t>(probabilities.size());
  const int64_t classes = images.count > 0 ? all / images.count : 0;
  ClassificationMetrics metrics(classes);
  for (int64_t i = 0; i < images.count; ++i) {
    metrics.Add(&probabilities[static_cast<size_t>(i * classes)], images.labels[i]);
  }
  return metrics;
}

}  // namespace late_phase

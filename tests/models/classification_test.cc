// The classifier's metrics, against values computed by hand. Also run under the sanitizers.
#include "models/images/classification.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Prediction {
  std::vector<double> probabilities;
  int32_t label;
};

ClassificationMetrics ComputeMetrics(const std::vector<Prediction>& predictions) {
  ClassificationMetrics metrics(
      predictions.empty() ? 2 : static_cast<int64_t>(predictions[0].probabilities.size()));
  for (const Prediction& p : predictions) metrics.Add(p.probabilities.data(), p.label);
  return metrics;
}

TEST(ClassificationMetricsTest, MetricsComputedByHand) {
  const ClassificationMetrics metrics = ComputeMetrics({
      {{0.7, 0.2, 0.1}, 0},    // right, bin 10: (10/15, 11/15]
      {{0.1, 0.69, 0.21}, 2},  // wrong, bin 10
      {{0.1, 0.2, 0.7}, 2},    // right, bin 10
      {{0.4, 0.35, 0.25}, 1},  // wrong, bin 5: (5/15, 6/15]
      {{0, 1, 0}, 1},          // right, bin 14
  });
  EXPECT_EQ(metrics.count(), 5);
  EXPECT_DOUBLE_EQ(metrics.accuracy(), 0.6);
  // −ln(0.7 · 0.21 · 0.7 · 0.35 · 1) / 5
  EXPECT_NEAR(metrics.nll(), -std::log(0.036015) / 5, 1e-15);
  // bin 10: 3/5 · |2/3 − 2.09/3|, bin 5: 1/5 · |0 − 0.4|, bin 14: 0
  EXPECT_NEAR(metrics.ece(), 0.018 + 0.08, 1e-15);
  // (0.3² + 0.2² + 0.1²) + (0.1² + 0.69² + 0.79²) + (0.1² + 0.2² + 0.3²) + (0.4² + 0.65² + 0.25²) +
  // 0
  EXPECT_NEAR(metrics.brier(), (0.14 + 1.1102 + 0.14 + 0.645) / 5, 1e-15);
  const auto bins = metrics.reliability();
  ASSERT_EQ(bins.size(), 15);
  EXPECT_EQ(bins[10].count, 3);
  EXPECT_NEAR(bins[10].confidence, 2.09 / 3, 1e-15);
  EXPECT_NEAR(bins[10].accuracy, 2.0 / 3, 1e-15);
  EXPECT_EQ(bins[5].count, 1);
  EXPECT_DOUBLE_EQ(bins[5].confidence, 0.4);
  EXPECT_EQ(bins[5].accuracy, 0);
  EXPECT_EQ(bins[14].count, 1);
  EXPECT_EQ(bins[0].count, 0);
  EXPECT_TRUE(std::isnan(bins[0].confidence) && std::isnan(bins[0].accuracy));
}

TEST(ClassificationMetricsTest, BinsEndWithTheirUpperBound) {
  // Both are in bin 7, (7/15, 8/15], where under- and overconfidence cancel; 0.54 is in the next.
  EXPECT_NEAR(ComputeMetrics({{{0.5, 0.5}, 0}, {{0.5, 0.5}, 1}}).ece(), 0, 1e-15);
  EXPECT_NEAR(ComputeMetrics({{{0.53, 0.47}, 0}, {{0.54, 0.46}, 1}}).ece(), (0.47 + 0.54) / 2,
              1e-15);
  // 0.6 = 9/15 is in bin 8 with 0.55, not in bin 9 with 0.65.
  EXPECT_NEAR(ComputeMetrics({{{0.6, 0.4}, 0}, {{0.55, 0.45}, 1}}).ece(), std::abs(1 - 1.15) / 2,
              1e-15);
  EXPECT_NEAR(ComputeMetrics({{{0.6, 0.4}, 0}, {{0.65, 0.35}, 1}}).ece(), (0.4 + 0.65) / 2, 1e-15);
  // Confidences outside [0, 1], which rounding makes, are in the outermost bins.
  EXPECT_NEAR(ComputeMetrics({{{1 + 1e-15, 0}, 0}, {{0.99, 0.01}, 1}}).ece(), 0.99 / 2, 1e-14);
  EXPECT_EQ(ComputeMetrics({{{0, 0}, 1}}).ece(), 0);
}

TEST(ClassificationMetricsTest, TheFirstOfTheLargestCounts) {
  EXPECT_EQ(ComputeMetrics({{{0.2, 0.4, 0.4}, 1}}).accuracy(), 1);
  EXPECT_EQ(ComputeMetrics({{{0.2, 0.4, 0.4}, 2}}).accuracy(), 0);
}

TEST(ClassificationMetricsTest, ProbabilitiesOfZeroCostMuchButNotInfinitely) {
  EXPECT_NEAR(ComputeMetrics({{{1, 0}, 1}}).nll(), 1022 * std::log(2.0), 1e-10);
  EXPECT_NEAR(ComputeMetrics({{{1, 1e-320}, 1}}).nll(), 1022 * std::log(2.0), 1e-10);
  EXPECT_NEAR(ComputeMetrics({{{1, 1e-300}, 1}}).nll(), 300 * std::log(10.0), 1e-10);
  EXPECT_EQ(ComputeMetrics({{{1, 0}, 0}}).nll(), 0);
}

TEST(ClassificationMetricsTest, NaNIsWrongWhereverItIs) {
  for (const std::vector<double>& probabilities :
       {std::vector<double>{kNaN, 0.9}, std::vector<double>{0.9, kNaN},
        std::vector<double>{kNaN, kNaN}}) {
    for (const int32_t label : {0, 1}) {
      const ClassificationMetrics metrics = ComputeMetrics(
          {{{0.9, 0.1}, 0}, {probabilities, label}, {{0.9, 0.1}, 0}, {{0.1, 0.9}, 1}});
      EXPECT_EQ(metrics.count(), 4);
      EXPECT_EQ(metrics.accuracy(), 0.75);
      EXPECT_TRUE(std::isnan(metrics.nll()));
      EXPECT_TRUE(std::isnan(metrics.ece()) && std::isnan(metrics.brier()));
    }
  }
}

TEST(ClassificationMetricsTest, NothingHasNoMetrics) {
  const ClassificationMetrics metrics = ComputeMetrics({});
  EXPECT_EQ(metrics.count(), 0);
  EXPECT_TRUE(std::isnan(metrics.accuracy()) && std::isnan(metrics.nll()) &&
              std::isnan(metrics.ece()) && std::isnan(metrics.brier()));
}

TEST(ClassificationMetricsTest, BrierScoresOfTheBestAndTheWorst) {
  EXPECT_EQ(ComputeMetrics({{{0, 1}, 1}}).brier(), 0);
  EXPECT_EQ(ComputeMetrics({{{1, 0}, 1}}).brier(), 2);
  EXPECT_DOUBLE_EQ(ComputeMetrics({{{0.25, 0.25, 0.25, 0.25}, 3}}).brier(), 0.75);
}

std::vector<double> ComputeSoftmax(std::vector<double> logits) {
  std::vector<double> probabilities(logits.size());
  Softmax(logits.data(), static_cast<int64_t>(logits.size()), probabilities.data());
  Softmax(logits.data(), static_cast<int64_t>(logits.size()), logits.data());  // in place
  for (size_t c = 0; c < logits.size(); ++c) {
    EXPECT_TRUE(logits[c] == probabilities[c] || std::isnan(probabilities[c]));
  }
  return probabilities;
}

TEST(SoftmaxTest, IsStable) {
  for (const double shift : {0.0, -1e5, 1e5, 1e300}) {
    if (shift == 1e300) {
      EXPECT_EQ(ComputeSoftmax({shift, -shift, shift}), (std::vector<double>{0.5, 0, 0.5}));
      continue;
    }
    const std::vector<double> p =
        ComputeSoftmax({shift, std::log(2.0) + shift, std::log(5.0) + shift});
    EXPECT_NEAR(p[0], 0.125, 1e-10);
    EXPECT_NEAR(p[1], 0.25, 1e-10);
    EXPECT_NEAR(p[2], 0.625, 1e-10);
  }
  EXPECT_EQ(ComputeSoftmax({3}), (std::vector<double>{1}));
  EXPECT_EQ(ComputeSoftmax({-kInfinity, 1}), (std::vector<double>{0, 1}));
  for (const double bad : {kNaN, kInfinity}) {
    for (const std::vector<double>& logits :
         {std::vector<double>{bad, 0, 1}, std::vector<double>{0, bad, 1}}) {
      const std::vector<double> p = ComputeSoftmax(logits);
      EXPECT_TRUE(std::isnan(p[0]) || std::isnan(p[1])) << bad;
    }
  }
}

}  // namespace
}  // namespace late_phase

// Entropies and AUROC, against values computed by hand and against the definition. Also run under
// the sanitizers; against scikit-learn: tests/program/evaluation_test.py.
#include "models/images/detection.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(EntropyTest, IsShannonsInNats) {
  const double even[] = {0.25, 0.25, 0.25, 0.25}, sure[] = {0, 1, 0}, bad[] = {0.5, kNaN};
  EXPECT_DOUBLE_EQ(Entropy(even, 4), std::log(4.0));
  EXPECT_EQ(Entropy(sure, 3), 0);
  const double two[] = {0.9, 0.1};
  EXPECT_DOUBLE_EQ(Entropy(two, 2), -0.9 * std::log(0.9) - 0.1 * std::log(0.1));
  EXPECT_TRUE(std::isnan(Entropy(bad, 2)));
}

TEST(AurocTest, HandComputed) {
  EXPECT_EQ(Auroc({1, 2}, {3, 4}), 1);
  EXPECT_EQ(Auroc({3, 4}, {1, 2}), 0);
  // Of the six pairs (1,2) (1,4) (3,4) are won, (5,…) and (3,2) are not.
  EXPECT_DOUBLE_EQ(Auroc({1, 3, 5}, {2, 4}), 0.5);
  // Pairs: (1,1) half, (1,3) won, (2,1) lost, (2,3) won.
  EXPECT_DOUBLE_EQ(Auroc({2, 1}, {1, 3}), 2.5 / 4);
}

TEST(AurocTest, EqualScoresAreChance) {
  EXPECT_EQ(Auroc({1, 1, 1}, {1, 1}), 0.5);
  EXPECT_EQ(Auroc({0}, {0}), 0.5);
  EXPECT_TRUE(std::isnan(Auroc({1, kNaN}, {2})));
  EXPECT_TRUE(std::isnan(Auroc({}, {2})) && std::isnan(Auroc({1}, {})) &&
              std::isnan(Auroc({}, {})));
}

TEST(AurocTest, IsTheShareOfPairs) {
  std::mt19937 engine(7);
  for (const int values : {3, 50, 1000000}) {  // many ties, some, none
    std::vector<double> negatives, positives;
    for (int i = 0; i < 211; ++i) negatives.push_back(static_cast<double>(engine() % values));
    for (int i = 0; i < 97; ++i) positives.push_back(static_cast<double>(engine() % values) * 1.2);
    double wins = 0;
    for (const double n : negatives) {
      for (const double p : positives) wins += p > n ? 1 : p == n ? 0.5 : 0;
    }
    EXPECT_NEAR(Auroc(negatives, positives), wins / (211 * 97), 1e-12) << values;
  }
}

TEST(HistogramTest, CountsByEqualParts) {
  EXPECT_EQ(Histogram({0, 0.4, 0.5, 0.99, 1, 1.5, 2, 2.0001, -1e-17, kNaN}, 2, 4),
            (std::vector<int64_t>{3, 2, 1, 3}));
  EXPECT_EQ(Histogram({}, 2, 2), (std::vector<int64_t>{0, 0}));
}

}  // namespace
}  // namespace late_phase

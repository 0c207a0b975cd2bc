// SWAG: its moments against plain loops over the trained weights, its samples' mean and covariance
// against those computed from the moments.
#include "optimizers/swag.h"

#include <cmath>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

using tensorflow::Tensor;
using test_util::Case;
using test_util::Difference;
using test_util::kD;
using test_util::Options;
using test_util::Problem;
using test_util::Values;

constexpr int64_t kRank = 4, kFirst = 3, kEvery = 2;  // samples after minibatches 3, 5, 7, …

Case Swag() {
  Case c{Options(1, 0), UpdateRule::Momentum(0.05), UpdateRule::Sgd(0.1)};
  c.options.swa_start = kFirst;
  c.options.swa_every = kEvery;
  c.options.swag_rank = kRank;
  return c;
}

// All weights of the problem in one vector: theta, then phi.
struct Plain {
  std::vector<Values> samples;

  void Take(Problem* p) {
    const auto state = p->State();
    Values all;
    for (const char* name : {"theta", "phi"}) {
      const auto values = state.at(name).flat<double>();
      all.insert(all.end(), values.data(), values.data() + kD);
    }
    samples.push_back(all);
  }
  // Of the first n samples.
  Values Mean(size_t n, int power = 1) const {
    Values mean(2 * kD);
    for (size_t s = 0; s < n; ++s) {
      for (int64_t i = 0; i < 2 * kD; ++i) mean[i] += std::pow(samples[s][i], power) / n;
    }
    return mean;
  }
};

Values Part(const Values& all, int64_t weight) {
  return Values(all.begin() + weight * kD, all.begin() + (weight + 1) * kD);
}

Plain Trained(Problem* p, int64_t samples) {
  Plain plain;
  EXPECT_THAT(p->run->Initialize(), IsOk());
  for (int64_t s = 0; s < samples; ++s) {
    p->Train(kFirst + s * kEvery);
    plain.Take(p);
  }
  return plain;
}

TEST(SwagTest, MomentsAreThoseOfTheSamplesAndDeviationsARing) {
  for (const int64_t n : {1, 3, 4, 6, 9}) {
    SCOPED_TRACE(n);
    Problem p(Swag());
    const Plain plain = Trained(&p, n);
    p.Train(p.run->step() + 1);  // between two samples nothing changes
    const auto state = p.State();
    const std::string names[] = {"theta", "phi"};
    for (int64_t weight = 0; weight < 2; ++weight) {
      const std::string& name = names[weight];
      EXPECT_LE(Difference(state.at(name + "/swa"), Part(plain.Mean(n), weight)), 1e-14);
      EXPECT_LE(Difference(state.at(name + "/swa_square"), Part(plain.Mean(n, 2), weight)), 1e-14);
      const Tensor& deviations = state.at(name + "/swag_deviations");
      ASSERT_EQ(deviations.NumElements(), kRank * kD);
      for (int64_t row = 0; row < kRank; ++row) {
        // The newest sample whose number is `row` modulo the rank; rows without one are zero.
        int64_t s = n - 1;
        while (s >= 0 && s % kRank != row) --s;
        Values expected(2 * kD);
        if (s >= 0) {
          const Values mean = plain.Mean(s + 1);
          for (int64_t i = 0; i < 2 * kD; ++i) expected[i] = plain.samples[s][i] - mean[i];
        }
        EXPECT_LE(Difference(deviations, Part(expected, weight), row), 1e-14) << name << row;
      }
    }
  }
}

TEST(SwagTest, SamplesHaveTheMeanAndTheCovarianceOfTheMoments) {
  for (const int64_t n : {6, 2, 1}) {  // a full ring; half of one; no low-rank part
    SCOPED_TRACE(n);
    Problem p(Swag());
    Trained(&p, n);
    const auto state = p.State();
    // The covariance from the variables: ½ diag(square − mean²) + ½ D Dᵀ/(R' − 1).
    const int64_t kept = std::min(n, kRank), size = 2 * kD;
    auto at = [&](const std::string& suffix, int64_t row, int64_t i) {
      const Tensor& tensor = state.at((i < kD ? "theta" : "phi") + suffix);
      return tensor.flat<double>()(row * kD + i % kD);
    };
    std::vector<Values> covariance(size, Values(size));
    for (int64_t i = 0; i < size; ++i) {
      covariance[i][i] =
          std::max(at("/swa_square", 0, i) - std::pow(at("/swa", 0, i), 2), 1e-30) / 2;
      for (int64_t j = 0; kept > 1 && j < size; ++j) {
        for (int64_t r = 0; r < kept; ++r) {
          covariance[i][j] +=
              at("/swag_deviations", r, i) * at("/swag_deviations", r, j) / (2.0 * (kept - 1));
        }
      }
    }
    TF_ASSERT_OK_AND_ASSIGN(SwagMoments moments, ReadSwagMoments(p.run.get()));
    EXPECT_EQ(moments.kept, kept);
    constexpr int64_t kSamples = 40000;
    Values mean(size);
    std::vector<Values> products(size, Values(size));
    for (int64_t s = 0; s < kSamples; ++s) {
      const auto weights = SwagSample(moments, /*seed=*/3, s);
      ASSERT_EQ(weights.at("phi").shape(), tensorflow::TensorShape({1, kD}));
      auto off = [&](int64_t i) {
        return weights.at(i < kD ? "theta" : "phi").flat<double>()(i % kD) - at("/swa", 0, i);
      };
      for (int64_t i = 0; i < size; ++i) {
        mean[i] += off(i) / kSamples;
        for (int64_t j = 0; j <= i; ++j) products[i][j] += off(i) * off(j) / kSamples;
      }
    }
    // A sum over N samples is off by √(C_ii / N), √((C_ii C_jj + C_ij²) / N); 5 times that is rare.
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_LE(std::abs(mean[i]), 5 * std::sqrt(covariance[i][i] / kSamples) + 1e-14) << i;
      for (int64_t j = 0; j <= i; ++j) {
        const double spread = covariance[i][i] * covariance[j][j] + std::pow(covariance[i][j], 2);
        EXPECT_NEAR(products[i][j], covariance[i][j], 5 * std::sqrt(spread / kSamples) + 1e-28)
            << i << " " << j;
      }
    }
  }
}

TEST(SwagTest, ASampleIsAFunctionOfSeedAndNumber) {
  Problem p(Swag());
  Trained(&p, 5);
  TF_ASSERT_OK_AND_ASSIGN(SwagMoments moments, ReadSwagMoments(p.run.get()));
  auto bits = [&](int64_t seed, int64_t sample) {
    const auto weights = SwagSample(moments, seed, sample);
    return std::string(weights.at("theta").tensor_data()) +
           std::string(weights.at("phi").tensor_data());
  };
  EXPECT_EQ(bits(3, 7), bits(3, 7));
  EXPECT_NE(bits(3, 7), bits(3, 8));
  EXPECT_NE(bits(3, 7), bits(4, 7));
}

TEST(SwagTest, MomentsSurviveACheckpointBitForBit) {
  const std::string dir = ::testing::TempDir() + "/swag";
  std::filesystem::remove_all(dir);
  Problem whole(Swag()), first(Swag()), second(Swag());
  Trained(&whole, 8);
  Trained(&first, 5);
  ASSERT_THAT(first.run->Save(dir), IsOk());
  ASSERT_THAT(second.run->Restore(dir), IsOk());
  second.Train(whole.run->step());
  const auto a = whole.State(), b = second.State();
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(tensor.tensor_data(), b.at(name).tensor_data()) << name;
  }
}

TEST(SwagErrors, WhatCannotBeIsNamed) {
  auto complaint = [](const LatePhaseOptions& options) {
    return std::string(options.Check().message());
  };
  LatePhaseOptions options = Swag().options;
  options.swag_rank = 1;
  EXPECT_EQ(complaint(options),
            "`swag_rank` must be at least 2, or 0 for no SWAG. Received: swag_rank=1");
  options = Swag().options;
  options.swa_start = -1;
  EXPECT_THAT(complaint(options), HasSubstr("`swag_rank` must be 0 without SWA"));
  options = Swag().options;
  options.members = 3;
  EXPECT_THAT(complaint(options), HasSubstr("`swag_rank` must be 0 with members"));

  Problem early(Swag());
  ASSERT_THAT(early.run->Initialize(), IsOk());
  early.Train(kFirst - 1);
  EXPECT_THAT(ReadSwagMoments(early.run.get()),
              StatusIs(_, "SWA must have taken a sample. Received: none at step 2"));
  Case plain = Swag();
  plain.options.swag_rank = 0;
  Problem without(plain);
  EXPECT_THAT(ReadSwagMoments(without.run.get()),
              StatusIs(_, HasSubstr("the run must collect SWAG's moments")));
}

}  // namespace
}  // namespace late_phase

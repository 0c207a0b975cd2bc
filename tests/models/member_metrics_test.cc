// How far members are apart, where there is something to be left out. What the programs log is
// compared with other programs in tests/program/member_metrics_test.py.
#include "models/training/member_metrics.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using tensorflow::Output;
using test_util::Case;
using test_util::IsOk;
using test_util::kD;
using test_util::kThreads;
using test_util::MakeTensor;
using test_util::Minibatch;
using test_util::Options;
using test_util::Problem;
using test_util::Values;
using ::testing::ElementsAre;
using ::testing::Pair;
namespace tf_ops = tensorflow::ops;

absl::StatusOr<Run::Feeds> Feeds(int64_t t) { return Run::Feeds{{"x", MakeTensor(Minibatch(t))}}; }

TEST(MemberMetricsTest, EqualThePlainLoopAndChangeNothing) {
  Case c{Options(4, 2), UpdateRule::Momentum(0.05), UpdateRule::Adam(0.02), MemberRead::kRow};
  c.options.sigma = 0.4;
  c.options.clip_norm = 0.1;  // scales a gradient, and so no cosine
  Problem p(c);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(9);  // in mid-cycle
  const auto state = p.State();
  const double *theta = state.at("theta").flat<double>().data(),
               *phi = state.at("phi").flat<double>().data();
  double distances = 0, means = 0, cosines = 0;
  std::vector<Values> gradients(4, Values(kD));
  for (int64_t i = 0; i < kD; ++i) {
    const double mean = (phi[i] + phi[kD + i] + phi[2 * kD + i] + phi[3 * kD + i]) / 4;
    means += mean * mean / kD;
    for (int64_t k = 0; k < 4; ++k) {
      const double own = phi[k * kD + i];
      distances += (own - mean) * (own - mean) / (4 * kD);
      gradients[k][i] = (theta[i] * own - Minibatch(9 + k)[i]) * own;
    }
  }
  auto product = [](const Values& a, const Values& b) {
    double sum = 0;
    for (int64_t i = 0; i < kD; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < j; ++k) {
      cosines +=
          product(gradients[j], gradients[k]) /
          std::sqrt(product(gradients[j], gradients[j]) * product(gradients[k], gradients[k])) / 6;
    }
  }
  TF_ASSERT_OK_AND_ASSIGN(const Metrics spread, MemberSpread(p.late_phase, p.run.get()));
  const double expected = std::sqrt(distances / means);
  EXPECT_NEAR(spread.at("member_spread"), expected, 1e-12);
  EXPECT_NEAR(spread.at("member_spread/phi"), expected, 1e-12);
  EXPECT_GT(expected, 0.1);
  TF_ASSERT_OK_AND_ASSIGN(const std::optional<double> agreement,
                          GradientAgreement(p.late_phase, {}, Feeds, p.run.get()));
  ASSERT_TRUE(agreement.has_value());
  EXPECT_NEAR(*agreement, cosines, 1e-12);
  const auto after = p.State();
  for (const auto& [name, tensor] : state) {
    EXPECT_EQ(tensor.tensor_data(), after.at(name).tensor_data()) << name;
  }
}

// φ and ψ are zero and stay so; the loss has no slope in θ then.
TEST(MemberMetricsTest, WhatCannotBeDividedIsLeftOut) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, Options(3, 0), tensorflow::DT_DOUBLE);
  const Output theta = graph.AddBase("theta", MakeTensor({1, 2})),
               phi = graph.AddMembers("phi", MakeTensor({0, 0}), MemberRead::kRow),
               psi = graph.AddMembers("psi", MakeTensor({1, 1}), MemberRead::kRow);
  const auto product = tf_ops::Mul(scope, tf_ops::Mul(scope, theta, phi), psi);
  ASSERT_THAT(
      graph.Minimize(tf_ops::Sum(scope, product, 0), UpdateRule::Sgd(0), UpdateRule::Sgd(0)),
      IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, kThreads));
  ASSERT_THAT(run->Initialize(), IsOk());
  ASSERT_THAT(run->Step({}), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(const Metrics spread, MemberSpread(graph, run.get()));
  EXPECT_THAT(spread, ElementsAre(Pair("member_spread", 0.0), Pair("member_spread/psi", 0.0)));
  TF_ASSERT_OK_AND_ASSIGN(
      const std::optional<double> agreement,
      GradientAgreement(
          graph, {}, [](int64_t) { return late_phase::Run::Feeds(); }, run.get()));
  EXPECT_FALSE(agreement.has_value());
}

}  // namespace
}  // namespace late_phase

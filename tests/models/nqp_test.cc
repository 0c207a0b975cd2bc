// The noisy quadratic problem: cores against plain loops, simulations against closed forms. Fixed
// seeds; also run under the sanitizers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "models/nqp/simulation.h"
#include "models/nqp/theory.h"
#include "tests/support/backwards.h"

namespace late_phase {
namespace {

// What the header says of the noise: element t·n + i of the row, number (place/64) % 4 of counter
// place/256·64 + place%64.
float Normal(const NormalStream& stream, int64_t row, int64_t place) {
  float normals[4];
  FourNormals(stream, static_cast<uint32_t>(row), place / 256 * 64 + place % 64, normals);
  return normals[place / 64 % 4];
}

TEST(NqpNoiseTest, IsTheDocumentedStream) {
  const NormalStream stream = MakeNormalStream(5, 6);
  for (int64_t n : {1, 7, 100, 256, 300}) {
    NqpNoise noise(stream, 3, n);
    for (int64_t t = 0; t < 600; ++t, noise.Advance()) {
      for (int64_t k = 0; k < 3; ++k) {
        for (int64_t i : {int64_t{0}, n / 2, n - 1}) {
          ASSERT_EQ(noise.Row(k)[i], Normal(stream, k, t * n + i)) << "n=" << n << " t=" << t;
        }
      }
    }
  }
}

// Algorithm 1 as the paper writes it, in plain loops with the same noise.
TEST(NqpLatePhaseTest, EqualsPlainLoops) {
  for (int64_t n : {3, 16, 100}) {
    for (int64_t K : {1, 2, 10}) {
      const NqpProblem problem(n, 2, 1.5);
      const NormalStream stream = MakeNormalStream(1, K);
      const double lr = 0.05;
      NqpLatePhase run(problem, K, lr, 0.8, problem.Start(0.5), stream);

      std::vector<double> theta(n), phi(K, 0.8);
      const double target = 1.5 / std::sqrt(n);
      for (double& value : theta) value = target * (1 - 0.5 / 1.5) / 0.8;
      for (int64_t t = 0; t < 1000; ++t) {
        run.Cycle();
        std::vector<double> sum(n);
        for (int64_t k = 0; k < K; ++k) {
          double dphi = 0;
          for (int64_t i = 0; i < n; ++i) {
            // H (w − w* + ε/√B), ε ~ N(0, H⁻¹)
            const double h = 1.0 / (i + 1), epsilon = Normal(stream, k, t * n + i) / std::sqrt(h);
            const double g = h * (theta[i] * phi[k] - target + epsilon / std::sqrt(2.0));
            dphi += theta[i] * g;
            sum[i] += phi[k] * g;
          }
          phi[k] -= lr * dphi;
        }
        for (int64_t i = 0; i < n; ++i) theta[i] -= lr / K * sum[i];
      }
      double mean = 0, loss = 0;
      for (int64_t k = 0; k < K; ++k) {
        EXPECT_NEAR(run.phi()[k], phi[k], 1e-11);
        mean += phi[k] / K;
      }
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(run.theta()[i], theta[i], 1e-11);
        loss += 0.5 / (i + 1) * std::pow(theta[i] * mean - target, 2);
      }
      EXPECT_NEAR(run.Loss(), loss, 1e-11);
    }
  }
}

TEST(NqpFullEnsembleTest, EqualsPlainLoops) {
  constexpr int64_t n = 100, K = 3;
  const NqpProblem problem(n, 1, 1);
  const NormalStream stream = MakeNormalStream(1, 1);
  NqpFullEnsemble run(problem, K, 0.05, problem.Start(1), stream);
  std::vector<double> w(K * n);
  for (int64_t t = 0; t < 500; ++t) {
    run.Step();
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        const double h = 1.0 / (i + 1), z = Normal(stream, k, t * n + i);
        w[k * n + i] -= 0.05 * (h * (w[k * n + i] - 0.1) + std::sqrt(h) * z);
      }
    }
  }
  for (int64_t i = 0; i < K * n; ++i) EXPECT_NEAR(run.w()[i], w[i], 1e-12);
  std::vector<double> losses(2);
  run.AddLosses({1, 3}, &losses);
  double one = 0, three = 0;
  for (int64_t i = 0; i < n; ++i) {
    one += 0.5 / (i + 1) * std::pow(w[i] - 0.1, 2);
    three += 0.5 / (i + 1) * std::pow((w[i] + w[n + i] + w[2 * n + i]) / 3 - 0.1, 2);
  }
  EXPECT_NEAR(losses[0], one, 1e-12);
  EXPECT_NEAR(losses[1], three, 1e-12);
}

// One coordinate, by hand: x ← (1 − lr) x + lr z has variance lr²/(1 − (1 − lr)²).
TEST(NqpTheoryTest, ClosedFormOfOneCoordinate) {
  const NqpProblem problem(1, 4, 1);
  EXPECT_NEAR(FullEnsembleLoss(problem, 0.5, 3), 0.5 * 0.25 / 0.75 / 12, 1e-15);
}

// The error against its definition, Σ_s Σ_t Cov(½hx_s², ½hx_t²)/N², summed term by term.
TEST(NqpTheoryTest, StandardErrorIsTheSumOfCovariances) {
  const NqpProblem problem(5, 1, 1);
  for (double lr : {1e-6, 1e-3, 0.3}) {
    for (int64_t N : {1, 2, 50}) {
      double variance = 0;
      for (int64_t i = 1; i <= 5; ++i) {
        const double h = 1.0 / i, a = 1 - lr * h, C = lr * lr * h / (1 - a * a);
        for (int64_t s = 0; s < N; ++s) {
          for (int64_t t = 0; t < N; ++t) {
            variance +=
                0.5 * h * h * C * C * std::pow(a, 2 * std::abs(s - t)) / (double(N) * double(N));
          }
        }
      }
      EXPECT_NEAR(FullEnsembleStandardError(problem, lr, 1, N, 3) / std::sqrt(variance / 3), 1,
                  1e-6)
          << "lr=" << lr << " N=" << N;
    }
  }
}

TEST(NqpTheoryTest, FormulasOfLatePhaseWeights) {
  const NqpProblem problem(100, 1, 1);
  // H_100 = 5.18738, w*ᵀHw* a hundredth of it.
  EXPECT_NEAR(LatePhaseLoss(problem, 2e-4, 1, 1), 5e-5 * (5.187378 + 0.05187378), 1e-9);
  EXPECT_NEAR(LatePhaseLoss(problem, 2e-4, 1, 25) * 25, LatePhaseLoss(problem, 2e-4, 1, 1), 1e-15);
  EXPECT_NEAR(LatePhaseLongRunLoss(problem, 0.05, 4) * 4, 0.0125 * 0.5187378 * 2.5, 1e-8);
  // From the origin φ² grows until θφ = w*: φ² = (1 + √5)/2.
  EXPECT_NEAR(SettledPhi(problem, 1, 1), std::sqrt((1 + std::sqrt(5.0)) / 2), 1e-14);
  EXPECT_NEAR(SettledPhi(problem, 1, 0), 1, 1e-14);
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The experiment itself, smaller: ten coordinates, whose slowest is ten times as fast, and five
// times the preset's learning rate show the same in a twentieth of the updates.
TEST(NqpTest, EnsembleMatchesClosedFormAndLatePhaseFallsAsOneOverK) {
  NqpOptions options;
  options.n = 10;
  options.lr = 1e-3;
  options.iterations = 30000;
  options.average_last = 15000;
  options.drift_iterations = 6000;
  options.drift_average_last = 3000;
  const NqpResults results = RunNqp(options, test_util::Backwards(2), [](double) {});
  const NqpProblem problem(options.n, options.batch, options.target_norm);
  double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
  const size_t count = options.members.size();
  for (size_t j = 0; j < count; ++j) {
    const int64_t K = options.members[j];
    const double error =
        FullEnsembleStandardError(problem, options.lr, K, options.average_last, options.seeds);
    EXPECT_NEAR(Mean(results.full_ensemble[j]), FullEnsembleLoss(problem, options.lr, K), 4 * error)
        << "K=" << K;
    mean_x += std::log(K) / count;
    mean_y += std::log(Mean(results.late_phase[j])) / count;
  }
  for (size_t j = 0; j < count; ++j) {
    const double x = std::log(options.members[j]) - mean_x;
    xy += x * (std::log(Mean(results.late_phase[j])) - mean_y);
    xx += x * x;
  }
  EXPECT_NEAR(xy / xx, -1, 0.1);
  // The long run: no longer 1/K. The formula is of first order in the learning rate, which is large
  // here.
  for (size_t j = 0; j < count; ++j) {
    const double theory = LatePhaseLongRunLoss(problem, options.drift_lr, options.members[j]);
    EXPECT_NEAR(Mean(results.drift[j]) / theory, 1, 0.35) << "K=" << options.members[j];
  }
}

TEST(NqpTest, ResultsDoNotDependOnThreadsAndProgressAddsUp) {
  NqpOptions options;
  options.members = {1, 3};
  options.seeds = 2;
  options.n = 12;
  options.iterations = 250;
  options.average_last = 50;
  options.drift_iterations = 100;
  options.drift_average_last = 10;
  double done = 0;
  const NqpResults one = RunNqp(options, {}, [&](double share) { done += share; });
  EXPECT_NEAR(done, 1, 1e-9);
  const NqpResults other = RunNqp(options, test_util::Backwards(2), [](double) {});
  EXPECT_EQ(one.late_phase, other.late_phase);
  EXPECT_EQ(one.full_ensemble, other.full_ensemble);
  EXPECT_EQ(one.drift, other.drift);
  options.seed = 1;  // the second seed of one run is the first of the next
  EXPECT_EQ(RunNqp(options, {}, [](double) {}).late_phase[1][0], one.late_phase[1][1]);
  options.drift_iterations = 0;
  EXPECT_EQ(RunNqp(options, {}, [](double) {}).drift[0][0], 0);
}

}  // namespace
}  // namespace late_phase

// Dropout and ShakeDrop: their values, gradients and means, and that random numbers are functions
// of the noise that is fed.
#include "models/images/networks/random_layers.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/images/networks/layer_weights.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tests/support/graph_runner.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Scope;
using tensorflow::Tensor;
using test_util::MakeTensor;
using test_util::RunGraph;

// Draws, and has no weights.
class Draws : public LayerWeights {
 public:
  Draws(const Scope& scope, Output noise) : LayerWeights(scope, {}, tensorflow::DT_DOUBLE, noise) {}
  Output BatchNorm(const std::string&, Output x, int64_t, Activation) override { return x; }

 protected:
  Output Weight(Part, const std::string&, const tensorflow::TensorShape&, const Initial&) override {
    return Output();
  }
  Output ImageMembers(Output) override { return Output(); }
};

Output NoisePlaceholder(const Scope& scope) {
  return tf_ops::Placeholder(scope.WithOpName("noise"), tensorflow::DT_INT64,
                             tf_ops::Placeholder::Shape({2}));
}

std::vector<double> Fetch(const Scope& scope, Output what, int64_t seed, int64_t t) {
  std::vector<Tensor> results;
  const absl::Status status =
      RunGraph(scope, {{"noise", MakeTensor<int64_t>({2}, std::vector<int64_t>{seed, t})}}, {what},
               &results);
  EXPECT_THAT(status, IsOk());
  return status.ok() ? test_util::Values<double>(results[0]) : std::vector<double>();
}

TEST(DropoutTest, DropsAShareAndScalesTheRest) {
  constexpr int64_t kNumbers = 20000;
  constexpr double kRate = 0.3;
  const Scope scope = Scope::NewRootScope();
  Draws draws(scope, NoisePlaceholder(scope));
  const Output x = tf_ops::Const(
      scope, Tensor(MakeTensor<double>({4, kNumbers / 4}, std::vector<double>(kNumbers, 2.0))));
  const Output once = Dropout(scope, x, kRate, &draws), again = Dropout(scope, x, kRate, &draws);
  const std::vector<double> y = Fetch(scope, once, 7, 3);
  int64_t dropped = 0;
  for (const double value : y) {
    if (value == 0) {
      ++dropped;
    } else {
      ASSERT_DOUBLE_EQ(value, 2 / (1 - kRate));
    }
  }
  // A share's standard deviation is √(0.3·0.7 / 20000) = 0.0032.
  EXPECT_NEAR(1.0 * dropped / kNumbers, kRate, 0.015);
  EXPECT_EQ(y, Fetch(scope, once, 7, 3));
  EXPECT_NE(y, Fetch(scope, once, 7, 4));   // another minibatch
  EXPECT_NE(y, Fetch(scope, once, 8, 3));   // another seed
  EXPECT_NE(y, Fetch(scope, again, 7, 3));  // another layer
}

// A linear network's mean over many samples is the network without dropout, with dropout in two
// places, too: E[A (m1 ∘ x)] = A x.
TEST(DropoutTest, TheMeanOverSamplesOfALinearNetworkIsTheDeterministicOne) {
  constexpr int kSamples = 1500;
  const Scope scope = Scope::NewRootScope();
  const Output noise = NoisePlaceholder(scope);
  const Output x = tf_ops::Const(scope, {{1.0, -2.0, 3.0}}),
               a = tf_ops::Const(scope, {{1.0, 0.5}, {0.25, 2.0}, {-1.0, 1.0}}),
               b = tf_ops::Const(scope, {{2.0}, {-1.0}});
  auto network = [&](Output fed) -> Output {
    Draws draws(scope, fed);
    Output y = tf_ops::MatMul(scope, Dropout(scope, x, 0.2, &draws), a);
    return tf_ops::MatMul(scope, Dropout(scope, y, 0.5, &draws), b);
  };
  const Output sampled = network(noise), exact = network(Output());
  const double expected = Fetch(scope, exact, 0, 0)[0];
  EXPECT_DOUBLE_EQ(expected, 2 * (1 - 0.5 - 3) - (0.5 - 4 + 3));
  // All samples in one session.
  tensorflow::GraphDef graph;
  ASSERT_THAT(scope.ToGraphDef(&graph), IsOk());
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession({}));
  ASSERT_THAT(session->Create(graph), IsOk());
  double sum = 0, squares = 0;
  for (int64_t s = 0; s < kSamples; ++s) {
    std::vector<Tensor> results;
    ASSERT_THAT(session->Run({{"noise", MakeTensor<int64_t>({2}, std::vector<int64_t>{-1, s})}},
                             {sampled.name()}, {}, &results),
                IsOk());
    const double y = results[0].flat<double>()(0);
    sum += y;
    squares += y * y;
  }
  const double mean = sum / kSamples, deviation = std::sqrt(squares / kSamples - mean * mean);
  EXPECT_GT(deviation, 1);
  EXPECT_NEAR(mean, expected, 4 * deviation / std::sqrt(1.0 * kSamples));
}

// Per minibatch a block lives, and nothing changes, or it dies: then every image has a factor of
// its own, one forward and another one backward.
TEST(ShakeDropTest, ForwardAndBackwardHaveFactorsOfTheirOwn) {
  constexpr int64_t kImages = 50, kPixels = 2 * 3 * 4;
  constexpr double kDeath = 0.4;
  const Scope scope = Scope::NewRootScope();
  Draws draws(scope, NoisePlaceholder(scope));
  std::vector<double> numbers(kImages * kPixels);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1.0 + i % 7;
  const Output x = tf_ops::Const(scope, Tensor(MakeTensor<double>({kImages, 2, 3, 4}, numbers)));
  const Output y = ShakeDrop(scope, x, kDeath, &draws);
  std::vector<Output> gradients;
  ASSERT_THAT(tensorflow::AddSymbolicGradients(scope, {y}, {x}, &gradients), IsOk());
  constexpr int kSteps = 100;
  int died = 0;
  double alpha_sum = 0, beta_sum = 0, alpha_least = 1, beta_least = 1;
  for (int64_t t = 0; t < kSteps; ++t) {
    std::vector<Tensor> results;
    ASSERT_THAT(RunGraph(scope, {{"noise", MakeTensor<int64_t>({2}, std::vector<int64_t>{5, t})}},
                         {y, gradients[0]}, &results),
                IsOk());
    const std::vector<double> values = test_util::Values<double>(results[0]),
                              backward = test_util::Values<double>(results[1]);
    const bool lives = values == numbers;
    died += !lives;
    for (int64_t i = 0; i < kImages; ++i) {
      const double alpha = values[i * kPixels] / numbers[i * kPixels], beta = backward[i * kPixels];
      for (int64_t j = i * kPixels; j < (i + 1) * kPixels; ++j) {
        ASSERT_NEAR(values[j], alpha * numbers[j], 1e-12);
        ASSERT_NEAR(backward[j], lives ? 1 : beta, 1e-12);
      }
      if (lives) continue;
      ASSERT_TRUE(alpha >= -1 && alpha <= 1 && beta >= 0 && beta <= 1) << alpha << " " << beta;
      alpha_sum += alpha;
      beta_sum += beta;
      alpha_least = std::min(alpha_least, alpha);
      beta_least = std::min(beta_least, beta);
    }
  }
  // Standard deviation of a share of 100: 0.049; of means of some 2000 factors: 0.013 and 0.006.
  EXPECT_NEAR(1.0 * died / kSteps, kDeath, 0.2);
  EXPECT_NEAR(alpha_sum / (died * kImages), 0, 0.06);
  EXPECT_NEAR(beta_sum / (died * kImages), 0.5, 0.03);
  EXPECT_LT(alpha_least, -0.95);
  EXPECT_LT(beta_least, 0.05);
}

TEST(ShakeDropTest, AnEvaluationHasTheMeanOfTheForwardFactor) {
  const Scope scope = Scope::NewRootScope();
  Draws draws(scope, Output());
  NoisePlaceholder(scope);
  const Output x = tf_ops::Reshape(scope, tf_ops::Const(scope, {1.0, -3.0}), {2, 1, 1, 1});
  EXPECT_EQ(Fetch(scope, ShakeDrop(scope, x, 0.25, &draws), 0, 0),
            (std::vector<double>{0.75, -2.25}));
}

}  // namespace
}  // namespace late_phase

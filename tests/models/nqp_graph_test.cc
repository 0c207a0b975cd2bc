// The noisy quadratic problem as a TensorFlow graph under the C++ optimizer library: 1,000
// minibatches equal those of the simulation, which runs on the TensorFlow-free cores.
#include <cmath>

#include "gtest/gtest.h"
#include "models/nqp/simulation.h"
#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

Tensor Vector(const std::vector<double>& values) {
  Tensor tensor(tensorflow::DT_DOUBLE, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.flat<double>().data());
  return tensor;
}

void ExpectSameAsGraph(int64_t K, double lr) {
  const NqpProblem problem(/*n=*/100, /*batch=*/1, /*target_norm=*/1.0);
  const std::vector<double> start = problem.Start(/*distance=*/0.5);
  const NormalStream stream = MakeNormalStream(3, 4);
  NqpLatePhase simulation(problem, K, lr, /*phi=*/1.0, start, stream);

  auto scope = tensorflow::Scope::NewRootScope();
  LatePhaseOptions options;
  options.members = K;
  options.base_scale = 1.0 / static_cast<double>(K);
  LatePhase graph(scope, options, tensorflow::DT_DOUBLE);
  const Output theta = graph.AddBase("theta", Vector(start));
  const Output phi = graph.AddMembers("phi", Vector({1.0}), MemberRead::kRow);
  const Output noise = tf_ops::Placeholder(scope.WithOpName("noise"), tensorflow::DT_DOUBLE);
  // L̂ = ½ Σ h (θφ − w* + ε)², ε = z/√h, of which the simulation knows the gradient.
  const auto shift = tf_ops::Sub(scope, tf_ops::Mul(scope, theta, phi), Vector(problem.target));
  const auto square = tf_ops::Square(scope, tf_ops::Add(scope, shift, noise));
  const auto loss =
      tf_ops::Mul(scope, tf_ops::Sum(scope, tf_ops::Mul(scope, square, Vector(problem.h)), 0), 0.5);
  ASSERT_THAT(graph.Minimize(loss, UpdateRule::Sgd(lr), UpdateRule::Sgd(lr)), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Run> run, Run::Create(graph, /*threads=*/1));
  ASSERT_THAT(run->Initialize(), IsOk());

  NqpNoise draws(stream, K, problem.n);
  while (run->step() + K <= 1000) {
    for (int64_t k = 0; k < K; ++k) {
      std::vector<double> epsilon(problem.n);
      for (int64_t i = 0; i < problem.n; ++i) {
        epsilon[i] = draws.Row(k)[i] * problem.noise[i] / problem.h[i];
      }
      ASSERT_THAT(run->Step({{"noise", Vector(epsilon)}}), IsOk());
    }
    draws.Advance();
    simulation.Cycle();
  }
  TF_ASSERT_OK_AND_ASSIGN(std::vector<Tensor> state,
                          run->Fetch({}, {theta.name(), graph.saved()[2].read}));
  ASSERT_EQ(graph.saved()[2].name, "phi");
  for (int64_t i = 0; i < problem.n; ++i) {
    EXPECT_NEAR(state[0].flat<double>()(i), simulation.theta()[i], 1e-12) << "theta " << i;
  }
  for (int64_t k = 0; k < K; ++k) {
    EXPECT_NEAR(state[1].flat<double>()(k), simulation.phi()[k], 1e-12) << "phi " << k;
  }
}

TEST(NqpGraph, OneMember) { ExpectSameAsGraph(1, 0.01); }
TEST(NqpGraph, TenMembers) { ExpectSameAsGraph(10, 0.01); }
TEST(NqpGraph, MoreMembersThanDivideTheSteps) { ExpectSameAsGraph(7, 0.05); }

}  // namespace
}  // namespace late_phase

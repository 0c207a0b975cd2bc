// A problem small enough to write down, as the C++ library builds and runs it:
//
//   L(θ, φ; x) = ½ Σ_i (θ_i φ_i − x_i)²,   a new x fed in every minibatch.
#ifndef LATE_PHASE_TESTS_OPTIMIZERS_PRODUCT_PROBLEM_H_
#define LATE_PHASE_TESTS_OPTIMIZERS_PRODUCT_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace test_util {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using Values = std::vector<double>;

constexpr int64_t kD = 7;

inline Tensor MakeTensor(const Values& values) {
  Tensor tensor(tensorflow::DT_DOUBLE, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.flat<double>().data());
  return tensor;
}

inline Values Random(std::mt19937_64* engine, double low, double high) {
  std::uniform_real_distribution<double> uniform(low, high);
  Values values(kD);
  for (double& value : values) value = uniform(*engine);
  return values;
}

inline Values Minibatch(int64_t t) {
  std::mt19937_64 engine(1000 + t);
  return Random(&engine, -1, 1);
}

// Of every session of a test's process (optimizers/session.h).
constexpr int kThreads = 2;

struct Case {
  LatePhaseOptions options;
  UpdateRule base = UpdateRule::Sgd(0.1), members = UpdateRule::Sgd(0.1);
  MemberRead read = MemberRead::kRow;
};

// The graph and its session.
struct Problem {
  explicit Problem(const Case& c, Workers* workers = nullptr)
      : scope(tensorflow::Scope::NewRootScope()),
        late_phase(scope, c.options, tensorflow::DT_DOUBLE, workers) {
    std::mt19937_64 engine(1);
    theta0 = Random(&engine, 0.5, 1.5);
    phi0 = Random(&engine, 0.5, 1.5);
    const Output x = tf_ops::Placeholder(scope.WithOpName("x"), tensorflow::DT_DOUBLE,
                                         tf_ops::Placeholder::Shape({kD}));
    const Output theta = late_phase.AddBase("theta", MakeTensor(theta0));
    Output phi = late_phase.AddMembers("phi", MakeTensor(phi0), c.read);
    if (c.read == MemberRead::kStack && scope.ok()) {
      const auto choice = tf_ops::OneHot(scope, tf_ops::Reshape(scope, late_phase.member(), {1}),
                                         static_cast<int>(c.options.members), 1.0, 0.0);
      phi = tf_ops::Reshape(scope, tf_ops::MatMul(scope, choice, phi), {static_cast<int>(kD)});
    }
    if (!scope.ok()) return;
    const auto error = tf_ops::Sub(scope, tf_ops::Mul(scope, theta, phi), x);
    const auto loss = tf_ops::Mul(scope.WithOpName("loss"),
                                  tf_ops::Sum(scope, tf_ops::Square(scope, error), 0), 0.5);
    status = late_phase.Minimize(loss, c.base, c.members);
    if (!status.ok()) return;
    for (auto [name, set] :
         {std::pair("current", WeightSet::kCurrent), std::pair("collapsed", WeightSet::kCollapsed),
          std::pair("swa", WeightSet::kSwa)}) {
      if (set == WeightSet::kSwa && c.options.swa_start < 0) continue;
      sets[name] = {late_phase.Read("theta", set).name(), late_phase.Read("phi", set).name()};
    }
    absl::StatusOr<std::unique_ptr<Run>> made =
        Run::Create(late_phase, kThreads, {{"problem", "product"}});
    status = made.status();
    if (status.ok()) run = *std::move(made);
  }

  void Train(int64_t until) {
    while (run->step() < until) {
      ASSERT_THAT(run->Step({{"x", MakeTensor(Minibatch(run->step()))}}), IsOk());
    }
  }

  // Every variable by name.
  std::map<std::string, Tensor> State() {
    std::vector<std::string> reads;
    for (const auto& saved : late_phase.saved()) reads.push_back(saved.read);
    std::vector<Tensor> values = ExpectValue(run->Fetch({}, reads));
    std::map<std::string, Tensor> state;
    for (size_t i = 0; i < reads.size(); ++i) state[late_phase.saved()[i].name] = values[i];
    return state;
  }

  std::vector<Tensor> Weights(const std::string& set) {
    std::vector<Tensor> values =
        ExpectValue(run->Fetch({}, {sets.at(set).first, sets.at(set).second}));
    return values;
  }

  tensorflow::Scope scope;
  LatePhase late_phase;
  absl::Status status;
  std::map<std::string, std::pair<std::string, std::string>> sets;
  std::unique_ptr<Run> run;
  Values theta0, phi0;
};

inline double Difference(const Tensor& actual, const Values& expected, int64_t row = 0) {
  double worst = 0;
  for (int64_t i = 0; i < kD; ++i)
    worst = std::max(worst, std::abs(actual.flat<double>()(row * kD + i) - expected[i]));
  return worst;
}

inline LatePhaseOptions Options(int64_t members, int64_t start, double base_scale = 1) {
  LatePhaseOptions options;
  options.members = members;
  options.start = start;
  options.base_scale = base_scale;
  return options;
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_OPTIMIZERS_PRODUCT_PROBLEM_H_

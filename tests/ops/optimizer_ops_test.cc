// The C++ wrappers of the member and base updates and of the ops on members: each runs once in a
// C++ session against plain loops. What the ops compute in general: optimizer_ops_python_test.py.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/member_rows.h"
#include "ops/update_rules.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tensorflow/core/public/session.h"
#include "tests/support/graph_runner.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Tensor;
using test_util::IsOk;
using test_util::MakeTensor;
using test_util::StatusIs;
using test_util::Values;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kRate = 0.25, kMomentum = 0.5, kDecay = 0.125, kScale = 0.5;
constexpr double kBeta1 = 0.75, kBeta2 = 0.5, kEpsilon = 1e-3;
const std::vector<double> kWeights = {1, -2, 3, 4, 5, -6};  // two members of three weights
const std::vector<double> kGradient = {0.5, 1, -2};

// A graph with double variables and a session that keeps them.
class OptimizerOps : public ::testing::Test {
 protected:
  Output Variable(const std::string& name, const Tensor& value) {
    const Output handle = tensorflow::ops::VarHandleOp(
        scope_, value.dtype(), value.shape(), tensorflow::ops::VarHandleOp::SharedName(name));
    initialise_.push_back(
        tensorflow::ops::AssignVariableOp(scope_, handle, value).operation.node()->name());
    return handle;
  }

  Output Variable(const std::string& name, const std::vector<int64_t>& dims,
                  const std::vector<double>& values) {
    return Variable(name, MakeTensor<double>(dims, values));
  }

  Output Zeros(const std::string& name, const std::vector<int64_t>& dims) {
    return Variable(name, dims, std::vector<double>(6, 0));
  }

  Output Counts(const std::string& name, const std::vector<int64_t>& dims) {
    return Variable(name, MakeTensor<int64_t>(dims, std::vector<double>(2, 0)));
  }

  // Initialises the variables, runs the targets one after the other, and returns an output.
  absl::StatusOr<std::vector<double>> Run(const std::vector<Operation>& targets,
                                          const Output& output) {
    tensorflow::GraphDef graph;
    TF_RETURN_IF_ERROR(scope_.ToGraphDef(&graph));
    tensorflow::SessionOptions options;
    (*options.config.mutable_device_count())["CPU"] = 2;
    std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
    TF_RETURN_IF_ERROR(session->Create(graph));
    if (!initialise_.empty()) TF_RETURN_IF_ERROR(session->Run({}, {}, initialise_, nullptr));
    for (const Operation& target : targets) {
      TF_RETURN_IF_ERROR(session->Run({}, {}, {target.node()->name()}, nullptr));
    }
    std::vector<Tensor> results;
    TF_RETURN_IF_ERROR(session->Run({}, {output.name()}, {}, &results));
    return Values<double>(results[0]);
  }

  void ExpectVariable(const std::vector<Operation>& targets, const Output& variable,
                      const std::vector<double>& expected) {
    const Output read = tensorflow::ops::ReadVariableOp(scope_, variable, tensorflow::DT_DOUBLE);
    const absl::StatusOr<std::vector<double>> values = Run(targets, read);
    ASSERT_THAT(values, IsOk());
    ASSERT_EQ(values->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR((*values)[i], expected[i], 1e-13) << "element " << i;
    }
  }

  // The first update of a rule, whose slots are zero, on weight w with gradient g.
  static double Momentum(double w, double g, bool use_nesterov) {
    g += kDecay * w;
    return w - kRate * (use_nesterov ? g + kMomentum * g : g);
  }
  static double Adam(double w, double g) {
    g += kDecay * w;
    const double m = (1 - kBeta1) * g, v = (1 - kBeta2) * g * g;
    return w - kRate * std::sqrt(1 - kBeta2) / (1 - kBeta1) * m / (std::sqrt(v) + kEpsilon);
  }

  // kWeights with update(w, g) applied to row 1.
  template <typename Update>
  static std::vector<double> WithRowOne(Update update) {
    std::vector<double> expected = kWeights;
    for (int i = 0; i < 3; ++i) expected[3 + i] = update(kWeights[3 + i], kGradient[i]);
    return expected;
  }

  // The first three weights with update(w, γ · 2 g), as after a cycle of two equal gradients.
  template <typename Update>
  static std::vector<double> AfterCycle(Update update) {
    std::vector<double> expected;
    for (int i = 0; i < 3; ++i) {
      expected.push_back(update(kWeights[i], kScale * 2 * kGradient[i]));
    }
    return expected;
  }

  tensorflow::Scope scope_ = tensorflow::Scope::NewRootScope();
  std::vector<std::string> initialise_;
  Tensor grad_ = MakeTensor<double>({3}, kGradient);
};

TEST_F(OptimizerOps, MemberApplySgd) {
  const Output var = Variable("var", {2, 3}, kWeights);
  ExpectVariable({ops::MemberApplySgd(scope_, var, 1, kRate, kDecay, grad_)}, var,
                 WithRowOne([](double w, double g) { return w - kRate * (g + kDecay * w); }));
}

TEST_F(OptimizerOps, MemberApplyMomentum) {
  const Output var = Variable("var", {2, 3}, kWeights);
  ExpectVariable({ops::MemberApplyMomentum(scope_, var, Zeros("accum", {2, 3}), 1, kRate, kMomentum,
                                           kDecay, grad_, true)},
                 var, WithRowOne([](double w, double g) { return Momentum(w, g, true); }));
}

TEST_F(OptimizerOps, MemberApplyAdam) {
  const Output var = Variable("var", {2, 3}, kWeights);
  ExpectVariable({ops::MemberApplyAdam(scope_, var, Zeros("m", {2, 3}), Zeros("v", {2, 3}),
                                       Counts("count", {2}), 1, kRate, kBeta1, kBeta2, kEpsilon,
                                       kDecay, grad_)},
                 var, WithRowOne(Adam));
}

TEST_F(OptimizerOps, BaseApplySgd) {
  const Output var = Variable("var", {3}, kWeights), sum = Zeros("sum", {3});
  std::vector<Operation> cycle;
  for (int member : {0, 1}) {
    cycle.push_back(ops::BaseApplySgd(scope_, var, sum, member, 2, kScale, kRate, kDecay, grad_));
  }
  ExpectVariable(cycle, var,
                 AfterCycle([](double w, double g) { return w - kRate * (g + kDecay * w); }));
}

TEST_F(OptimizerOps, BaseApplyMomentum) {
  const Output var = Variable("var", {3}, kWeights), sum = Zeros("sum", {3});
  const Output accum = Zeros("accum", {3});
  std::vector<Operation> cycle;
  for (int member : {0, 1}) {
    cycle.push_back(ops::BaseApplyMomentum(scope_, var, accum, sum, member, 2, kScale, kRate,
                                           kMomentum, kDecay, grad_, true));
  }
  ExpectVariable(cycle, var, AfterCycle([](double w, double g) { return Momentum(w, g, true); }));
}

TEST_F(OptimizerOps, BaseApplyAdam) {
  const Output var = Variable("var", {3}, kWeights), sum = Zeros("sum", {3});
  const Output m = Zeros("m", {3}), v = Zeros("v", {3}), count = Counts("count", {});
  std::vector<Operation> cycle;
  for (int member : {0, 1}) {
    cycle.push_back(ops::BaseApplyAdam(scope_, var, m, v, count, sum, member, 2, kScale, kRate,
                                       kBeta1, kBeta2, kEpsilon, kDecay, grad_));
  }
  ExpectVariable(cycle, var, AfterCycle(Adam));
}

TEST_F(OptimizerOps, ReadMember) {
  const Output var = Variable("var", {2, 3}, kWeights);
  const auto row = Run({}, ops::ReadMember(scope_, var, 1, tensorflow::DT_DOUBLE));
  ASSERT_THAT(row, IsOk());
  EXPECT_EQ(*row, (std::vector<double>{4, 5, -6}));
}

TEST_F(OptimizerOps, Collapse) {
  const Output var = Variable("var", {2, 3}, kWeights);
  const auto mean = Run({}, ops::Collapse(scope_, var, tensorflow::DT_DOUBLE));
  ASSERT_THAT(mean, IsOk());
  EXPECT_EQ(*mean, (std::vector<double>{2.5, 1.5, -1.5}));
}

TEST_F(OptimizerOps, SpawnWithoutNoiseCopies) {
  const Output var = Variable("var", {2, 3}, kWeights);
  const Tensor seed = MakeTensor<int64_t>({2}, std::vector<double>{1, 2});
  ExpectVariable({ops::Spawn(scope_, var, 0.0, seed)}, var, {1, -2, 3, 1, -2, 3});
}

TEST_F(OptimizerOps, SwaUpdate) {
  const Output average = Variable("average", {3}, {1, 2, 3}),
               source = Variable("source", {3}, {5, 2, -1});
  ExpectVariable({ops::SwaUpdate(scope_, average, source, int64_t{3})}, average, {2, 2, 2});
}

TEST_F(OptimizerOps, UninitialisedVariableIsRefused) {
  const Output var = tensorflow::ops::VarHandleOp(scope_, tensorflow::DT_DOUBLE, {2, 3},
                                                  tensorflow::ops::VarHandleOp::SharedName("var"));
  EXPECT_THAT(
      Run({ops::MemberApplySgd(scope_, var, 1, kRate, kDecay, grad_)}, var),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("LatePhase>MemberApplySgd: `var` must be an initialised variable")));
}

// TensorFlow refuses such a graph before our op sees it.
TEST_F(OptimizerOps, VariablesOfDifferentDevicesAreRefused) {
  const tensorflow::Scope root = scope_;
  scope_ = root.WithDevice("/cpu:0");
  const Output var = Variable("var", {3}, kWeights);
  scope_ = root.WithDevice("/cpu:1");
  const Output sum = Zeros("sum", {3});
  scope_ = root;
  const Operation update = ops::BaseApplySgd(scope_, var, sum, 0, 2, kScale, kRate, kDecay, grad_);
  EXPECT_THAT(Run({update}, var), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("BaseApplySgd"), HasSubstr("CPU:1"))));
}

}  // namespace
}  // namespace late_phase

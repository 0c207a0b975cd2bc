// The state of a run: how it starts, what a minibatch that fails leaves of it, and what it takes
// from elsewhere. Training itself: tests/optimizers/late_phase_test.cc.
#include <filesystem>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::ExpectValue;
using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using test_util::Case;
using test_util::Difference;
using test_util::kD;
using test_util::MakeTensor;
using test_util::Options;
using test_util::Problem;
using test_util::Values;

using State = std::map<std::string, Tensor>;

void ExpectSameBits(const State& actual, const State& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : actual) {
    EXPECT_EQ(tensor.tensor_data(), expected.at(name).tensor_data()) << name;
  }
}

class RunStateTest : public ::testing::Test {
 protected:
  RunStateTest()
      : dir_(std::filesystem::path(::testing::TempDir()) /
             ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(dir_);
  }
  // Three members from step 5 on, with noise.
  Case Noisy() const {
    Case c{Options(3, 5), UpdateRule::Momentum(0.05).WithDecay(0.01), UpdateRule::Adam(0.02)};
    c.options.sigma = 0.3;
    return c;
  }
  State Uninterrupted(const Case& c, int64_t steps) const {
    Problem p(c);
    EXPECT_THAT(p.run->Initialize(), IsOk());
    p.Train(steps);
    return p.State();
  }
  // A minibatch of another shape than the graph's.
  absl::Status FailedStep(Problem* p) const {
    return p->run->Step({{"x", MakeTensor(Values(kD + 1, 1.0))}}).status();
  }
  std::filesystem::path dir_;
};

TEST_F(RunStateTest, TheGraphHoldsNoValuesOfVariables) {
  const TensorShape shape({100, 100});
  auto big = [&](double value) {
    return InitialValue(tensorflow::DT_FLOAT, shape,
                        [=] { return Filled(tensorflow::DT_FLOAT, shape, value); });
  };
  for (const int64_t members : {1, 3}) {
    LatePhaseOptions options = Options(members, 5);
    options.swa_start = 10;
    options.swag_rank = members == 1 ? 2 : 0;
    auto scope = tensorflow::Scope::NewRootScope();
    LatePhase graph(scope, options);
    const Output w = graph.AddBase("w", big(1)),
                 u = graph.AddMembers("u", big(2), MemberRead::kRow);
    graph.AddState("state", InitialValue::Zero(tensorflow::DT_FLOAT, shape));
    ASSERT_THAT(graph.Minimize(tf_ops::Sum(scope, tf_ops::Mul(scope, w, u), {0, 1}),
                               UpdateRule::Adam(0.1), UpdateRule::Momentum(0.1)),
                IsOk());
    tensorflow::GraphDef def;
    ASSERT_THAT(scope.ToGraphDef(&def), IsOk());
    for (const auto& node : def.node()) EXPECT_LT(node.ByteSizeLong(), 1000u) << node.name();
  }
}

TEST_F(RunStateTest, InitialValuesAreMadeAnewWheneverARunIsInitialized) {
  int made = 0;
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, Options(3, 5), tensorflow::DT_DOUBLE);
  const InitialValue initial(tensorflow::DT_DOUBLE, {kD}, [&made] {
    ++made;
    return MakeTensor({1, 2, 3, 4, 5, 6, 7});
  });
  const Output phi = graph.AddMembers("phi", initial, MemberRead::kRow);
  ASSERT_THAT(graph.Minimize(tf_ops::Sum(scope, tf_ops::Square(scope, phi), 0),
                             UpdateRule::Sgd(0.1), UpdateRule::Momentum(0.1)),
              IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, test_util::kThreads));
  EXPECT_EQ(made, 0);
  for (int times = 1; times <= 2; ++times) {
    ASSERT_THAT(run->Initialize(), IsOk());
    EXPECT_EQ(made, times);
    TF_ASSERT_OK_AND_ASSIGN(std::vector<Tensor> values, run->Fetch({}, {graph.saved()[1].read}));
    ASSERT_EQ(values[0].shape(), TensorShape({3, kD}));
    for (int64_t k = 0; k < 3; ++k) {
      EXPECT_EQ(Difference(values[0], {1, 2, 3, 4, 5, 6, 7}, k), 0) << "row " << k;
    }
    values.clear();
    ASSERT_THAT(run->Step({}), IsOk());
  }
}

TEST_F(RunStateTest, SumsAreKeptOnlyWhereThereIsSomethingToAddUp) {
  auto has_sum = [](const LatePhaseOptions& options) {
    Problem p({options, UpdateRule::Adam(0.1)});
    EXPECT_THAT(p.status, IsOk());
    EXPECT_THAT(p.run->Initialize(), IsOk());
    p.Train(7);
    return p.State().count("theta/sum") == 1;
  };
  LatePhaseOptions accumulation = Options(1, 5);
  accumulation.cycle = 3;
  EXPECT_FALSE(has_sum(Options(1, 5)));
  EXPECT_TRUE(has_sum(Options(3, 5)));
  EXPECT_TRUE(has_sum(accumulation));
}

TEST_F(RunStateTest, AStepThatFailsAtT0IsRepeatedWithoutSpawningAgain) {
  const State expected = Uninterrupted(Noisy(), 12);
  Problem p(Noisy());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(5);
  for (int twice = 0; twice < 2; ++twice) {
    ASSERT_THAT(FailedStep(&p), Not(IsOk()));
    EXPECT_EQ(p.run->step(), 5);
  }
  // The members are there, and are what is evaluated and saved.
  const State spawned = p.State();
  Values mean(kD);
  for (int64_t i = 0; i < 3 * kD; ++i) mean[i % kD] += spawned.at("phi").flat<double>()(i) / 3;
  EXPECT_GT(Difference(spawned.at("phi"), mean, 1), 0.01);
  EXPECT_LE(Difference(p.Weights("collapsed")[1], mean), 1e-15);
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  p.Train(12);
  ExpectSameBits(p.State(), expected);

  Problem resumed(Noisy());
  ASSERT_THAT(resumed.run->Restore(dir_), IsOk());
  resumed.Train(12);
  ExpectSameBits(resumed.State(), expected);

  Problem other(Noisy());
  ASSERT_THAT(other.run->StartFrom(dir_), IsOk());
  EXPECT_LE(Difference(other.State().at("phi"), mean, 2), 1e-15);
}

TEST_F(RunStateTest, ACheckpointOfT0SpawnsAfterRestoring) {
  const State expected = Uninterrupted(Noisy(), 9);
  Problem p(Noisy());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(5);
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  p.Train(9);
  // Back to before the spawning, in the same run.
  ASSERT_THAT(p.run->Restore(dir_), IsOk());
  p.Train(9);
  ExpectSameBits(p.State(), expected);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(9);
  ExpectSameBits(p.State(), expected);
}

// Neither what the failure has nothing to do with is written, nor what `before` writes.
TEST_F(RunStateTest, AMinibatchThatCannotBeComputedChangesNothing) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, Options(3, 2), tensorflow::DT_DOUBLE);
  auto weight = [](double value) { return MakeTensor(Values(kD, value)); };
  const Output theta = graph.AddBase("theta", weight(1)),
               phi = graph.AddMembers("phi", weight(2), MemberRead::kRow);
  const Output first = graph.AddState("first", weight(3)),
               second = graph.AddState("second", weight(4));
  const Output x = tf_ops::Placeholder(scope.WithOpName("x"), tensorflow::DT_DOUBLE,
                                       tf_ops::Placeholder::Shape({kD}));
  const auto half = tf_ops::Mul(scope, theta, phi);
  const std::vector<tensorflow::Operation> before = {
      tf_ops::AssignVariableOp(scope, first, half).operation,
      tf_ops::AssignVariableOp(scope, second, tf_ops::CheckNumerics(scope, x, "x")).operation};
  ASSERT_THAT(graph.Minimize(tf_ops::Sum(scope, half, 0), UpdateRule::Adam(0.1),
                             UpdateRule::Momentum(0.1), before),
              IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, test_util::kThreads));
  ASSERT_THAT(run->Initialize(), IsOk());
  auto state = [&] {
    State values;
    for (const auto& saved : graph.saved()) {
      std::vector<Tensor> value = ExpectValue(run->Fetch({}, {saved.read}));
      values[saved.name] = tensorflow::tensor::DeepCopy(value[0]);
    }
    return values;
  };
  for (const int64_t t : {0, 3}) {
    while (run->step() < t) ASSERT_THAT(run->Step({{"x", weight(5)}}), IsOk());
    const State before_failure = state();
    EXPECT_THAT(run->Step({{"x", weight(std::numeric_limits<double>::quiet_NaN())}}), Not(IsOk()));
    ExpectSameBits(state(), before_failure);
    EXPECT_EQ(run->step(), t);
  }
}

// A step looks names up when they change, not in every step.
TEST_F(RunStateTest, FeedsAndFetchesMayChangeFromStepToStep) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, {}, tensorflow::DT_DOUBLE);
  const Output theta = graph.AddBase("theta", MakeTensor(Values(kD, 1.0)));
  auto product = [&](const char* name) -> Output {
    const auto fed = tf_ops::Placeholder(scope.WithOpName(name), tensorflow::DT_DOUBLE);
    return tf_ops::Sum(scope, tf_ops::Mul(scope, theta, fed), 0);
  };
  const Output loss = product("x"), other = product("y");
  ASSERT_THAT(graph.Minimize(loss, UpdateRule::Sgd(0.0), UpdateRule::Sgd(0.0)), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, test_util::kThreads));
  ASSERT_THAT(run->Initialize(), IsOk());
  EXPECT_TRUE(run->placement().empty());
  auto step = [&](const late_phase::Run::Feeds& feeds, const std::vector<std::string>& fetches) {
    Values values;
    for (const Tensor& output : ExpectValue(run->Step(feeds, fetches))) {
      values.push_back(output.scalar<double>()());
    }
    return values;
  };
  const std::pair<std::string, Tensor> x("x", MakeTensor(Values(kD, 2.0))),
      y("y", MakeTensor(Values(kD, 3.0)));
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(step({x, y}, {loss.name(), other.name()}), Values({2 * kD, 3 * kD}));
    EXPECT_FALSE(run->placement().empty());
    EXPECT_EQ(step({y, x}, {loss.name(), other.name()}), Values({2 * kD, 3 * kD}));
    EXPECT_EQ(step({y, x}, {other.name(), loss.name()}), Values({3 * kD, 2 * kD}));
    EXPECT_EQ(step({x}, {loss.name()}), Values({2 * kD}));
    EXPECT_EQ(step({x}, {}), Values());
  }
  EXPECT_THAT(run->Step({{"nowhere", x.second}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nowhere")));
  EXPECT_EQ(run->step(), 10);
}

TEST_F(RunStateTest, OnlyVariablesOfTheRunAreAssigned) {
  Problem p(Noisy());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  const State before = p.State();
  auto complaint = [&](const std::string& name, const Tensor& value) {
    const absl::Status status =
        p.run->Assign({{"theta", MakeTensor(Values(kD, 9.0))}, {name, value}});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    ExpectSameBits(p.State(), before);
    return std::string(status.message());
  };
  EXPECT_EQ(complaint("tehta", MakeTensor(Values(kD, 1.0))),
            "`variables` must be variables of the run. Received: tehta");
  EXPECT_EQ(complaint("phi", Zeros(tensorflow::DT_FLOAT, {3, kD})),
            "`phi` must be double[3,7]. Received: float[3,7]");
  EXPECT_EQ(complaint("phi", Zeros(tensorflow::DT_DOUBLE, {kD})),
            "`phi` must be double[3,7]. Received: double[7]");
  EXPECT_THAT(p.run->Assign({}), IsOk());
}

TEST_F(RunStateTest, OnlyDeclaredWeightsAreExemptFromDecay) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, {}, tensorflow::DT_DOUBLE);
  graph.AddBase("theta", MakeTensor({1, 2}));
  graph.AddState("state", MakeTensor({1, 2}));
  graph.ExemptFromDecay("theta");
  EXPECT_THAT(scope.status(), IsOk());
  graph.ExemptFromDecay("state");
  EXPECT_THAT(scope.status(),
              StatusIs(_, "`name` must be a declared weight. Received: name=state"));
}

// What 0.1.0 wrote: a sum of every base weight, no mark of the spawning.
TEST_F(RunStateTest, CheckpointsOfTheFirstVersionResume) {
  Case one = Noisy();
  one.options = LatePhaseOptions();
  for (const Case& c : {one, Noisy()}) {
    const State expected = Uninterrupted(c, 12);
    for (const int64_t steps : {0, 5, 7}) {
      std::filesystem::remove_all(dir_);
      Problem p(c);
      ASSERT_THAT(p.run->Initialize(), IsOk());
      p.Train(steps);
      ASSERT_THAT(p.run->Save(dir_), IsOk());
      TF_ASSERT_OK_AND_ASSIGN(CheckpointState state,
                              ReadCheckpoint(LatestCheckpoint(dir_).value_or("none")));
      Settings settings;
      for (const auto& setting : state.settings) {
        if (setting.first != "late_phase/spawned") settings.push_back(setting);
      }
      state.variables.erase("late_phase/spawned");
      if (state.variables.count("theta/sum") == 0) {
        state.variables["theta/sum"] = Zeros(tensorflow::DT_DOUBLE, {kD});
        settings.push_back({"theta/sum", "double[7]"});
      }
      state.settings = settings;
      std::filesystem::remove_all(dir_);
      ASSERT_THAT(WriteCheckpoint(dir_, state), IsOk());
      Problem resumed(c);
      ASSERT_THAT(resumed.run->Restore(dir_), IsOk());
      resumed.Train(12);
      ExpectSameBits(resumed.State(), expected);
      if (c.options.members == 1 && steps <= 5) {
        Problem fork(Noisy());
        EXPECT_THAT(fork.run->Fork(dir_), IsOk());
      }
    }
  }
}

TEST_F(RunStateTest, ACheckpointOfOtherTypesIsRefused) {
  Problem p(Noisy());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  ASSERT_THAT(p.run->Save(dir_), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(CheckpointState good,
                          ReadCheckpoint(LatestCheckpoint(dir_).value_or("none")));
  auto write = [&](const std::string& name, const Tensor& value) {
    std::filesystem::remove_all(dir_);
    CheckpointState state = good;
    state.variables[name] = value;
    ASSERT_THAT(WriteCheckpoint(dir_, state), IsOk());
  };
  auto complaint = [](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(status.message());
  };
  for (const auto& [dtype, type] :
       {std::pair(tensorflow::DT_INT32, "int32"), std::pair(tensorflow::DT_STRING, "string"),
        std::pair(tensorflow::DT_HALF, "half")}) {
    write("phi", Tensor(dtype, {2, kD}));
    const std::string expected =
        absl::StrCat("`phi` must be of type double. Received: type=", type, ", in the checkpoint");
    EXPECT_EQ(complaint(p.run->StartFrom(dir_)), expected);
    EXPECT_EQ(complaint(p.run->Fork(dir_)), expected);
    EXPECT_EQ(complaint(p.run->Restore(dir_).status()),
              absl::StrCat("`phi` must be double[3,7]. Received: ", type, "[2,7]"));
  }
  // Between floating types weights are converted.
  write("theta", Filled(tensorflow::DT_FLOAT, {kD}, 0.5));
  ASSERT_THAT(p.run->StartFrom(dir_), IsOk());
  EXPECT_EQ(Difference(p.State().at("theta"), Values(kD, 0.5)), 0);
  // A variable that is not there.
  std::filesystem::remove_all(dir_);
  CheckpointState state = good;
  state.variables.erase("theta/momentum");
  ASSERT_THAT(WriteCheckpoint(dir_, state), IsOk());
  EXPECT_THAT(complaint(p.run->Restore(dir_).status()), EndsWith("must hold theta/momentum"));
}

TEST_F(RunStateTest, WhatACheckpointSaysOfItselfHasItsTypes) {
  Tensor settings(tensorflow::DT_STRING, {1});
  settings.flat<tensorflow::tstring>()(0) = "members=1";
  const State good = {
      {"late_phase_checkpoint/settings", settings},
      {"late_phase_checkpoint/step", Zeros(tensorflow::DT_INT64, TensorShape())},
      {"late_phase_checkpoint/threads", Zeros(tensorflow::DT_INT64, TensorShape())}};
  auto read = [&](const State& tensors) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    tensorflow::BundleWriter writer(tensorflow::Env::Default(), (dir_ / "state").string());
    for (const auto& [name, tensor] : tensors) EXPECT_THAT(writer.Add(name, tensor), IsOk());
    EXPECT_THAT(writer.Finish(), IsOk());
    return ReadCheckpoint(dir_).status();
  };
  EXPECT_THAT(read(good), IsOk());
  for (const auto& [name, unused] : good) {
    for (const Tensor& wrong :
         {Zeros(tensorflow::DT_FLOAT, {2}), Zeros(tensorflow::DT_INT32, TensorShape())}) {
      State tensors = good;
      tensors[name] = wrong;
      const absl::Status status = read(tensors);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("`" + name + "` must be ")));
    }
  }
}

}  // namespace
}  // namespace late_phase

// Algorithm 1 as the C++ library builds it, against a plain double-precision loop. Checkpoints:
// tests/optimizers/checkpoint_test.cc.
#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optimizers/run.h"
#include "optimizers/session.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"
#include "tensorflow/core/framework/op.h"
#include "tests/optimizers/product_problem.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::ExpectValue;
using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;
using ::testing::Not;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using test_util::Case;
using test_util::Difference;
using test_util::kD;
using test_util::MakeTensor;
using test_util::Minibatch;
using test_util::Options;
using test_util::Problem;
using test_util::Values;

// One array under one rule, in plain loops.
struct Plain {
  Values w, accum = Values(kD), m = Values(kD), v = Values(kD);
  int64_t n = 0;
  void Apply(const UpdateRule& rule, int64_t t, const Values& gradient, double rate_scale,
             double decay_scale = 1) {
    const double lr = rate_scale * rule.lr.At(t);
    ++n;
    for (int64_t i = 0; i < kD; ++i) {
      const double g = gradient[i] + decay_scale * rule.weight_decay.At(t) * w[i];
      if (rule.kind == UpdateRule::Kind::kSgd) {
        w[i] -= lr * g;
      } else if (rule.kind == UpdateRule::Kind::kMomentum) {
        accum[i] = rule.momentum * accum[i] + g;
        w[i] -= lr * (rule.nesterov ? g + rule.momentum * accum[i] : accum[i]);
      } else {
        m[i] = rule.beta1 * m[i] + (1 - rule.beta1) * g;
        v[i] = rule.beta2 * v[i] + (1 - rule.beta2) * g * g;
        w[i] -= lr * std::sqrt(1 - std::pow(rule.beta2, n)) / (1 - std::pow(rule.beta1, n)) * m[i] /
                (std::sqrt(v[i]) + rule.epsilon);
      }
    }
  }
};

struct PlainRun {
  Plain theta;
  std::vector<Plain> phi;
  Values swa_theta = Values(kD), sum = Values(kD), phi_sum = Values(kD);
  std::vector<Values> swa_phi;
};

// Without noise: σ0 = 0 copies φ0.
PlainRun RunPlain(const Case& c, const Values& theta0, const Values& phi0, int64_t steps) {
  const auto& o = c.options;
  const int64_t K = o.members, cycle = o.cycle == 0 ? K : o.cycle;
  PlainRun run;
  run.theta.w = theta0;
  run.phi.resize(K);
  for (Plain& member : run.phi) member.w = phi0;
  run.swa_phi.assign(K, Values(kD));
  int64_t samples = 0, in_epoch = 0, since = 0;  // since: minibatches since cycles began
  for (int64_t t = 0; t < steps; ++t, ++in_epoch, ++since) {
    const bool late = t >= o.start;
    if (t == o.start) since = 0;
    if (o.restart_every > 0 && in_epoch == o.restart_every) {
      in_epoch = since = 0;
      run.sum.assign(kD, 0);
      run.phi_sum.assign(kD, 0);
    }
    if (t == o.start) {
      for (Plain& member : run.phi) {
        const Plain first = run.phi[0];
        member = Plain();
        if (o.copy_slots || K == 1) member = first;
        member.w = first.w;
      }
    }
    const int64_t k = late ? since % K : 0, position = late ? since % cycle : 0;
    const Values x = Minibatch(t);
    Values dtheta(kD), dphi(kD);
    double norm = 0;
    for (int64_t i = 0; i < kD; ++i) {
      const double error = run.theta.w[i] * run.phi[k].w[i] - x[i];
      dtheta[i] = error * run.phi[k].w[i];
      dphi[i] = error * run.theta.w[i];
      norm += dtheta[i] * dtheta[i] + dphi[i] * dphi[i];
    }
    const double factor =
        o.clip_norm > 0 ? o.clip_norm / std::max(std::sqrt(norm), o.clip_norm) : 1;
    for (double& d : dtheta) d *= factor;
    for (double& d : dphi) d *= factor;
    const double rate = o.rate_scale.At(t), base_rate = late && o.freeze_base ? 0 : rate;
    auto accumulate = [&](const UpdateRule& rule, const Values& d, Values* sum, Plain* weight) {
      for (int64_t i = 0; i < kD; ++i) (*sum)[i] += d[i];
      if (position < (late ? cycle : 1) - 1) return;
      for (double& value : *sum) value *= late ? o.base_scale : 1;
      weight->Apply(rule, t, *sum, base_rate, late ? o.base_decay_scale : 1);
      sum->assign(kD, 0);
    };
    accumulate(c.base, dtheta, &run.sum, &run.theta);
    if (K == 1 && cycle > 1) {
      accumulate(c.members, dphi, &run.phi_sum, &run.phi[0]);
    } else {
      run.phi[k].Apply(c.members, t, dphi, rate);
    }
    if (o.swa_start >= 0 && t + 1 >= o.swa_start && (t + 1 - o.swa_start) % o.swa_every == 0) {
      ++samples;
      for (int64_t i = 0; i < kD; ++i) {
        run.swa_theta[i] += (run.theta.w[i] - run.swa_theta[i]) / samples;
        for (int64_t j = 0; j < K; ++j)
          run.swa_phi[j][i] += (run.phi[j].w[i] - run.swa_phi[j][i]) / samples;
      }
    }
  }
  return run;
}

void ExpectEqualsPlainLoop(const Case& c, int64_t steps = 23) {
  Problem p(c);
  ASSERT_THAT(p.status, IsOk());
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(steps);
  const PlainRun plain = RunPlain(c, p.theta0, p.phi0, steps);
  const auto state = p.State();
  EXPECT_LE(Difference(state.at("theta"), plain.theta.w), 1e-12);
  for (int64_t k = 0; k < c.options.members; ++k)
    EXPECT_LE(Difference(state.at("phi"), plain.phi[k].w, k), 1e-12) << "member " << k;
  if (state.count("theta/sum") > 0) {
    EXPECT_LE(Difference(state.at("theta/sum"), plain.sum), 1e-12);
  }
  if (state.count("phi/sum") > 0) {
    EXPECT_LE(Difference(state.at("phi/sum"), plain.phi_sum), 1e-12);
  }
  if (c.options.swa_start >= 0) {
    EXPECT_LE(Difference(state.at("theta/swa"), plain.swa_theta), 1e-12);
    for (int64_t k = 0; k < c.options.members; ++k)
      EXPECT_LE(Difference(state.at("phi/swa"), plain.swa_phi[k], k), 1e-12);
  }
}

TEST(LatePhaseTest, EveryPairOfRulesEqualsThePlainLoop) {
  const UpdateRule rules[] = {UpdateRule::Sgd(0.1), UpdateRule::Momentum(0.05).WithDecay(0.01),
                              UpdateRule::Momentum(0.05, 0.8, false),
                              UpdateRule::Adam(0.02).WithDecay(0.02)};
  for (const UpdateRule& base : rules) {
    for (const UpdateRule& members : rules) {
      SCOPED_TRACE(base.Text() + " / " + members.Text());
      ExpectEqualsPlainLoop({Options(3, 5), base, members, MemberRead::kRow});
    }
  }
}

TEST(LatePhaseTest, MembersScalesAndReadsEqualThePlainLoop) {
  for (int64_t members : {1, 2, 10}) {
    for (double scale : {1.0, 1.0 / members, 0.3}) {
      for (MemberRead read : {MemberRead::kRow, MemberRead::kStack}) {
        SCOPED_TRACE(::testing::Message() << "K " << members << " scale " << scale);
        ExpectEqualsPlainLoop({Options(members, 4, scale),
                               UpdateRule::Momentum(0.05).WithDecay(0.01), UpdateRule::Adam(0.02),
                               read});
      }
    }
  }
}

TEST(LatePhaseTest, SwaClippingSchedulesAndCopiedSlotsEqualThePlainLoop) {
  Case c{Options(3, 5, 1.0 / 3),
         UpdateRule::Adam(Schedule::PiecewiseLinear({{2, 0.05}, {12, 0.01}})),
         UpdateRule::Momentum(Schedule::Epochs(4, {{1, 0.1}, {3, 0.02}})), MemberRead::kRow};
  c.options.swa_start = 14;
  c.options.swa_every = 3;
  c.options.clip_norm = 0.5;
  c.options.copy_slots = true;
  ExpectEqualsPlainLoop(c);
  c.members = UpdateRule::Adam(0.03);
  ExpectEqualsPlainLoop(c);
}

TEST(LatePhaseTest, AScaledDecayOfTheBaseEqualsThePlainLoop) {
  for (const UpdateRule& base :
       {UpdateRule::Sgd(0.1), UpdateRule::Momentum(0.05), UpdateRule::Adam(0.02)}) {
    for (const double scale : {0.0, 1.5, 3.0}) {
      SCOPED_TRACE(base.Text());
      Case c{Options(3, 5, 0.5), base.WithDecay(Schedule::PiecewiseLinear({{0, 0.2}, {20, 0.1}})),
             UpdateRule::Sgd(0.1).WithDecay(0.1), MemberRead::kRow};
      c.options.base_decay_scale = scale;
      ExpectEqualsPlainLoop(c);
    }
  }
}

// Σ_t (g_t + λ w) = 0 at the same w before and after T0: for a fixed gradient, SGD rests there.
TEST(LatePhaseTest, CycleTimesScaleKeepsTheBalanceOfGradientAndDecay) {
  auto rest = [](double gamma, double decay_scale) {
    LatePhaseOptions options = Options(1, 0, gamma);
    options.cycle = 4;
    options.base_decay_scale = decay_scale;
    auto scope = tensorflow::Scope::NewRootScope();
    LatePhase graph(scope, options, tensorflow::DT_DOUBLE);
    const Output w = graph.AddBase("w", MakeTensor({1}));
    EXPECT_THAT(graph.Minimize(tf_ops::Sum(scope, tf_ops::Mul(scope, w, 0.3), 0),
                               UpdateRule::Sgd(0.2).WithDecay(0.5), UpdateRule::Sgd(0.2)),
                IsOk());
    std::unique_ptr<late_phase::Run> run =
        ExpectValue(late_phase::Run::Create(graph, test_util::kThreads));
    EXPECT_THAT(run->Initialize(), IsOk());
    for (int t = 0; t < 2000; ++t) EXPECT_THAT(run->Step({}), IsOk());
    std::vector<Tensor> value = ExpectValue(run->Fetch({}, {graph.saved()[1].read}));
    return value[0].flat<double>()(0);
  };
  // Before T0 g + λ w = 0 at w = −0.3 / 0.5.
  EXPECT_NEAR(rest(1, 4 * 1), -0.6, 1e-12);
  EXPECT_NEAR(rest(0.25, 4 * 0.25), -0.6, 1e-12);
  EXPECT_NEAR(rest(1, 1), 4 * -0.6, 1e-12) << "the paper's";
}

TEST(LatePhaseTest, ControlsOfThePaperAreSettings) {
  Case accumulation{Options(1, 5), UpdateRule::Momentum(0.05), UpdateRule::Momentum(0.05),
                    MemberRead::kRow};
  accumulation.options.cycle = 4;
  accumulation.options.base_scale = 0.25;
  for (const UpdateRule& members :
       {UpdateRule::Sgd(0.1), UpdateRule::Momentum(0.05).WithDecay(0.1), UpdateRule::Adam(0.02)}) {
    for (const MemberRead read : {MemberRead::kRow, MemberRead::kStack}) {
      accumulation.members = members;
      accumulation.read = read;
      accumulation.options.base_decay_scale = 2;
      ExpectEqualsPlainLoop(accumulation);
    }
  }
  Case frozen{Options(3, 5), UpdateRule::Momentum(0.05), UpdateRule::Sgd(0.1), MemberRead::kRow};
  frozen.options.freeze_base = true;
  ExpectEqualsPlainLoop(frozen);
  ExpectEqualsPlainLoop(
      {Options(3, 0), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), MemberRead::kRow});
}

// Epochs that end within a cycle, and with one; T0 within an epoch, and at its start.
TEST(LatePhaseTest, CyclesThatRestartWithEachEpochEqualThePlainLoop) {
  for (const int64_t epoch : {3, 5, 7}) {
    for (const int64_t start : {0, 4, 7}) {
      for (const UpdateRule& base :
           {UpdateRule::Sgd(0.1), UpdateRule::Momentum(0.05).WithDecay(0.01),
            UpdateRule::Adam(0.02)}) {
        SCOPED_TRACE(::testing::Message() << "epoch " << epoch << ", T0 " << start);
        Case c{Options(3, start, 0.5), base, UpdateRule::Momentum(0.05), MemberRead::kRow};
        c.options.restart_every = epoch;
        // At the end of an epoch or after it, and in mid-cycle.
        for (const int64_t steps : {21, 23}) ExpectEqualsPlainLoop(c, steps);
        c.options.members = 1;
        c.options.cycle = 3;
        ExpectEqualsPlainLoop(c, 22);
      }
    }
  }
}

// Of 14 minibatches, cycles of three are closed by the 3rd, 6th, 9th and 12th; in epochs of five,
// by the 3rd, 8th and 13th.
TEST(LatePhaseTest, EpochsThatEndWithinACycleCloseFewer) {
  Case c{Options(3, 0), UpdateRule::Adam(0.02), UpdateRule::Sgd(0.1), MemberRead::kRow};
  auto base_steps = [&](int64_t restart_every) {
    c.options.restart_every = restart_every;
    Problem p(c);
    EXPECT_THAT(p.run->Initialize(), IsOk());
    p.Train(14);
    return p.State().at("theta/count").flat<int64_t>()(0);
  };
  EXPECT_EQ(base_steps(0), 4);
  EXPECT_EQ(base_steps(5), 3);
}

TEST(LatePhaseTest, AScaledRateEqualsThePlainLoop) {
  const Schedule jump = Schedule::PiecewiseLinear({{0, 1}, {5, 1}, {5, 0.3}}),
                 decay = Schedule::PiecewiseLinear({{5, 1}, {23, 0}});
  for (const Schedule& scale : {jump, decay}) {
    for (const int64_t members : {1, 3}) {
      Case c{Options(members, 5), UpdateRule::Momentum(0.05).WithDecay(0.01),
             UpdateRule::Adam(Schedule::Epochs(4, {{1, 0.1}, {3, 0.02}})), MemberRead::kRow};
      c.options.rate_scale = scale;
      ExpectEqualsPlainLoop(c);
      c.options.freeze_base = true;
      ExpectEqualsPlainLoop(c);
    }
  }
  Case c{Options(3, 5)};
  c.options.rate_scale = Schedule::PiecewiseLinear({});
  EXPECT_THAT(Problem(c).status, StatusIs(_, HasSubstr("`rate_scale` must have finite knots")));
}

TEST(LatePhaseTest, SpawningAddsNoiseOfItsOwnPerMember) {
  Case c{Options(4, 2), UpdateRule::Sgd(0.0), UpdateRule::Sgd(0.0), MemberRead::kRow};
  c.options.sigma = 0.5;
  Problem p(c);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  p.Train(2);
  EXPECT_EQ(Difference(p.State().at("phi"), p.phi0, 3), 0) << "at t = T0 nothing is spawned yet";
  EXPECT_EQ(Difference(p.Weights("collapsed")[1], p.phi0), 0) << "and row 0 is the model";
  p.Train(3);
  const Tensor phi = p.State().at("phi");
  double rms = 0, noise = 0;
  for (double value : p.phi0) rms += value * value / kD;
  for (int64_t k = 0; k < 4; ++k) {
    EXPECT_GT(Difference(phi, p.phi0, k), 0) << "row " << k;
    for (int64_t i = 0; i < kD; ++i)
      noise += std::pow(phi.flat<double>()(k * kD + i) - p.phi0[i], 2) / (4 * kD);
  }
  EXPECT_NEAR(std::sqrt(noise / rms), 0.5, 0.25);
  p.Train(9);
  EXPECT_EQ(p.State().at("phi").flat<double>()(5), phi.flat<double>()(5)) << "spawned once only";
}

TEST(LatePhaseTest, EvaluationReadsEverySetAndDisturbsNothing) {
  Case c{Options(3, 5), UpdateRule::Momentum(0.05), UpdateRule::Sgd(0.1), MemberRead::kRow};
  c.options.sigma = 0.3;
  c.options.swa_start = 10;
  Problem p(c), undisturbed(c);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  ASSERT_THAT(undisturbed.run->Initialize(), IsOk());
  undisturbed.Train(17);
  for (int64_t t = 1; t <= 17; ++t) {
    p.Train(t);
    const auto state = p.State();
    const Values row(state.at("phi").flat<double>().data(),
                     state.at("phi").flat<double>().data() + kD);
    Values mean(kD);
    for (int64_t i = 0; i < 3 * kD; ++i) mean[i % kD] += state.at("phi").flat<double>()(i) / 3;
    EXPECT_LE(Difference(p.Weights("collapsed")[1], t > 5 ? mean : row), 1e-15);
    EXPECT_EQ(Difference(p.Weights("current")[1], row), 0);
    p.Weights("swa");
  }
  const auto a = p.State(), b = undisturbed.State();
  for (const auto& [name, tensor] : a)
    EXPECT_EQ(tensor.tensor_data(), b.at(name).tensor_data()) << name;
}

TEST(LatePhaseTest, MembersAreReadOneByOneForAnEnsemble) {
  Case c{Options(3, 2), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), MemberRead::kRow};
  c.options.sigma = 0.3;
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, c.options, tensorflow::DT_DOUBLE);
  const Output phi = graph.AddMembers("phi", MakeTensor(Values(kD, 1.0)), MemberRead::kRow);
  ASSERT_THAT(graph.Minimize(tf_ops::Sum(scope, tf_ops::Square(scope, phi), 0), c.base, c.members),
              IsOk());
  const Output which = tf_ops::Placeholder(scope.WithOpName("which"), tensorflow::DT_INT32);
  const Output row = graph.Read("phi", WeightSet::kCurrent, which);
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, test_util::kThreads));
  ASSERT_THAT(run->Initialize(), IsOk());
  for (int t = 0; t < 7; ++t) ASSERT_THAT(run->Step({}), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(std::vector<Tensor> stack, run->Fetch({}, {graph.saved()[1].read}));
  for (int32_t k = 0; k < 3; ++k) {
    Tensor feed(tensorflow::DT_INT32, {});
    feed.scalar<int32_t>()() = k;
    TF_ASSERT_OK_AND_ASSIGN(std::vector<Tensor> member,
                            run->Evaluate(WeightSet::kCurrent, {{"which", feed}}, {row.name()}));
    const double* expected = stack[0].flat<double>().data() + k * kD;
    EXPECT_EQ(Difference(member[0], Values(expected, expected + kD)), 0);
  }
}

// In minibatch t the member's row of a state, 0 at first, grows by t + 1.
TEST(LatePhaseTest, MembersHaveStatesOfTheirOwnFromT0On) {
  LatePhaseOptions options = Options(3, 2);
  options.sigma = 0.3;  // of weights alone
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase graph(scope, options, tensorflow::DT_DOUBLE);
  const Output phi = graph.AddMembers("phi", MakeTensor(Values(kD, 1.0)), MemberRead::kRow);
  const Output state = graph.AddMemberState("state", MakeTensor(Values(kD, 0.0)));
  const auto stack = tf_ops::ReadVariableOp(scope, state, tensorflow::DT_DOUBLE);
  const auto row = tf_ops::Add(
      scope, tf_ops::GatherV2(scope, stack, graph.member(), 0),
      tf_ops::Add(scope, tf_ops::Cast(scope, graph.step(), tensorflow::DT_DOUBLE), 1.0));
  const auto write = tf_ops::ResourceScatterUpdate(scope, state, graph.member(), row);
  ASSERT_THAT(graph.Minimize(tf_ops::Sum(scope, tf_ops::Square(scope, phi), 0),
                             UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), {write.operation}),
              IsOk());
  const Output which = tf_ops::Placeholder(scope.WithOpName("which"), tensorflow::DT_INT32);
  const Output current = graph.Read("state", WeightSet::kCurrent, which),
               collapsed = graph.Read("state", WeightSet::kCollapsed);
  TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<late_phase::Run> run,
                          late_phase::Run::Create(graph, test_util::kThreads));
  ASSERT_THAT(run->Initialize(), IsOk());
  // At the end members 0 and 1 have had two turns, member 2 one.
  const Values expected[] = {{0},           {1},           {3},           {3 + 3, 3, 3},
                             {6, 3 + 4, 3}, {6, 7, 3 + 5}, {6 + 6, 7, 8}, {12, 7 + 7, 8}};
  for (const Values& rows : expected) {  // up to T0 row 0 alone is defined
    Tensor k(tensorflow::DT_INT32, {});
    std::vector<Tensor> values;
    double mean = 0;
    for (size_t member = 0; member < rows.size(); ++member) {
      k.scalar<int32_t>()() = static_cast<int32_t>(member);
      TF_ASSERT_OK_AND_ASSIGN(values, run->Fetch({{"which", k}}, {current.name()}));
      EXPECT_EQ(Difference(values[0], Values(kD, rows[member])), 0) << run->step();
      mean += rows[member] / rows.size();
    }
    TF_ASSERT_OK_AND_ASSIGN(values, run->Fetch({}, {collapsed.name()}));
    EXPECT_LT(Difference(values[0], Values(kD, mean)), 1e-14) << run->step();
    ASSERT_THAT(run->Step({}), IsOk());
  }
  graph.Read("state", WeightSet::kSwa);
  EXPECT_THAT(scope.status(), StatusIs(_, HasSubstr("a state if `set` is not swa")));
}

// On a GPU, scalars that it had computed would have to be waited for.
TEST(LatePhaseTest, ScalarsAreComputedOnTheHostWhereverTheGraphIs) {
  tensorflow::Scope scope = tensorflow::Scope::NewRootScope().WithDevice("/device:GPU:0");
  LatePhaseOptions options;
  options.members = 3;
  options.start = 4;
  options.swa_start = 8;
  options.freeze_base = true;
  LatePhase late_phase(scope, options, tensorflow::DT_DOUBLE);
  const Tensor ones = MakeTensor(Values(kD, 1.0));
  const Output theta = late_phase.AddBase("theta", ones);
  const Output phi = late_phase.AddMembers("phi", ones, MemberRead::kRow);
  late_phase.AddMemberState("state", ones);
  const auto loss = tf_ops::Sum(scope, tf_ops::Mul(scope, theta, phi), 0);
  const Schedule rate = Schedule::PiecewiseLinear({{0, 0.1}, {10, 0.2}});
  ASSERT_THAT(late_phase.Minimize(loss, UpdateRule::Adam(rate), UpdateRule::Momentum(rate, 0.9)),
              IsOk());
  for (const WeightSet set : {WeightSet::kCurrent, WeightSet::kCollapsed, WeightSet::kSwa}) {
    late_phase.Read("phi", set, late_phase.member());
  }
  tensorflow::GraphDef graph;
  ASSERT_THAT(scope.ToGraphDef(&graph), IsOk());
  std::map<std::string, std::string> devices;
  for (const auto& node : graph.node()) devices[node.name()] = node.device();
  int scalars = 0;
  for (const auto& node : graph.node()) {
    if (!absl::StartsWith(node.op(), "LatePhase>")) continue;
    EXPECT_EQ(node.device(), "/device:GPU:0") << node.op();
    const tensorflow::OpDef* op = nullptr;
    ASSERT_THAT(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op), IsOk());
    for (int i = 0; i < op->input_arg_size(); ++i) {
      const auto& argument = op->input_arg(i);
      if (argument.type() == tensorflow::DT_RESOURCE || argument.name() == "grad") continue;
      const std::string producer = node.input(i).substr(0, node.input(i).find(':'));
      EXPECT_EQ(devices.at(producer), "/device:CPU:0") << node.op() << " " << argument.name();
      ++scalars;
    }
  }
  EXPECT_GT(scalars, 20);
}

TEST(LatePhaseTest, StatisticsAreReestimatedOncePerSetAndStep) {
  Case c{Options(3, 2), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1), MemberRead::kRow};
  c.options.swa_start = 2;
  Problem p(c);
  ASSERT_THAT(p.run->Initialize(), IsOk());
  std::vector<std::pair<WeightSet, int64_t>> calls;
  p.run->OnEvaluation([&](late_phase::Run* run, WeightSet set) {
    calls.push_back({set, run->step()});
    return absl::OkStatus();
  });
  auto evaluate = [&](WeightSet set, const char* name) {
    return p.run->Evaluate(set, {}, {p.sets.at(name).first});
  };
  for (int64_t t : {4, 5}) {
    p.Train(t);
    for (int twice = 0; twice < 2; ++twice) {
      ASSERT_THAT(evaluate(WeightSet::kSwa, "swa"), IsOk());
      ASSERT_THAT(evaluate(WeightSet::kCollapsed, "collapsed"), IsOk());
      ASSERT_THAT(evaluate(WeightSet::kCurrent, "current"), IsOk());
    }
  }
  const std::vector<std::pair<WeightSet, int64_t>> expected = {{WeightSet::kSwa, 4},
                                                               {WeightSet::kCollapsed, 4},
                                                               {WeightSet::kSwa, 5},
                                                               {WeightSet::kCollapsed, 5}};
  EXPECT_EQ(calls, expected);
  p.run->OnEvaluation([](late_phase::Run*, WeightSet) { return absl::DataLossError("no data"); });
  p.Train(6);
  EXPECT_THAT(evaluate(WeightSet::kSwa, "swa"), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(LatePhaseErrors, OptionsAreChecked) {
  auto complaint = [](const LatePhaseOptions& options) {
    return std::string(options.Check().message());
  };
  LatePhaseOptions options;
  options.members = 0;
  EXPECT_EQ(complaint(options), "`members` must be at least 1. Received: members=0");
  options = Options(3, 5);
  options.sigma = -0.1;
  EXPECT_EQ(complaint(options), "`sigma` must be finite and >= 0. Received: sigma=-0.1");
  options = Options(3, 5, 1.5);
  EXPECT_EQ(complaint(options), "`base_scale` must be in (0, 1]. Received: base_scale=1.5");
  options = Options(3, 5);
  options.base_decay_scale = -1;
  EXPECT_EQ(complaint(options),
            "`base_decay_scale` must be finite and >= 0. Received: base_decay_scale=-1");
  options = Options(3, 5);
  options.swa_start = 4;
  EXPECT_THAT(complaint(options), HasSubstr("swa_start=4, start=5"));
  options = Options(3, 5);
  options.cycle = 2;
  EXPECT_THAT(complaint(options), HasSubstr("`cycle` must be equal to `members`"));
  options = Options(3, 5);
  options.restart_every = 2;
  EXPECT_EQ(complaint(options),
            "`restart_every` must be at least `cycle`, or the base never takes a step, or 0. "
            "Received: restart_every=2");
  options.restart_every = -1;
  EXPECT_EQ(complaint(options), "`restart_every` must be at least 0. Received: restart_every=-1");
  EXPECT_EQ(complaint(Options(3, 5)), "");
  EXPECT_FALSE(Problem({Options(3, -1)}).scope.ok());
}

TEST(LatePhaseErrors, SchedulesAreChecked) {
  EXPECT_THAT(
      Problem({Options(1, 0), UpdateRule::Sgd(Schedule::PiecewiseLinear({{5, 1}, {2, 0}}))}).status,
      Not(IsOk()));
  EXPECT_THAT(Problem({Options(1, 0), UpdateRule::Sgd(std::nan(""))}).status, Not(IsOk()));
}

TEST(LatePhaseErrors, ALossWithoutAWeightIsRefused) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase late_phase(scope, {}, tensorflow::DT_DOUBLE);
  const Output theta = late_phase.AddBase("theta", MakeTensor({1, 2}));
  late_phase.AddBase("forgotten", MakeTensor({1, 2}));
  const absl::Status status =
      late_phase.Minimize(tf_ops::Sum(scope, theta, 0), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1));
  EXPECT_THAT(status, StatusIs(_, HasSubstr("forgotten")));
}

TEST(LatePhaseErrors, MembersThatNoWeightHasAreRefused) {
  auto scope = tensorflow::Scope::NewRootScope();
  LatePhase late_phase(scope, Options(3, 0), tensorflow::DT_DOUBLE);
  const Output theta = late_phase.AddBase("theta", MakeTensor({1, 2}));
  const absl::Status status =
      late_phase.Minimize(tf_ops::Sum(scope, theta, 0), UpdateRule::Sgd(0.1), UpdateRule::Sgd(0.1));
  EXPECT_THAT(status, StatusIs(_, HasSubstr("`members` must be 1 if no weight has members")));
}

TEST(ScheduleTest, GraphAndHostAgree) {
  const Schedule schedules[] = {0.3, Schedule::PiecewiseLinear({{10, 0.1}, {20, 0.01}}),
                                Schedule::PiecewiseLinear({{10, 0.1}, {10, 0.05}, {30, 0.0}}),
                                Schedule::Epochs(7, {{1, 1}, {2, 3}, {4, 0.5}}),
                                Schedule::Epochs(7, {{1, 1}, {2, 3}, {4, 0.5}}).ByEpoch(7)};
  for (const Schedule& schedule : schedules) {
    auto scope = tensorflow::Scope::NewRootScope();
    const auto t = tf_ops::Placeholder(scope.WithOpName("t"), tensorflow::DT_DOUBLE);
    const Output value = schedule.InGraph(scope, t);
    tensorflow::GraphDef graph;
    ASSERT_THAT(scope.ToGraphDef(&graph), IsOk());
    TF_ASSERT_OK_AND_ASSIGN(std::unique_ptr<tensorflow::Session> session,
                            OpenSession(test_util::kThreads));
    ASSERT_THAT(session->Create(graph), IsOk());
    for (double at : {0.0, 7.0, 9.0, 10.0, 11.0, 13.5, 20.0, 28.0, 29.0, 100.0}) {
      Tensor feed(tensorflow::DT_DOUBLE, {});
      feed.scalar<double>()() = at;
      std::vector<Tensor> result;
      ASSERT_THAT(session->Run({{"t", feed}}, {value.name()}, {}, &result), IsOk());
      EXPECT_NEAR(result[0].scalar<double>()(), schedule.At(at), 1e-14)
          << schedule.Text() << " at " << at;
    }
  }
  EXPECT_EQ(Schedule::PiecewiseLinear({{10, 0.1}, {20, 0.0}}).At(15), 0.05);
  EXPECT_EQ(Schedule::PiecewiseLinear({{10, 0.1}, {10, 0.05}}).At(10), 0.05);
  // Epochs 2, 3 and 4 of five minibatches.
  const Schedule by_epoch = Schedule::Epochs(5, {{2, 0.5}, {4, 0.25}}).ByEpoch(5);
  EXPECT_EQ(by_epoch.At(14), 0.5);
  EXPECT_EQ(by_epoch.At(15), 0.375);
  EXPECT_EQ(by_epoch.At(19), 0.375);
  EXPECT_EQ(by_epoch.At(20), 0.25);
  EXPECT_EQ(by_epoch.Text(), "10:0.5,20:0.25 by 5");
}

}  // namespace
}  // namespace late_phase

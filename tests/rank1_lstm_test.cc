// The CPU core of the rank-1 LSTM against plain double-precision loops. No TensorFlow; also run
// under ASan and UBSan, and with LATE_PHASE_CPU set to each instruction set.
#include "kernels/rank1_lstm.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/backwards.h"
#include "tests/rank1_lstm_cases.h"

namespace late_phase {
namespace {

using testing::Cast;
using testing::kTolerance;
using testing::LstmCase;
using testing::LstmProblem;
using testing::MakeLstmProblem;
using testing::RelativeError;

// Owns every array of one forward and backward call. Outputs start as NaN: what the core leaves
// unwritten shows.
template <typename T>
struct CoreRun {
  using Array = std::vector<T>;
  static Array Unwritten(int64_t size) { return Array(size, std::numeric_limits<T>::quiet_NaN()); }

  CoreRun(const LstmProblem& p, const Parallel& parallel, bool training = true)
      : T_(p.inputs.T),
        N(p.inputs.N),
        C(p.inputs.C),
        H(p.inputs.H),
        dense(!p.token_form),
        x(Cast<T>(p.inputs.x)),
        initial_h(Cast<T>(p.inputs.initial_h)),
        initial_c(Cast<T>(p.inputs.initial_c)),
        kernel(Cast<T>(p.inputs.kernel)),
        recurrent_kernel(Cast<T>(p.inputs.recurrent_kernel)),
        bias(Cast<T>(p.inputs.bias)),
        u(Cast<T>(p.inputs.u)),
        v(Cast<T>(p.inputs.v)),
        h(Unwritten(T_ * N * H)),
        final_h(Unwritten(N * H)),
        final_c(Unwritten(N * H)) {
    const Rank1LstmShape shape{T_, N, C, H};
    if (dense) {
      input = {LstmInputForm::kDense, x.data(), kernel.data(), bias.data(), nullptr, nullptr};
    } else {
      input = {LstmInputForm::kTokens, nullptr, nullptr, nullptr, p.tokens.data(), kernel.data()};
    }
    if (training) {
      gates = Unwritten(T_ * N * 4 * H);
      cells = Unwritten(T_ * N * H);
    }
    Array workspace = Unwritten(Rank1LstmForwardWorkspace(shape, input.form, training));
    Rank1LstmForwardCpu<T>(
        {shape, input, initial_h.data(), initial_c.data(), recurrent_kernel.data(), u.data(),
         v.data(), h.data(), final_h.data(), final_c.data(), training ? gates.data() : nullptr,
         training ? cells.data() : nullptr, workspace.data()},
        parallel);
    if (!training) return;

    const Array dh = Cast<T>(p.dout.h), dfinal_h = Cast<T>(p.dout.final_h),
                dfinal_c = Cast<T>(p.dout.final_c);
    dx = Unwritten(dense ? T_ * N * C : 0);
    dkernel = Unwritten(C * 4 * H);
    dbias = Unwritten(dense ? 4 * H : 0);
    dinitial_h = Unwritten(N * H);
    dinitial_c = Unwritten(N * H);
    drecurrent_kernel = Unwritten(H * 4 * H);
    du = Unwritten(H);
    dv = Unwritten(4 * H);
    workspace = Unwritten(Rank1LstmBackwardWorkspace(shape, input.form));
    Rank1LstmBackwardCpu<T>({shape,
                             input,
                             initial_h.data(),
                             initial_c.data(),
                             recurrent_kernel.data(),
                             u.data(),
                             v.data(),
                             h.data(),
                             cells.data(),
                             gates.data(),
                             dh.data(),
                             dfinal_h.data(),
                             dfinal_c.data(),
                             dx.data(),
                             dense ? dkernel.data() : nullptr,
                             dbias.data(),
                             dense ? nullptr : dkernel.data(),
                             dinitial_h.data(),
                             dinitial_c.data(),
                             drecurrent_kernel.data(),
                             du.data(),
                             dv.data(),
                             workspace.data()},
                            parallel);
  }

  int64_t T_, N, C, H;
  bool dense;
  Rank1LstmInput<T> input;
  Array x, initial_h, initial_c, kernel, recurrent_kernel, bias, u, v;
  Array h, final_h, final_c, gates, cells;
  Array dx, dkernel, dbias, dinitial_h, dinitial_c, drecurrent_kernel, du, dv;
};

class Rank1LstmCore : public ::testing::TestWithParam<LstmCase> {
 protected:
  template <typename T>
  void ExpectEqualsReference() {
    const LstmProblem p = MakeLstmProblem(GetParam());
    const auto out = reference::Forward(p.inputs);
    const auto grad = reference::Backward(p.inputs, p.dout);
    const CoreRun<T> run(p, testing::Backwards(3));
    EXPECT_LE(RelativeError(run.h, out.h), kTolerance<T>);
    EXPECT_LE(RelativeError(run.final_h, out.final_h), kTolerance<T>);
    EXPECT_LE(RelativeError(run.final_c, out.final_c), kTolerance<T>);
    EXPECT_LE(RelativeError(run.dkernel, grad.kernel), kTolerance<T>);
    EXPECT_LE(RelativeError(run.dinitial_h, grad.initial_h), kTolerance<T>);
    EXPECT_LE(RelativeError(run.dinitial_c, grad.initial_c), kTolerance<T>);
    EXPECT_LE(RelativeError(run.drecurrent_kernel, grad.recurrent_kernel), kTolerance<T>);
    EXPECT_LE(RelativeError(run.du, grad.u), kTolerance<T>);
    EXPECT_LE(RelativeError(run.dv, grad.v), kTolerance<T>);
    if (run.dense) {
      EXPECT_LE(RelativeError(run.dx, grad.x), kTolerance<T>);
      EXPECT_LE(RelativeError(run.dbias, grad.bias), kTolerance<T>);
    }
  }
};

TEST_P(Rank1LstmCore, DoubleEqualsReference) { ExpectEqualsReference<double>(); }
TEST_P(Rank1LstmCore, FloatEqualsReference) { ExpectEqualsReference<float>(); }

// The slices of the batch follow the thread count, and the generated products sum in an order that
// follows the slice.
TEST_P(Rank1LstmCore, ThreadCountChangesRoundingOnly) {
  const LstmProblem p = MakeLstmProblem(GetParam());
  const CoreRun<double> one(p, testing::Backwards(1));
  for (int threads : {2, 5, 64}) {
    const CoreRun<double> many(p, testing::Backwards(threads));
    EXPECT_LE(RelativeError(many.h, one.h), 1e-13);
    EXPECT_LE(RelativeError(many.final_c, one.final_c), 1e-13);
    EXPECT_LE(RelativeError(many.dx, one.dx), 1e-13);
    EXPECT_LE(RelativeError(many.dkernel, one.dkernel), 1e-13);
    EXPECT_LE(RelativeError(many.drecurrent_kernel, one.drecurrent_kernel), 1e-13);
    EXPECT_LE(RelativeError(many.du, one.du), 1e-13);
    EXPECT_LE(RelativeError(many.dv, one.dv), 1e-13);
    EXPECT_LE(RelativeError(many.dinitial_h, one.dinitial_h), 1e-13);
  }
}

TEST_P(Rank1LstmCore, SameThreadCountSameBits) {
  const LstmProblem p = MakeLstmProblem(GetParam());
  const CoreRun<float> first(p, testing::Backwards(2)), second(p, testing::Backwards(2));
  EXPECT_EQ(first.h, second.h);
  EXPECT_EQ(first.dkernel, second.dkernel);
  EXPECT_EQ(first.drecurrent_kernel, second.drecurrent_kernel);
  EXPECT_EQ(first.du, second.du);
}

TEST_P(Rank1LstmCore, InferenceEqualsTrainingForward) {
  const LstmProblem p = MakeLstmProblem(GetParam());
  const CoreRun<float> training(p, testing::Backwards(2)),
      inference(p, testing::Backwards(2), /*training=*/false);
  EXPECT_EQ(inference.h, training.h);
  EXPECT_EQ(inference.final_h, training.final_h);
  EXPECT_EQ(inference.final_c, training.final_c);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rank1LstmCore, ::testing::ValuesIn(testing::LstmCases()),
                         [](const auto& info) { return info.param.Name(); });

TEST(Rank1LstmCoreTest, EmptyTimePassesStatesAndGradientsThrough) {
  for (bool tokens : {false, true}) {
    const LstmProblem p = MakeLstmProblem({0, 5, 3, 7, tokens});
    const CoreRun<double> run(p, testing::Backwards(2));
    EXPECT_EQ(run.final_h, run.initial_h);
    EXPECT_EQ(run.final_c, run.initial_c);
    EXPECT_EQ(run.dinitial_h, p.dout.final_h);
    EXPECT_EQ(run.dinitial_c, p.dout.final_c);
    EXPECT_EQ(run.drecurrent_kernel, std::vector<double>(7 * 28, 0.0));
    EXPECT_EQ(run.dkernel, std::vector<double>(3 * 28, 0.0));
    EXPECT_EQ(run.du, std::vector<double>(7, 0.0));
    EXPECT_EQ(run.dv, std::vector<double>(28, 0.0));
  }
}

TEST(Rank1LstmCoreTest, EmptyBatchGivesZeroWeightGradients) {
  const CoreRun<double> run(MakeLstmProblem({4, 0, 3, 7, false}), testing::Backwards(2));
  EXPECT_TRUE(run.h.empty());
  EXPECT_EQ(run.drecurrent_kernel, std::vector<double>(7 * 28, 0.0));
  EXPECT_EQ(run.dbias, std::vector<double>(28, 0.0));
}

TEST(Rank1LstmCoreTest, NaNInOneSequenceStaysInIt) {
  const LstmCase shape{3, 9, 4, 20, false};
  LstmProblem p = MakeLstmProblem(shape);
  const CoreRun<float> clean(p, testing::Backwards(1));
  p.inputs.x[2 * 4] = std::numeric_limits<double>::quiet_NaN();  // sequence 2, first step
  const CoreRun<float> run(p, testing::Backwards(1));
  for (int64_t row = 0; row < 3 * 9; ++row) {
    for (int64_t j = 0; j < 20; ++j) {
      const float h = run.h[row * 20 + j];
      if (row % 9 == 2) {
        EXPECT_TRUE(std::isnan(h));
      } else {
        EXPECT_EQ(h, clean.h[row * 20 + j]);
      }
    }
  }
}

TEST(Rank1LstmCoreTest, SaturatedGatesStayFinite) {
  LstmProblem p = MakeLstmProblem({4, 3, 5, 19, false});
  for (double scale : {1e3, 1e30}) {
    for (double& b : p.inputs.bias) b = b < 0 ? -scale : scale;
    const CoreRun<float> run(p, testing::Backwards(1));
    for (float h : run.h) EXPECT_LE(std::abs(h), 1.0f);
    EXPECT_LE(RelativeError(run.h, reference::Forward(p.inputs).h), 1e-6);
    EXPECT_LE(RelativeError(run.final_c, reference::Forward(p.inputs).final_c), 1e-6);
    for (float d : run.drecurrent_kernel) EXPECT_TRUE(std::isfinite(d));
  }
}

// With a small initialisation the activations are tiny; their relative, not only their absolute
// error must be that of a float.
TEST(Rank1LstmCoreTest, TinyActivationsKeepTheirPrecision) {
  LstmProblem p = MakeLstmProblem({1, 4, 5, 33, false});
  for (auto* values : {&p.inputs.kernel, &p.inputs.recurrent_kernel, &p.inputs.bias,
                       &p.inputs.initial_h, &p.inputs.initial_c}) {
    for (double& value : *values) value = static_cast<float>(value * 1e-6);
  }
  const CoreRun<float> run(p, testing::Backwards(1));
  const auto expected = reference::Forward(p.inputs);
  for (size_t i = 0; i < run.h.size(); ++i) {
    EXPECT_NEAR(run.h[i] / expected.h[i], 1.0, 1e-4) << "h[" << i << "] = " << run.h[i];
  }
}

}  // namespace
}  // namespace late_phase

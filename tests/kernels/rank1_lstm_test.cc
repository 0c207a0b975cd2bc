// The rank-1 LSTM against plain double-precision loops: the CPU core and, in the CUDA harness, the
// CUDA core. No TensorFlow; also run under ASan and UBSan, and with LATE_PHASE_CPU set to each
// instruction set.
#include "kernels/rank1_lstm.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_harness/host_matmul.h"
#include "tests/cuda_harness/unwritten.h"
#include "tests/kernels/processors.h"
#include "tests/support/rank1_lstm_cases.h"

namespace late_phase {
namespace {

using cuda_harness::Unwritten;
using test_util::Cast;
using test_util::kTolerance;
using test_util::LstmCase;
using test_util::LstmProblem;
using test_util::MakeLstmProblem;
using test_util::Name;
using test_util::Processor;
using test_util::Processors;
using test_util::RelativeError;

struct Executor : test_util::Executor {
  int64_t ForwardWorkspace(const Rank1LstmShape& shape, LstmInputForm form, bool training) const {
    return processor == Processor::kCpu ? Rank1LstmForwardWorkspace(shape, form, training)
                                        : Rank1LstmForwardWorkspaceGpu(shape, form, training);
  }
  int64_t BackwardWorkspace(const Rank1LstmShape& shape, LstmInputForm form) const {
    return processor == Processor::kCpu ? Rank1LstmBackwardWorkspace(shape, form)
                                        : Rank1LstmBackwardWorkspaceGpu(shape, form);
  }
  template <typename T>
  void Forward(const Rank1LstmForwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { Rank1LstmForwardCpu(args, parallel); },
        [&] { return Rank1LstmForwardGpu(args, nullptr, cuda_harness::HostMatmul()); });
  }
  template <typename T>
  void Backward(const Rank1LstmBackwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { Rank1LstmBackwardCpu(args, parallel); },
        [&] { return Rank1LstmBackwardGpu(args, nullptr, cuda_harness::HostMatmul()); });
  }
};

// Owns every array of one forward and backward call, each exactly as large as it must be.
template <typename T>
struct CoreRun {
  using Array = std::vector<T>;

  CoreRun(const LstmProblem& p, const Executor& executor, bool training = true)
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
        h(Unwritten<T>(T_ * N * H)),
        final_h(Unwritten<T>(N * H)),
        final_c(Unwritten<T>(N * H)) {
    const Rank1LstmShape shape{T_, N, C, H};
    if (dense) {
      input = {LstmInputForm::kDense, x.data(), kernel.data(), bias.data(), nullptr, nullptr};
    } else {
      input = {LstmInputForm::kTokens, nullptr, nullptr, nullptr, p.tokens.data(), kernel.data()};
    }
    if (training) {
      gates = Unwritten<T>(T_ * N * 4 * H);
      cells = Unwritten<T>(T_ * N * H);
    }
    Array workspace = Unwritten<T>(executor.ForwardWorkspace(shape, input.form, training));
    executor.Forward<T>({shape, input, initial_h.data(), initial_c.data(), recurrent_kernel.data(),
                         u.data(), v.data(), h.data(), final_h.data(), final_c.data(),
                         training ? gates.data() : nullptr, training ? cells.data() : nullptr,
                         workspace.data()});
    ExpectWritten({&h, &final_h, &final_c, &gates, &cells});
    if (!training) return;

    const Array dh = Cast<T>(p.dout.h), dfinal_h = Cast<T>(p.dout.final_h),
                dfinal_c = Cast<T>(p.dout.final_c);
    dx = Unwritten<T>(dense ? T_ * N * C : 0);
    dkernel = Unwritten<T>(C * 4 * H);
    dbias = Unwritten<T>(dense ? 4 * H : 0);
    dinitial_h = Unwritten<T>(N * H);
    dinitial_c = Unwritten<T>(N * H);
    drecurrent_kernel = Unwritten<T>(H * 4 * H);
    du = Unwritten<T>(H);
    dv = Unwritten<T>(4 * H);
    workspace = Unwritten<T>(executor.BackwardWorkspace(shape, input.form));
    executor.Backward<T>({shape,
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
                          workspace.data()});
    ExpectWritten({&dx, &dkernel, &dbias, &dinitial_h, &dinitial_c, &drecurrent_kernel, &du, &dv});
  }

  static void ExpectWritten(std::initializer_list<const Array*> outputs) {
    for (const Array* output : outputs) EXPECT_EQ(cuda_harness::FirstUnwritten(*output), "");
  }

  int64_t T_, N, C, H;
  bool dense;
  Rank1LstmInput<T> input;
  Array x, initial_h, initial_c, kernel, recurrent_kernel, bias, u, v;
  Array h, final_h, final_c, gates, cells;
  Array dx, dkernel, dbias, dinitial_h, dinitial_c, drecurrent_kernel, du, dv;
};

class Rank1LstmCore : public ::testing::TestWithParam<std::tuple<LstmCase, Processor>> {
 protected:
  static LstmProblem Problem() { return MakeLstmProblem(std::get<0>(GetParam())); }
  static Processor OnProcessor() { return std::get<1>(GetParam()); }
  static Executor Threads(int threads) { return {{OnProcessor(), threads}}; }

  template <typename T>
  void ExpectEqualsReference() {
    const LstmProblem p = Problem();
    const auto out = reference::Forward(p.inputs);
    const auto grad = reference::Backward(p.inputs, p.dout);
    const CoreRun<T> run(p, Threads(3));
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
// follows the slice; a CUDA core sums in an order of its own.
TEST_P(Rank1LstmCore, ThreadsAndProcessorChangeRoundingOnly) {
  const LstmProblem p = Problem();
  const CoreRun<double> one(p, {{Processor::kCpu, 1}});
  const bool cpu = OnProcessor() == Processor::kCpu;
  for (int threads : cpu ? std::vector<int>{2, 5, 64} : std::vector<int>{1}) {
    const CoreRun<double> many(p, Threads(threads));
    EXPECT_LE(RelativeError(many.h, one.h), 1e-13);
    EXPECT_LE(RelativeError(many.final_h, one.final_h), 1e-13);
    EXPECT_LE(RelativeError(many.final_c, one.final_c), 1e-13);
    EXPECT_LE(RelativeError(many.gates, one.gates), 1e-13);
    EXPECT_LE(RelativeError(many.cells, one.cells), 1e-13);
    EXPECT_LE(RelativeError(many.dx, one.dx), 1e-13);
    EXPECT_LE(RelativeError(many.dkernel, one.dkernel), 1e-13);
    EXPECT_LE(RelativeError(many.dbias, one.dbias), 1e-13);
    EXPECT_LE(RelativeError(many.drecurrent_kernel, one.drecurrent_kernel), 1e-13);
    EXPECT_LE(RelativeError(many.du, one.du), 1e-13);
    EXPECT_LE(RelativeError(many.dv, one.dv), 1e-13);
    EXPECT_LE(RelativeError(many.dinitial_h, one.dinitial_h), 1e-13);
    EXPECT_LE(RelativeError(many.dinitial_c, one.dinitial_c), 1e-13);
  }
}

// On CUDA in any order of threads.
TEST_P(Rank1LstmCore, SameThreadCountSameBits) {
  const LstmProblem p = Problem();
  const int again = OnProcessor() == Processor::kCpu ? 2 : 4;
  const CoreRun<float> first(p, Threads(2)), second(p, Threads(again));
  EXPECT_EQ(first.h, second.h);
  EXPECT_EQ(first.dx, second.dx);
  EXPECT_EQ(first.dkernel, second.dkernel);
  EXPECT_EQ(first.dbias, second.dbias);
  EXPECT_EQ(first.drecurrent_kernel, second.drecurrent_kernel);
  EXPECT_EQ(first.du, second.du);
  EXPECT_EQ(first.dv, second.dv);
}

TEST_P(Rank1LstmCore, InferenceEqualsTrainingForward) {
  const LstmProblem p = Problem();
  const CoreRun<float> training(p, Threads(2)), inference(p, Threads(2), /*training=*/false);
  EXPECT_EQ(inference.h, training.h);
  EXPECT_EQ(inference.final_h, training.final_h);
  EXPECT_EQ(inference.final_c, training.final_c);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rank1LstmCore,
                         ::testing::Combine(::testing::ValuesIn(test_util::LstmCases()),
                                            ::testing::ValuesIn(Processors())),
                         [](const auto& info) {
                           return std::get<0>(info.param).Name() + Name(std::get<1>(info.param));
                         });

class Rank1LstmCoreTest : public ::testing::TestWithParam<Processor> {
 protected:
  static Executor Threads(int threads) { return {{GetParam(), threads}}; }
};

TEST_P(Rank1LstmCoreTest, EmptyTimePassesStatesAndGradientsThrough) {
  for (bool tokens : {false, true}) {
    const LstmProblem p = MakeLstmProblem({0, 5, 3, 7, tokens});
    const CoreRun<double> run(p, Threads(2));
    EXPECT_EQ(run.final_h, run.initial_h);
    EXPECT_EQ(run.final_c, run.initial_c);
    EXPECT_EQ(run.dinitial_h, p.dout.final_h);
    EXPECT_EQ(run.dinitial_c, p.dout.final_c);
    EXPECT_EQ(run.drecurrent_kernel, std::vector<double>(7 * 28, 0.0));
    EXPECT_EQ(run.dkernel, std::vector<double>(3 * 28, 0.0));
    EXPECT_EQ(run.du, std::vector<double>(7, 0.0));
    EXPECT_EQ(run.dv, std::vector<double>(28, 0.0));
    EXPECT_EQ(run.dbias, std::vector<double>(tokens ? 0 : 28, 0.0));
  }
}

TEST_P(Rank1LstmCoreTest, EmptyBatchGivesZeroWeightGradients) {
  for (bool tokens : {false, true}) {
    const CoreRun<double> run(MakeLstmProblem({4, 0, 3, 7, tokens}), Threads(2));
    EXPECT_TRUE(run.h.empty());
    EXPECT_EQ(run.drecurrent_kernel, std::vector<double>(7 * 28, 0.0));
    EXPECT_EQ(run.dkernel, std::vector<double>(3 * 28, 0.0));
    EXPECT_EQ(run.dbias, std::vector<double>(tokens ? 0 : 28, 0.0));
  }
}

TEST_P(Rank1LstmCoreTest, WithoutInputsTheBiasStays) {
  const LstmProblem p = MakeLstmProblem({3, 5, 0, 7, false});
  const CoreRun<double> run(p, Threads(2));
  EXPECT_LE(RelativeError(run.h, reference::Forward(p.inputs).h), kTolerance<double>);
  EXPECT_LE(RelativeError(run.dbias, reference::Backward(p.inputs, p.dout).bias),
            kTolerance<double>);
}

TEST_P(Rank1LstmCoreTest, NaNInOneSequenceStaysInIt) {
  const LstmCase shape{3, 9, 4, 20, false};
  LstmProblem p = MakeLstmProblem(shape);
  const CoreRun<float> clean(p, Threads(1));
  p.inputs.x[2 * 4] = std::numeric_limits<double>::quiet_NaN();  // sequence 2, first step
  const CoreRun<float> run(p, Threads(1));
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

TEST_P(Rank1LstmCoreTest, SaturatedGatesStayFinite) {
  LstmProblem p = MakeLstmProblem({4, 3, 5, 19, false});
  for (double scale : {1e3, 1e30}) {
    for (double& b : p.inputs.bias) b = b < 0 ? -scale : scale;
    const CoreRun<float> run(p, Threads(1));
    for (float h : run.h) EXPECT_LE(std::abs(h), 1.0f);
    EXPECT_LE(RelativeError(run.h, reference::Forward(p.inputs).h), 1e-6);
    EXPECT_LE(RelativeError(run.final_c, reference::Forward(p.inputs).final_c), 1e-6);
    for (float d : run.drecurrent_kernel) EXPECT_TRUE(std::isfinite(d));
  }
}

// With a small initialisation the activations are tiny; their relative, not only their absolute
// error must be that of a float.
TEST_P(Rank1LstmCoreTest, TinyActivationsKeepTheirPrecision) {
  LstmProblem p = MakeLstmProblem({1, 4, 5, 33, false});
  for (auto* values : {&p.inputs.kernel, &p.inputs.recurrent_kernel, &p.inputs.bias,
                       &p.inputs.initial_h, &p.inputs.initial_c}) {
    for (double& value : *values) value = static_cast<float>(value * 1e-6);
  }
  const CoreRun<float> run(p, Threads(1));
  const auto expected = reference::Forward(p.inputs);
  for (size_t i = 0; i < run.h.size(); ++i) {
    EXPECT_NEAR(run.h[i] / expected.h[i], 1.0, 1e-4) << "h[" << i << "] = " << run.h[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Processors, Rank1LstmCoreTest, ::testing::ValuesIn(Processors()),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- On CUDA only: errors of products, and tokens that nobody has checked.

// An error of a product comes back, and nothing is multiplied after it.
TEST(Rank1LstmCudaTest, ErrorsOfProductsEndTheCall) {
  for (const LstmInputForm form : {LstmInputForm::kDense, LstmInputForm::kTokens}) {
    std::vector<float> pool(1000, 0.0f);
    float* next = pool.data();
    auto array = [&] { return next += 16; };
    const std::vector<int32_t> tokens(3, 0);
    const Rank1LstmShape shape{3, 1, 1, 1};
    const Rank1LstmInput<float> input{form, array(), array(), array(), tokens.data(), array()};
    const Rank1LstmForwardArgs<float> forward{shape,   input,   array(), array(), array(),
                                              array(), array(), array(), array(), array(),
                                              array(), array(), array()};
    const Rank1LstmBackwardArgs<float> backward{
        shape,   input,   array(), array(), array(), array(), array(), array(),
        array(), array(), array(), array(), array(), array(), array(), array(),
        array(), array(), array(), array(), array(), array(), array()};
    auto expect_errors = [](int64_t products, const auto& call) {
      for (int64_t good = 0; good <= products; ++good) {
        const cuda_harness::HostMatmul matmul(good);
        EXPECT_EQ(call(matmul), good < products ? matmul.kRefused : "");
        EXPECT_EQ(matmul.refused(), good < products ? 1 : 0);
      }
    };
    const bool dense = form == LstmInputForm::kDense;
    expect_errors(dense ? 4 : 3, [&](const CudaMatmul& matmul) {
      return Rank1LstmForwardGpu(forward, nullptr, matmul);
    });
    expect_errors(dense ? 7 : 5, [&](const CudaMatmul& matmul) {
      return Rank1LstmBackwardGpu(backward, nullptr, matmul);
    });
  }
}

class Rank1LstmUnknownToken : public ::testing::TestWithParam<int32_t> {
 protected:
  static Executor Cuda() { return {{Processor::kCuda, 2}}; }
};

TEST_P(Rank1LstmUnknownToken, MakesItsSequenceNaNFromItsStepOn) {
  constexpr int64_t kT = 4, kN = 5, kH = 33, kStep = 2, kSequence = 3;
  for (bool training : {true, false}) {
    LstmProblem p = MakeLstmProblem({kT, kN, 6, kH, true});
    const CoreRun<float> clean(p, Cuda(), training);
    p.tokens[kStep * kN + kSequence] = GetParam();
    const CoreRun<float> run(p, Cuda(), training);
    for (int64_t i = 0; i < kT * kN * kH; ++i) {
      const int64_t t = i / kH / kN, n = i / kH % kN;
      if (n == kSequence && t >= kStep) {
        EXPECT_TRUE(std::isnan(run.h[i])) << "step " << t;
      } else {
        EXPECT_EQ(run.h[i], clean.h[i]) << "step " << t << " sequence " << n;
      }
    }
    for (int64_t i = 0; i < kN * kH; ++i) {
      EXPECT_EQ(std::isnan(run.final_h[i]), i / kH == kSequence);
      EXPECT_EQ(std::isnan(run.final_c[i]), i / kH == kSequence);
      if (training) {
        EXPECT_EQ(std::isnan(run.dinitial_h[i]), i / kH == kSequence);
      }
    }
  }
}

// As if the sequence were not there.
TEST_P(Rank1LstmUnknownToken, AddsToNoRowOfTheTable) {
  constexpr int64_t kN = 67, kH = 9, kSequence = 40;
  LstmProblem p = MakeLstmProblem({1, kN, 6, kH, true});
  p.tokens[kSequence] = GetParam();
  const CoreRun<double> run(p, Cuda());
  p.tokens[kSequence] = 0;
  for (auto* gradient : {&p.dout.h, &p.dout.final_h, &p.dout.final_c}) {
    std::fill_n(gradient->begin() + kSequence * kH, kH, 0.0);
  }
  EXPECT_LE(RelativeError(run.dkernel, reference::Backward(p.inputs, p.dout).kernel), 1e-13);
}

INSTANTIATE_TEST_SUITE_P(Tokens, Rank1LstmUnknownToken,
                         ::testing::Values(-1, 6, std::numeric_limits<int32_t>::min(),
                                           std::numeric_limits<int32_t>::max()));

}  // namespace
}  // namespace late_phase

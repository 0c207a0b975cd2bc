// The softmax cross-entropy against plain double-precision loops: the CPU core and, in the CUDA
// harness, the CUDA core. No TensorFlow; also run under ASan and UBSan, and with LATE_PHASE_CPU set
// to each instruction set.
#include "kernels/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_harness/host_matmul.h"
#include "tests/cuda_harness/unwritten.h"
#include "tests/kernels/processors.h"
#include "tests/support/softmax_cross_entropy_cases.h"

namespace late_phase {
namespace {

using cuda_harness::Unwritten;
using test_util::Cast;
using test_util::kTolerance;
using test_util::MakeSoftmaxProblem;
using test_util::Name;
using test_util::Processor;
using test_util::Processors;
using test_util::RelativeError;
using test_util::SoftmaxCase;
using test_util::SoftmaxProblem;
using test_util::SoftmaxReference;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Executor : test_util::Executor {
  int64_t ForwardWorkspace(const SoftmaxCrossEntropyShape& shape) const {
    return processor == Processor::kCpu
               ? SoftmaxCrossEntropyForwardWorkspace(shape, test_util::Backwards(threads))
               : SoftmaxCrossEntropyForwardWorkspaceGpu(shape);
  }
  int64_t BackwardWorkspace(const SoftmaxCrossEntropyShape& shape) const {
    return processor == Processor::kCpu
               ? SoftmaxCrossEntropyBackwardWorkspace(shape, test_util::Backwards(threads))
               : SoftmaxCrossEntropyBackwardWorkspaceGpu(shape);
  }
  template <typename T>
  void Forward(const SoftmaxCrossEntropyForwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { SoftmaxCrossEntropyForwardCpu(args, parallel); },
        [&] { return SoftmaxCrossEntropyForwardGpu(args, nullptr, cuda_harness::HostMatmul()); });
  }
  template <typename T>
  void Backward(const SoftmaxCrossEntropyBackwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { SoftmaxCrossEntropyBackwardCpu(args, parallel); },
        [&] { return SoftmaxCrossEntropyBackwardGpu(args, nullptr, cuda_harness::HostMatmul()); });
  }
};

// Owns every array of one forward and backward call, each exactly as large as it must be.
template <typename T>
struct CoreRun {
  using Array = std::vector<T>;

  CoreRun(const SoftmaxProblem& p, const Executor& executor) {
    const auto [n, units, vocab] = p.shape;
    const SoftmaxCrossEntropyShape shape{n, units, vocab};
    const Array features = Cast<T>(p.features), kernel = Cast<T>(p.kernel), bias = Cast<T>(p.bias),
                grad = Cast<T>(p.dloss);
    loss = Unwritten<T>(n);
    dlogits = Unwritten<T>(n * vocab);
    Array workspace = Unwritten<T>(executor.ForwardWorkspace(shape));
    executor.Forward<T>({shape, features.data(), kernel.data(), bias.data(), p.labels.data(),
                         loss.data(), dlogits.data(), workspace.data()});
    dfeatures = Unwritten<T>(n * units);
    dkernel = Unwritten<T>(units * vocab);
    dbias = Unwritten<T>(vocab);
    workspace = Unwritten<T>(executor.BackwardWorkspace(shape));
    executor.Backward<T>({shape, features.data(), kernel.data(), dlogits.data(), grad.data(),
                          dfeatures.data(), dkernel.data(), dbias.data(), workspace.data()});
    for (const Array* output : {&loss, &dlogits, &dfeatures, &dkernel, &dbias}) {
      EXPECT_EQ(cuda_harness::FirstUnwritten(*output), "");
    }
  }

  Array loss, dlogits, dfeatures, dkernel, dbias;
};

template <typename T, typename Expected>
void ExpectClose(const CoreRun<T>& run, const Expected& expected, double tolerance) {
  EXPECT_LE(RelativeError(run.loss, expected.loss), tolerance);
  EXPECT_LE(RelativeError(run.dlogits, expected.dlogits), tolerance);
  EXPECT_LE(RelativeError(run.dfeatures, expected.dfeatures), tolerance);
  EXPECT_LE(RelativeError(run.dkernel, expected.dkernel), tolerance);
  EXPECT_LE(RelativeError(run.dbias, expected.dbias), tolerance);
}

class SoftmaxCrossEntropyCore
    : public ::testing::TestWithParam<std::tuple<SoftmaxCase, Processor>> {
 protected:
  static Processor OnProcessor() { return std::get<1>(GetParam()); }
  static Executor Threads(int threads) { return {{OnProcessor(), threads}}; }

  const SoftmaxProblem problem_ = MakeSoftmaxProblem(std::get<0>(GetParam()));
};

TEST_P(SoftmaxCrossEntropyCore, DoubleEqualsReference) {
  ExpectClose(CoreRun<double>(problem_, Threads(3)), SoftmaxReference(problem_),
              kTolerance<double>);
}

TEST_P(SoftmaxCrossEntropyCore, FloatEqualsReference) {
  ExpectClose(CoreRun<float>(problem_, Threads(3)), SoftmaxReference(problem_), kTolerance<float>);
}

TEST_P(SoftmaxCrossEntropyCore, ThreadsAndProcessorChangeRoundingOnly) {
  const CoreRun<double> one(problem_, {{Processor::kCpu, 1}});
  const bool cpu = OnProcessor() == Processor::kCpu;
  for (int threads : cpu ? std::vector<int>{2, 5, 64} : std::vector<int>{1}) {
    ExpectClose(CoreRun<double>(problem_, Threads(threads)), one, 1e-13);
  }
}

// On CUDA in any order of threads.
TEST_P(SoftmaxCrossEntropyCore, SameThreadCountSameBits) {
  const int again = OnProcessor() == Processor::kCpu ? 2 : 4;
  const CoreRun<float> first(problem_, Threads(2)), second(problem_, Threads(again));
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.dlogits, second.dlogits);
  EXPECT_EQ(first.dfeatures, second.dfeatures);
  EXPECT_EQ(first.dkernel, second.dkernel);
  EXPECT_EQ(first.dbias, second.dbias);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxCrossEntropyCore,
                         ::testing::Combine(::testing::ValuesIn(test_util::SoftmaxCases()),
                                            ::testing::ValuesIn(Processors())),
                         [](const auto& info) {
                           return std::get<0>(info.param).Name() + Name(std::get<1>(info.param));
                         });

class SoftmaxCrossEntropyCoreTest : public ::testing::TestWithParam<Processor> {
 protected:
  static Executor Threads(int threads) { return {{GetParam(), threads}}; }
};

TEST_P(SoftmaxCrossEntropyCoreTest, NoRowsGiveZeroWeightGradients) {
  const CoreRun<double> run(MakeSoftmaxProblem({0, 40, 33}), Threads(2));
  EXPECT_TRUE(run.loss.empty());
  EXPECT_EQ(run.dkernel, std::vector<double>(40 * 33, 0.0));
  EXPECT_EQ(run.dbias, std::vector<double>(33, 0.0));
}

TEST_P(SoftmaxCrossEntropyCoreTest, NoUnitsLeaveTheBias) {
  const SoftmaxProblem p = MakeSoftmaxProblem({70, 0, 33});
  const CoreRun<double> run(p, Threads(2));
  const auto expected = SoftmaxReference(p);
  EXPECT_LE(RelativeError(run.loss, expected.loss), kTolerance<double>);
  EXPECT_LE(RelativeError(run.dbias, expected.dbias), kTolerance<double>);
}

TEST_P(SoftmaxCrossEntropyCoreTest, OneClassIsCertain) {
  const CoreRun<float> run(MakeSoftmaxProblem({70, 5, 1}), Threads(2));
  EXPECT_EQ(run.loss, std::vector<float>(70, 0.0f));
  EXPECT_EQ(run.dlogits, std::vector<float>(70, 0.0f));
  EXPECT_EQ(run.dkernel, std::vector<float>(5, 0.0f));
}

// exp of such a logit is infinite or zero; of its distance to the largest one it is not.
TEST_P(SoftmaxCrossEntropyCoreTest, HugeLogits) {
  for (int64_t vocab : {2, 33, 205, 1030}) {
    for (double size : {1e4, 1e30}) {
      SoftmaxProblem p = MakeSoftmaxProblem({67, 3, vocab});
      for (double& b : p.bias) b = static_cast<float>(b < 0 ? -size : size);
      const auto expected = SoftmaxReference(p);
      ExpectClose(CoreRun<double>(p, Threads(2)), expected, kTolerance<double>);
      // A float of 1e4 is known to 1e-3, and so then are the distances between logits.
      EXPECT_LE(RelativeError(CoreRun<float>(p, Threads(2)).loss, expected.loss), 1e-3);
      for (double shift : {-size, size}) {
        for (double& b : p.bias) b = shift;
        const CoreRun<float> run(p, Threads(2));
        for (float loss : run.loss) EXPECT_TRUE(std::isfinite(loss));
        for (float d : run.dkernel) EXPECT_TRUE(std::isfinite(d));
      }
    }
  }
}

// Each loss and gradient by itself, not only relative to the largest: training ends with sure
// predictions.
TEST_P(SoftmaxCrossEntropyCoreTest, SurePredictionsKeepTheirPrecision) {
  SoftmaxProblem p = MakeSoftmaxProblem({40, 0, 33});
  for (int64_t j = 0; j < 33; ++j) p.bias[j] = j == 32 ? 0 : -10.0 - j;
  for (int32_t& label : p.labels) label = 32;
  const auto expected = SoftmaxReference(p);  // loss and gradient near e^−10
  const CoreRun<float> run(p, Threads(1));
  for (size_t r = 0; r < run.loss.size(); ++r) {
    EXPECT_NEAR(run.loss[r] / expected.loss[r], 1, 1e-6);
  }
  for (size_t i = 0; i < run.dlogits.size(); ++i) {
    EXPECT_NEAR(run.dlogits[i] / expected.dlogits[i], 1, 1e-5) << i;
  }
}

TEST_P(SoftmaxCrossEntropyCoreTest, MinusInfinitySwitchesAClassOff) {
  for (int64_t off : {0, 7, 32}) {
    SoftmaxProblem p = MakeSoftmaxProblem({70, 0, 33});
    p.bias[off] = -kInf;
    for (int64_t r = 0; r < 70; ++r) p.labels[r] = static_cast<int32_t>(r % 33);
    const auto expected = SoftmaxReference(p);
    const CoreRun<float> run(p, Threads(2));
    for (int64_t r = 0; r < 70; ++r) {
      if (p.labels[r] == off) {
        EXPECT_EQ(run.loss[r], std::numeric_limits<float>::infinity());
        EXPECT_EQ(run.dlogits[r * 33 + off], -1.0f);
      } else {
        EXPECT_NEAR(run.loss[r], expected.loss[r], 1e-5);
        EXPECT_EQ(run.dlogits[r * 33 + off], 0.0f);
      }
    }
    EXPECT_LE(RelativeError(run.dlogits, expected.dlogits), kTolerance<float>);
    EXPECT_LE(RelativeError(run.dbias, expected.dbias), kTolerance<float>);
  }
}

TEST_P(SoftmaxCrossEntropyCoreTest, NothingButMinusInfinityIsNaN) {
  SoftmaxProblem p = MakeSoftmaxProblem({3, 0, 20});
  std::fill(p.bias.begin(), p.bias.end(), -kInf);
  for (float loss : CoreRun<float>(p, Threads(1)).loss) EXPECT_TRUE(std::isnan(loss));
}

// NaN, or an infinite logit, which has no distance to itself.
TEST_P(SoftmaxCrossEntropyCoreTest, NaNStaysInItsRow) {
  for (int64_t vocab : {1, 33, 205, 1030}) {
    SoftmaxProblem p = MakeSoftmaxProblem({70, 3, vocab});
    const CoreRun<float> clean(p, Threads(2));
    for (double bad : {kNaN, kInf}) {
      SoftmaxProblem broken = p;
      broken.features[66 * 3] = bad;
      const CoreRun<float> run(broken, Threads(2));
      for (int64_t r = 0; r < 70; ++r) {
        if (r == 66) {
          EXPECT_TRUE(std::isnan(run.loss[r]));
        } else {
          EXPECT_EQ(run.loss[r], clean.loss[r]);
        }
        for (int64_t j = 0; j < vocab; ++j) {
          const float share = run.dlogits[r * vocab + j];
          if (r == 66) {
            EXPECT_TRUE(std::isnan(share));
          } else {
            EXPECT_EQ(share, clean.dlogits[r * vocab + j]);
          }
        }
        for (int64_t i = 0; i < 3 && r != 66; ++i) {
          EXPECT_EQ(run.dfeatures[r * 3 + i], clean.dfeatures[r * 3 + i]);
        }
      }
    }
  }
}

// A single NaN logit, wherever it stands: Highway's maximum and exp both would lose it.
TEST_P(SoftmaxCrossEntropyCoreTest, OneNaNLogitIsEnough) {
  for (int64_t at = 0; at < 37; ++at) {
    SoftmaxProblem p = MakeSoftmaxProblem({2, 0, 37});
    p.bias[at] = kNaN;
    const CoreRun<float> run(p, Threads(1));
    for (float loss : run.loss) EXPECT_TRUE(std::isnan(loss)) << at;
    for (float share : run.dlogits) EXPECT_TRUE(std::isnan(share)) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Processors, SoftmaxCrossEntropyCoreTest, ::testing::ValuesIn(Processors()),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- On CUDA only: errors of products, and labels that nobody has checked.

// An error of a product comes back, and nothing is multiplied after it.
TEST(SoftmaxCrossEntropyCudaTest, ErrorsOfProductsEndTheCall) {
  std::vector<float> pool(100, 0.0f);
  float* next = pool.data();
  auto array = [&] { return next += 4; };
  const std::vector<int32_t> labels(1, 0);
  const SoftmaxCrossEntropyShape shape{1, 1, 1};
  const SoftmaxCrossEntropyForwardArgs<float> forward{shape,         array(), array(), array(),
                                                      labels.data(), array(), array(), array()};
  const SoftmaxCrossEntropyBackwardArgs<float> backward{shape,   array(), array(), array(), array(),
                                                        array(), array(), array(), array()};
  auto expect_errors = [](int64_t products, const auto& call) {
    for (int64_t good = 0; good <= products; ++good) {
      const cuda_harness::HostMatmul matmul(good);
      EXPECT_EQ(call(matmul), good < products ? matmul.kRefused : "");
      EXPECT_EQ(matmul.refused(), good < products ? 1 : 0);
    }
  };
  expect_errors(1, [&](const CudaMatmul& matmul) {
    return SoftmaxCrossEntropyForwardGpu(forward, nullptr, matmul);
  });
  expect_errors(2, [&](const CudaMatmul& matmul) {
    return SoftmaxCrossEntropyBackwardGpu(backward, nullptr, matmul);
  });
}

TEST(SoftmaxCrossEntropyCudaTest, UnknownLabelMakesItsRowNaN) {
  constexpr int64_t kRows = 11, kUnits = 3, kRow = 6;
  const Executor cuda{{Processor::kCuda, 2}};
  for (int32_t vocab : {1, 33, 1030}) {
    const SoftmaxProblem p = MakeSoftmaxProblem({kRows, kUnits, vocab});
    const CoreRun<float> clean(p, cuda);
    for (int32_t label :
         {-1, vocab, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
      SoftmaxProblem broken = p;
      broken.labels[kRow] = label;
      const CoreRun<float> run(broken, cuda);
      // NaN in the row, and every other one as it was.
      auto expect = [](const std::vector<float>& actual, const std::vector<float>& expected) {
        const size_t width = expected.size() / kRows;
        for (size_t i = 0; i < expected.size(); ++i) {
          if (i / width == kRow) {
            EXPECT_TRUE(std::isnan(actual[i])) << i;
          } else {
            EXPECT_EQ(actual[i], expected[i]) << i;
          }
        }
      };
      expect(run.loss, clean.loss);
      expect(run.dlogits, clean.dlogits);
      expect(run.dfeatures, clean.dfeatures);
    }
  }
}

}  // namespace
}  // namespace late_phase

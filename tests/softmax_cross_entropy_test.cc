// The CPU core of the softmax cross-entropy against plain double-precision loops. No TensorFlow;
// also run under ASan and UBSan, and with LATE_PHASE_CPU set to each instruction set.
#include "kernels/softmax_cross_entropy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/backwards.h"
#include "tests/softmax_cross_entropy_cases.h"

namespace late_phase {
namespace {

using testing::Cast;
using testing::kTolerance;
using testing::MakeSoftmaxProblem;
using testing::RelativeError;
using testing::SoftmaxCase;
using testing::SoftmaxProblem;
using testing::SoftmaxReference;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Owns every array of one forward and backward call. Outputs and scratch start as NaN: what the
// core leaves unwritten shows.
template <typename T>
struct CoreRun {
  using Array = std::vector<T>;
  static Array Unwritten(int64_t size) { return Array(size, std::numeric_limits<T>::quiet_NaN()); }

  CoreRun(const SoftmaxProblem& p, const Parallel& parallel) {
    const auto [n, units, vocab] = p.shape;
    const SoftmaxCrossEntropyShape shape{n, units, vocab};
    const Array features = Cast<T>(p.features), kernel = Cast<T>(p.kernel), bias = Cast<T>(p.bias),
                grad = Cast<T>(p.dloss);
    loss = Unwritten(n);
    dlogits = Unwritten(n * vocab);
    Array workspace = Unwritten(SoftmaxCrossEntropyForwardWorkspace(shape, parallel));
    SoftmaxCrossEntropyForwardCpu<T>(
        {shape, features.data(), kernel.data(), bias.data(), p.labels.data(), loss.data(),
         dlogits.data(), workspace.data()},
        parallel);
    dfeatures = Unwritten(n * units);
    dkernel = Unwritten(units * vocab);
    dbias = Unwritten(vocab);
    workspace = Unwritten(SoftmaxCrossEntropyBackwardWorkspace(shape, parallel));
    SoftmaxCrossEntropyBackwardCpu<T>(
        {shape, features.data(), kernel.data(), dlogits.data(), grad.data(), dfeatures.data(),
         dkernel.data(), dbias.data(), workspace.data()},
        parallel);
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

class SoftmaxCrossEntropyCore : public ::testing::TestWithParam<SoftmaxCase> {
 protected:
  const SoftmaxProblem problem_ = MakeSoftmaxProblem(GetParam());
};

TEST_P(SoftmaxCrossEntropyCore, DoubleEqualsReference) {
  ExpectClose(CoreRun<double>(problem_, testing::Backwards(3)), SoftmaxReference(problem_),
              kTolerance<double>);
}

TEST_P(SoftmaxCrossEntropyCore, FloatEqualsReference) {
  ExpectClose(CoreRun<float>(problem_, testing::Backwards(3)), SoftmaxReference(problem_),
              kTolerance<float>);
}

TEST_P(SoftmaxCrossEntropyCore, ThreadCountChangesRoundingOnly) {
  const CoreRun<double> one(problem_, testing::Backwards(1));
  for (int threads : {2, 5, 64}) {
    ExpectClose(CoreRun<double>(problem_, testing::Backwards(threads)), one, 1e-13);
  }
}

TEST_P(SoftmaxCrossEntropyCore, SameThreadCountSameBits) {
  const CoreRun<float> first(problem_, testing::Backwards(2)),
      second(problem_, testing::Backwards(2));
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.dlogits, second.dlogits);
  EXPECT_EQ(first.dfeatures, second.dfeatures);
  EXPECT_EQ(first.dkernel, second.dkernel);
  EXPECT_EQ(first.dbias, second.dbias);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxCrossEntropyCore,
                         ::testing::ValuesIn(testing::SoftmaxCases()),
                         [](const auto& info) { return info.param.Name(); });

TEST(SoftmaxCrossEntropyCoreTest, NoRowsGiveZeroWeightGradients) {
  const CoreRun<double> run(MakeSoftmaxProblem({0, 40, 33}), testing::Backwards(2));
  EXPECT_TRUE(run.loss.empty());
  EXPECT_EQ(run.dkernel, std::vector<double>(40 * 33, 0.0));
  EXPECT_EQ(run.dbias, std::vector<double>(33, 0.0));
}

TEST(SoftmaxCrossEntropyCoreTest, NoUnitsLeaveTheBias) {
  const SoftmaxProblem p = MakeSoftmaxProblem({70, 0, 33});
  const CoreRun<double> run(p, testing::Backwards(2));
  const auto expected = SoftmaxReference(p);
  EXPECT_LE(RelativeError(run.loss, expected.loss), kTolerance<double>);
  EXPECT_LE(RelativeError(run.dbias, expected.dbias), kTolerance<double>);
}

TEST(SoftmaxCrossEntropyCoreTest, OneClassIsCertain) {
  const CoreRun<float> run(MakeSoftmaxProblem({70, 5, 1}), testing::Backwards(2));
  EXPECT_EQ(run.loss, std::vector<float>(70, 0.0f));
  EXPECT_EQ(run.dlogits, std::vector<float>(70, 0.0f));
  EXPECT_EQ(run.dkernel, std::vector<float>(5, 0.0f));
}

// exp of such a logit is infinite or zero; of its distance to the largest one it is not.
TEST(SoftmaxCrossEntropyCoreTest, HugeLogits) {
  for (int64_t vocab : {2, 33, 205}) {
    for (double size : {1e4, 1e30}) {
      SoftmaxProblem p = MakeSoftmaxProblem({67, 3, vocab});
      for (double& b : p.bias) b = static_cast<float>(b < 0 ? -size : size);
      const auto expected = SoftmaxReference(p);
      ExpectClose(CoreRun<double>(p, testing::Backwards(2)), expected, kTolerance<double>);
      // A float of 1e4 is known to 1e-3, and so then are the distances between logits.
      EXPECT_LE(RelativeError(CoreRun<float>(p, testing::Backwards(2)).loss, expected.loss), 1e-3);
      for (double shift : {-size, size}) {
        for (double& b : p.bias) b = shift;
        const CoreRun<float> run(p, testing::Backwards(2));
        for (float loss : run.loss) EXPECT_TRUE(std::isfinite(loss));
        for (float d : run.dkernel) EXPECT_TRUE(std::isfinite(d));
      }
    }
  }
}

// Each loss and gradient by itself, not only relative to the largest: training ends with sure
// predictions.
TEST(SoftmaxCrossEntropyCoreTest, SurePredictionsKeepTheirPrecision) {
  SoftmaxProblem p = MakeSoftmaxProblem({40, 0, 33});
  for (int64_t j = 0; j < 33; ++j) p.bias[j] = j == 32 ? 0 : -10.0 - j;
  for (int32_t& label : p.labels) label = 32;
  const auto expected = SoftmaxReference(p);  // loss and gradient near e^−10
  const CoreRun<float> run(p, testing::Backwards(1));
  for (size_t r = 0; r < run.loss.size(); ++r) {
    EXPECT_NEAR(run.loss[r] / expected.loss[r], 1, 1e-6);
  }
  for (size_t i = 0; i < run.dlogits.size(); ++i) {
    EXPECT_NEAR(run.dlogits[i] / expected.dlogits[i], 1, 1e-5) << i;
  }
}

TEST(SoftmaxCrossEntropyCoreTest, MinusInfinitySwitchesAClassOff) {
  for (int64_t off : {0, 7, 32}) {
    SoftmaxProblem p = MakeSoftmaxProblem({70, 0, 33});
    p.bias[off] = -kInf;
    for (int64_t r = 0; r < 70; ++r) p.labels[r] = static_cast<int32_t>(r % 33);
    const auto expected = SoftmaxReference(p);
    const CoreRun<float> run(p, testing::Backwards(2));
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

TEST(SoftmaxCrossEntropyCoreTest, NothingButMinusInfinityIsNaN) {
  SoftmaxProblem p = MakeSoftmaxProblem({3, 0, 20});
  std::fill(p.bias.begin(), p.bias.end(), -kInf);
  for (float loss : CoreRun<float>(p, testing::Backwards(1)).loss) EXPECT_TRUE(std::isnan(loss));
}

// NaN, or an infinite logit, which has no distance to itself.
TEST(SoftmaxCrossEntropyCoreTest, NaNStaysInItsRow) {
  for (int64_t vocab : {1, 33, 205}) {
    SoftmaxProblem p = MakeSoftmaxProblem({70, 3, vocab});
    const CoreRun<float> clean(p, testing::Backwards(2));
    for (double bad : {kNaN, kInf}) {
      SoftmaxProblem broken = p;
      broken.features[66 * 3] = bad;
      const CoreRun<float> run(broken, testing::Backwards(2));
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
TEST(SoftmaxCrossEntropyCoreTest, OneNaNLogitIsEnough) {
  for (int64_t at = 0; at < 37; ++at) {
    SoftmaxProblem p = MakeSoftmaxProblem({2, 0, 37});
    p.bias[at] = kNaN;
    const CoreRun<float> run(p, testing::Backwards(1));
    for (float loss : run.loss) EXPECT_TRUE(std::isnan(loss)) << at;
    for (float share : run.dlogits) EXPECT_TRUE(std::isnan(share)) << at;
  }
}

}  // namespace
}  // namespace late_phase

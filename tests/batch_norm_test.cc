// The CPU core of batch normalisation against plain double-precision loops. No TensorFlow; also run
// under ASan and UBSan, and with LATE_PHASE_CPU set to each instruction set.
#include "kernels/batch_norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/backwards.h"
#include "tests/batch_norm_cases.h"

namespace late_phase {
namespace {

using testing::BatchNormCase;
using testing::BatchNormProblem;
using testing::BatchNormReference;
using testing::Cast;
using testing::Doubles;
using testing::kTolerance;
using testing::MakeBatchNormProblem;
using testing::RelativeError;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Owns every array of one forward and backward call. Outputs and scratch start as NaN: what the
// core leaves unwritten shows. With `in_place`, y is written over x and dx over dy.
template <typename T>
struct CoreRun {
  using Array = std::vector<T>;
  static Array Unwritten(int64_t size) { return Array(size, std::numeric_limits<T>::quiet_NaN()); }

  CoreRun(const BatchNormProblem& p, const Parallel& parallel, bool in_place = false) {
    const int64_t n = p.shape.n, C = p.shape.channels;
    const BatchNormShape shape{n, C};
    const auto activation =
        p.shape.relu ? BatchNormActivation::kRelu : BatchNormActivation::kIdentity;
    const Array x = Cast<T>(p.x), scale = Cast<T>(p.scale), offset = Cast<T>(p.offset),
                mean = Cast<T>(p.mean), variance = Cast<T>(p.variance), dy = Cast<T>(p.dy);
    y = in_place ? x : Unwritten(n * C);
    dx = in_place ? dy : Unwritten(n * C);
    for (Array* each : {&running_mean, &running_variance, &saved_mean, &saved_mean_rest,
                        &saved_inv_std, &dscale, &doffset}) {
      *each = Unwritten(C);
    }
    Doubles sums(BatchNormSums(shape, parallel), kNaN);
    Array coefficients = Unwritten(BatchNormCoefficients(shape));
    BatchNormForwardCpu<T>({shape,
                            p.shape.is_training,
                            activation,
                            p.epsilon,
                            p.momentum,
                            in_place ? y.data() : x.data(),
                            scale.data(),
                            offset.data(),
                            mean.data(),
                            variance.data(),
                            y.data(),
                            running_mean.data(),
                            running_variance.data(),
                            {saved_mean.data(), saved_mean_rest.data(), saved_inv_std.data()},
                            sums.data(),
                            coefficients.data()},
                           parallel);
    sums.assign(sums.size(), kNaN);
    coefficients = Unwritten(BatchNormCoefficients(shape));
    BatchNormBackwardCpu<T>({shape,
                             p.shape.is_training,
                             activation,
                             x.data(),
                             scale.data(),
                             offset.data(),
                             {saved_mean.data(), saved_mean_rest.data(), saved_inv_std.data()},
                             in_place ? dx.data() : dy.data(),
                             dx.data(),
                             dscale.data(),
                             doffset.data(),
                             sums.data(),
                             coefficients.data()},
                            parallel);
  }

  Array y, running_mean, running_variance, saved_mean, saved_mean_rest, saved_inv_std;
  Array dx, dscale, doffset;
};

template <typename T, typename Expected>
void ExpectClose(const CoreRun<T>& run, const Expected& expected, double tolerance) {
  EXPECT_LE(RelativeError(run.y, expected.y), tolerance);
  EXPECT_LE(RelativeError(run.running_mean, expected.running_mean), tolerance);
  EXPECT_LE(RelativeError(run.running_variance, expected.running_variance), tolerance);
  EXPECT_LE(RelativeError(run.dx, expected.dx), tolerance);
  EXPECT_LE(RelativeError(run.dscale, expected.dscale), tolerance);
  EXPECT_LE(RelativeError(run.doffset, expected.doffset), tolerance);
}

template <typename T>
void ExpectSameBits(const CoreRun<T>& a, const CoreRun<T>& b) {
  EXPECT_EQ(a.y, b.y);
  EXPECT_EQ(a.running_mean, b.running_mean);
  EXPECT_EQ(a.running_variance, b.running_variance);
  EXPECT_EQ(a.dx, b.dx);
  EXPECT_EQ(a.dscale, b.dscale);
  EXPECT_EQ(a.doffset, b.doffset);
}

class BatchNormCore : public ::testing::TestWithParam<BatchNormCase> {
 protected:
  const BatchNormProblem problem_ = MakeBatchNormProblem(GetParam());
};

TEST_P(BatchNormCore, DoubleEqualsReference) {
  ExpectClose(CoreRun<double>(problem_, testing::Backwards(3)), BatchNormReference(problem_),
              kTolerance<double>);
}

TEST_P(BatchNormCore, FloatEqualsReference) {
  ExpectClose(CoreRun<float>(problem_, testing::Backwards(3)), BatchNormReference(problem_),
              kTolerance<float>);
}

TEST_P(BatchNormCore, ThreadCountChangesRoundingOnly) {
  const CoreRun<double> one(problem_, testing::Backwards(1));
  for (int threads : {2, 5, 64}) {
    ExpectClose(CoreRun<double>(problem_, testing::Backwards(threads)), one, 1e-13);
  }
}

TEST_P(BatchNormCore, SameThreadCountSameBits) {
  ExpectSameBits(CoreRun<float>(problem_, testing::Backwards(2)),
                 CoreRun<float>(problem_, testing::Backwards(2)));
}

TEST_P(BatchNormCore, ResultsMayReplaceTheirInputs) {
  ExpectSameBits(CoreRun<float>(problem_, testing::Backwards(2), /*in_place=*/true),
                 CoreRun<float>(problem_, testing::Backwards(2)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormCore, ::testing::ValuesIn(testing::BatchNormCases()),
                         [](const auto& info) { return info.param.Name(); });

TEST(BatchNormCoreTest, NoRowsPassStatisticsThroughAndHaveNoGradient) {
  for (bool is_training : {true, false}) {
    const BatchNormProblem p = MakeBatchNormProblem({0, 37, is_training});
    const CoreRun<double> run(p, testing::Backwards(2));
    EXPECT_TRUE(run.y.empty() && run.dx.empty());
    EXPECT_EQ(run.running_mean, p.mean);
    EXPECT_EQ(run.running_variance, p.variance);
    EXPECT_EQ(run.dscale, Doubles(37, 0.0));
    EXPECT_EQ(run.doffset, Doubles(37, 0.0));
  }
}

TEST(BatchNormCoreTest, NoChannels) {
  EXPECT_TRUE(CoreRun<float>(MakeBatchNormProblem({0, 0}), testing::Backwards(2)).y.empty());
}

TEST(BatchNormCoreTest, InferenceRepeatsTheStatistics) {
  const BatchNormProblem p = MakeBatchNormProblem({70, 37, /*is_training=*/false});
  const CoreRun<float> run(p, testing::Backwards(2));
  EXPECT_EQ(run.running_mean, Cast<float>(p.mean));
  EXPECT_EQ(run.running_variance, Cast<float>(p.variance));
}

// A single row is its own mean: nothing varies, whatever the row.
TEST(BatchNormCoreTest, OneRowGivesTheOffset) {
  const BatchNormProblem p = MakeBatchNormProblem({1, 37});
  const CoreRun<float> run(p, testing::Backwards(2));
  EXPECT_EQ(run.y, Cast<float>(p.offset));
  EXPECT_EQ(run.dx, std::vector<float>(37, 0.0f));
  EXPECT_EQ(run.dscale, std::vector<float>(37, 0.0f));
  EXPECT_EQ(run.doffset, Cast<float>(p.dy));
  for (int64_t j = 0; j < 37; ++j) {
    EXPECT_FLOAT_EQ(run.running_variance[j], (1 - p.momentum) * p.variance[j]);
  }
}

TEST(BatchNormCoreTest, ConstantChannelHasNoVariance) {
  for (double value : {0.1f, 1e30f, -7.0f}) {
    BatchNormProblem p = MakeBatchNormProblem({3001, 21});
    p.momentum = 1;
    std::fill(p.x.begin(), p.x.end(), value);
    const CoreRun<float> run(p, testing::Backwards(2));
    EXPECT_EQ(run.running_mean, std::vector<float>(21, static_cast<float>(value)));
    EXPECT_EQ(run.running_variance, std::vector<float>(21, 0.0f));
    for (int64_t i = 0; i < 3001 * 21; ++i) {
      ASSERT_EQ(run.y[i], static_cast<float>(p.offset[i % 21]));
    }
    EXPECT_EQ(run.dscale, std::vector<float>(21, 0.0f));
  }
}

// Random normal values around `mean`, rounded to float. With `outlier`, the very first row is 0.
BatchNormProblem FarFromZero(int64_t n, double mean, double deviation, bool outlier) {
  BatchNormProblem p = MakeBatchNormProblem({n, 19});
  p.epsilon = 1e-12;
  p.momentum = 1;
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal(mean, deviation);
  for (double& x : p.x) x = static_cast<float>(normal(engine));
  if (outlier) std::fill_n(p.x.begin(), 19, 0.0);
  return p;
}

// A float near 1000 is known to 3e-5, a thousandth of this deviation: only sums of differences, and
// a mean of more digits than a float has, leave anything of y.
TEST(BatchNormCoreTest, LargeMeanKeepsItsPrecision) {
  for (int64_t n : {50, 100000}) {
    for (bool outlier : {false, true}) {
      const BatchNormProblem p = FarFromZero(n, 1000, std::sqrt(1e-3), outlier);
      const CoreRun<float> run(p, testing::Backwards(2));
      const auto expected = BatchNormReference(p);
      ExpectClose(run, expected, 1e-5);
      for (int64_t j = 0; j < 19; ++j) {
        EXPECT_NEAR(run.running_variance[j] / expected.running_variance[j], 1, 1e-5);
      }
    }
  }
}

// Of a million rows a running float sum would forget the last ones.
TEST(BatchNormCoreTest, ManyRowsKeepTheirPrecision) {
  const BatchNormProblem p = FarFromZero(1 << 20, 3, 1, /*outlier=*/false);
  ExpectClose(CoreRun<float>(p, testing::Backwards(1)), BatchNormReference(p), 2e-6);
}

TEST(BatchNormCoreTest, MomentumEndsAreOldAndNewStatistics) {
  BatchNormProblem p = MakeBatchNormProblem({70, 5});
  p.momentum = 0;
  const CoreRun<double> old(p, testing::Backwards(2));
  EXPECT_EQ(old.running_mean, p.mean);
  EXPECT_EQ(old.running_variance, p.variance);
  p.momentum = 1;
  const CoreRun<double> fresh(p, testing::Backwards(2));
  EXPECT_EQ(fresh.running_mean, fresh.saved_mean);
}

TEST(BatchNormCoreTest, NaNStaysInItsChannel) {
  for (bool is_training : {true, false}) {
    for (bool relu : {true, false}) {
      for (int64_t bad_channel : {0, 20, 36}) {
        for (double bad : {kNaN, kInf}) {
          const BatchNormProblem p = MakeBatchNormProblem({70, 37, is_training, relu});
          BatchNormProblem broken = p;
          broken.x[33 * 37 + bad_channel] = bad;
          const CoreRun<float> run(broken, testing::Backwards(2)), clean(p, testing::Backwards(2));
          for (int64_t i = 0; i < 70 * 37; ++i) {
            if (i % 37 != bad_channel) {
              ASSERT_EQ(run.y[i], clean.y[i]);
              ASSERT_EQ(run.dx[i], clean.dx[i]);
            } else if (is_training) {
              ASSERT_TRUE(std::isnan(run.y[i]));
              ASSERT_TRUE(std::isnan(run.dx[i]));
            }
          }
          for (int64_t j = 0; j < 37; ++j) {
            if (j != bad_channel) {
              ASSERT_EQ(run.running_variance[j], clean.running_variance[j]);
              ASSERT_EQ(run.dscale[j], clean.dscale[j]);
            } else if (is_training) {
              ASSERT_TRUE(std::isnan(run.running_mean[j]) || std::isinf(run.running_mean[j]));
              ASSERT_TRUE(std::isnan(run.dscale[j]));
            }
          }
        }
      }
    }
  }
}

// The rectifier passes NaN on: a diverged run must show.
TEST(BatchNormCoreTest, ReluKeepsNaN) {
  BatchNormProblem p = MakeBatchNormProblem({3, 5, /*is_training=*/false, /*relu=*/true});
  p.x[7] = kNaN;
  EXPECT_TRUE(std::isnan(CoreRun<float>(p, testing::Backwards(1)).y[7]));
}

// z is computed anew in the backward pass: it must have the very bits of the forward pass, or dy
// would pass where y is 0. Small steps around z = 0, and a mean that float cannot hold.
TEST(BatchNormCoreTest, GradientPassesExactlyWhereTheOutputIsPositive) {
  BatchNormProblem p = FarFromZero(5000, 1000, 1e-3, /*outlier=*/false);
  p.shape.relu = true;
  std::fill(p.dy.begin(), p.dy.end(), 1.0);
  for (double& offset : p.offset) offset = 0;
  const CoreRun<float> run(p, testing::Backwards(3));
  for (int64_t j = 0; j < 19; ++j) {
    int64_t positive = 0;
    for (int64_t r = 0; r < 5000; ++r) positive += run.y[r * 19 + j] > 0;
    EXPECT_EQ(run.doffset[j], positive);
  }
}

}  // namespace
}  // namespace late_phase

// Batch normalisation against plain double-precision loops: the CPU core and, in the CUDA harness,
// the CUDA core, channels last and channels first. No TensorFlow; also run under ASan and UBSan,
// and with LATE_PHASE_CPU set to each instruction set.
#include "kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/elements.h"
#include "tests/cuda_harness/device_array.h"
#include "tests/kernels/processors.h"
#include "tests/support/batch_norm_cases.h"

namespace late_phase {
namespace {

using cuda_harness::DeviceArray;
using test_util::BatchNormCase;
using test_util::BatchNormProblem;
using test_util::BatchNormReference;
using test_util::Cast;
using test_util::Doubles;
using test_util::kTolerance;
using test_util::MakeBatchNormProblem;
using test_util::Processor;
using test_util::RelativeError;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Where a case runs, and how its rows lie in memory.
struct Place {
  Processor processor;
  bool channels_first = false;

  std::string Name() const {
    return test_util::Name(processor) + std::string(channels_first ? "ChannelsFirst" : "");
  }
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.Name(); }

std::vector<Place> Places() {
  std::vector<Place> places;
  for (const Processor processor : test_util::Processors()) {
    places.push_back({processor});
    if (processor == Processor::kCuda) places.push_back({processor, /*channels_first=*/true});
  }
  return places;
}

struct Executor : test_util::Executor {
  Executor(const Place& place, int threads)
      : test_util::Executor{place.processor, threads}, channels_first(place.channels_first) {}

  // Images as square as the number of rows allows; of no rows, empty ones.
  int64_t Plane(int64_t n) const {
    if (!channels_first) return 1;
    int64_t plane = 0;
    while (plane * plane < n || (n > 0 && n % plane != 0)) ++plane;
    return plane;
  }
  int64_t Sums(const BatchNormShape& shape) const {
    if (processor == Processor::kCuda) return BatchNormSumsGpu(shape);
    return BatchNormSums(shape, test_util::Backwards(threads));
  }
  template <typename T>
  void Forward(const BatchNormForwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { ForwardCpu(args, parallel); },
        [&] { return BatchNormForwardGpu(args, nullptr); });
  }
  template <typename T>
  void Backward(const BatchNormBackwardArgs<T>& args) const {
    Run([&](const Parallel& parallel) { BackwardCpu(args, parallel); },
        [&] { return BatchNormBackwardGpu(args, nullptr); });
  }

  bool channels_first;

 private:
  // The CPU core has no 16-bit types.
  template <typename T>
  static void ForwardCpu(const BatchNormForwardArgs<T>& args, const Parallel& parallel) {
    if constexpr (sizeof(T) > 2) BatchNormForwardCpu(args, parallel);
  }
  template <typename T>
  static void BackwardCpu(const BatchNormBackwardArgs<T>& args, const Parallel& parallel) {
    if constexpr (sizeof(T) > 2) BatchNormBackwardCpu(args, parallel);
  }
};

// [n,C] in the memory of a core: as [n/plane, C, plane], behind `before` elements of another array,
// which must stay.
template <typename T>
class Rows {
 public:
  using Scalar = ComputeType<T>;

  Rows(const BatchNormShape& shape, int64_t before)
      : shape_(shape), before_(before), array_(before + shape.n * shape.C) {
    std::fill_n(array_.data(), before, T{});
  }
  Rows(const BatchNormShape& shape, int64_t before, const Doubles& values) : Rows(shape, before) {
    ForEach([&](int64_t i, int64_t position) {
      data()[position] = Rounded<T>(static_cast<Scalar>(values[i]));
    });
  }

  T* data() { return array_.data() + before_; }
  // All of it, written.
  std::vector<Scalar> Values() {
    EXPECT_WRITTEN(array_);
    for (int64_t i = 0; i < before_; ++i) EXPECT_EQ(Widened(array_[i]), 0);
    std::vector<Scalar> values(shape_.n * shape_.C);
    ForEach([&](int64_t i, int64_t position) { values[i] = Widened(data()[position]); });
    return values;
  }

 private:
  // each(i, position): where the i-th of [n,C] is.
  template <class Each>
  void ForEach(const Each& each) const {
    const int64_t C = shape_.C, plane = shape_.plane;
    for (int64_t row = 0, i = 0; row < shape_.n; ++row) {
      const int64_t position = row / plane * C * plane + row % plane;
      for (int64_t channel = 0; channel < C; ++channel) each(i++, position + channel * plane);
    }
  }

  BatchNormShape shape_;
  int64_t before_;
  DeviceArray<T> array_;
};

template <typename T>
std::vector<T> Written(DeviceArray<T>& array) {
  EXPECT_WRITTEN(array);
  return {array.data(), array.data() + array.size()};
}

struct Arrangement {
  bool in_place = false;  // y is written over x and dx over dy
  int64_t before = 0;     // elements before the rows, so that they are not aligned
};

// The results of one forward and backward call, each of whose arrays is exactly as large as it must
// be. What the core leaves unwritten shows.
template <typename T>
struct CoreRun {
  using Scalar = ComputeType<T>;
  using Scalars = std::vector<Scalar>;

  CoreRun(const BatchNormProblem& p, const Executor& executor,
          const Arrangement& arrangement = {}) {
    const int64_t n = p.shape.n, C = p.shape.channels;
    const BatchNormShape shape{n, C, executor.Plane(n)};
    const auto activation =
        p.shape.relu ? BatchNormActivation::kRelu : BatchNormActivation::kIdentity;
    const Scalars scale = Cast<Scalar>(p.scale), offset = Cast<Scalar>(p.offset),
                  mean = Cast<Scalar>(p.mean), variance = Cast<Scalar>(p.variance);
    const int64_t before = arrangement.before;
    Rows<T> x(shape, before, p.x), dy(shape, before, p.dy);
    Rows<T> y_rows = arrangement.in_place ? Rows<T>(shape, before, p.x) : Rows<T>(shape, before);
    Rows<T> dx_rows = arrangement.in_place ? Rows<T>(shape, before, p.dy) : Rows<T>(shape, before);
    DeviceArray<Scalar> running[2] = {DeviceArray<Scalar>(C), DeviceArray<Scalar>(C)};
    DeviceArray<Scalar> saved[3] = {DeviceArray<Scalar>(C), DeviceArray<Scalar>(C),
                                    DeviceArray<Scalar>(C)};
    DeviceArray<Scalar> gradients[2] = {DeviceArray<Scalar>(C), DeviceArray<Scalar>(C)};
    {
      DeviceArray<double> sums(executor.Sums(shape));
      DeviceArray<Scalar> coefficients(BatchNormCoefficients(shape));
      executor.Forward<T>({shape,
                           p.shape.is_training,
                           activation,
                           p.epsilon,
                           p.momentum,
                           arrangement.in_place ? y_rows.data() : x.data(),
                           scale.data(),
                           offset.data(),
                           mean.data(),
                           variance.data(),
                           y_rows.data(),
                           running[0].data(),
                           running[1].data(),
                           {saved[0].data(), saved[1].data(), saved[2].data()},
                           sums.data(),
                           coefficients.data()});
    }
    DeviceArray<double> sums(executor.Sums(shape));
    DeviceArray<Scalar> coefficients(BatchNormCoefficients(shape));
    executor.Backward<T>({shape,
                          p.shape.is_training,
                          activation,
                          x.data(),
                          scale.data(),
                          offset.data(),
                          {saved[0].data(), saved[1].data(), saved[2].data()},
                          arrangement.in_place ? dx_rows.data() : dy.data(),
                          dx_rows.data(),
                          gradients[0].data(),
                          gradients[1].data(),
                          sums.data(),
                          coefficients.data()});
    y = y_rows.Values();
    running_mean = Written(running[0]);
    running_variance = Written(running[1]);
    saved_mean = Written(saved[0]);
    saved_mean_rest = Written(saved[1]);
    saved_inv_std = Written(saved[2]);
    dx = dx_rows.Values();
    dscale = Written(gradients[0]);
    doffset = Written(gradients[1]);
  }

  Scalars y, running_mean, running_variance, saved_mean, saved_mean_rest, saved_inv_std;
  Scalars dx, dscale, doffset;
};

// `rounding` is what y and dx, which may be of 16 bits, are allowed besides.
template <typename T, typename Expected>
void ExpectClose(const CoreRun<T>& run, const Expected& expected, double tolerance,
                 double rounding = 0) {
  EXPECT_LE(RelativeError(run.y, expected.y), tolerance + rounding);
  EXPECT_LE(RelativeError(run.running_mean, expected.running_mean), tolerance);
  EXPECT_LE(RelativeError(run.running_variance, expected.running_variance), tolerance);
  EXPECT_LE(RelativeError(run.dx, expected.dx), tolerance + rounding);
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

// A case and where it runs.
using Parameters = std::tuple<BatchNormCase, Place>;

std::string Name(const ::testing::TestParamInfo<Parameters>& info) {
  return std::get<0>(info.param).Name() + std::get<1>(info.param).Name();
}

// All cases on the CPU and on CUDA. Channels first, since the harness takes its time, every shape
// in training with ReLU and in inference without: this runs every kernel and line.
std::vector<Parameters> AllParameters() {
  std::vector<Parameters> parameters;
  for (const BatchNormCase& shape : test_util::BatchNormCases()) {
    for (const Place& place : Places()) {
      const bool every = !place.channels_first;
      if (every || shape.is_training == shape.relu) parameters.push_back({shape, place});
    }
  }
  return parameters;
}

// Where bits are compared, on CUDA every shape in training with ReLU.
std::vector<Parameters> BitsParameters() {
  std::vector<Parameters> parameters;
  for (const auto& [shape, place] : AllParameters()) {
    const bool every = place.processor == Processor::kCpu;
    if (every || (shape.is_training && shape.relu)) parameters.push_back({shape, place});
  }
  return parameters;
}

class BatchNormCore : public ::testing::TestWithParam<Parameters> {
 protected:
  static Place place() { return std::get<1>(GetParam()); }
  static Executor Threads(int threads) { return {place(), threads}; }

  const BatchNormProblem problem_ = MakeBatchNormProblem(std::get<0>(GetParam()));
};

TEST_P(BatchNormCore, DoubleEqualsReference) {
  ExpectClose(CoreRun<double>(problem_, Threads(3)), BatchNormReference(problem_),
              kTolerance<double>);
}

TEST_P(BatchNormCore, FloatEqualsReference) {
  ExpectClose(CoreRun<float>(problem_, Threads(3)), BatchNormReference(problem_),
              kTolerance<float>);
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormCore, ::testing::ValuesIn(AllParameters()), Name);

class BatchNormBits : public BatchNormCore {};

TEST_P(BatchNormBits, ThreadCountChangesRoundingOnly) {
  const CoreRun<double> one(problem_, Threads(1));
  // On CUDA, where another count is another order of the threads, nothing.
  const bool cuda = place().processor == Processor::kCuda;
  const double rounding = cuda ? 0 : 1e-13;
  for (int threads : cuda ? std::vector<int>{2, 64} : std::vector<int>{2, 5, 64}) {
    ExpectClose(CoreRun<double>(problem_, Threads(threads)), one, rounding);
  }
}

TEST_P(BatchNormBits, SameThreadCountSameBits) {
  ExpectSameBits(CoreRun<float>(problem_, Threads(2)), CoreRun<float>(problem_, Threads(2)));
}

TEST_P(BatchNormBits, ResultsMayReplaceTheirInputs) {
  ExpectSameBits(CoreRun<float>(problem_, Threads(2), {/*in_place=*/true}),
                 CoreRun<float>(problem_, Threads(2)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormBits, ::testing::ValuesIn(BitsParameters()), Name);

class BatchNormPlace : public ::testing::TestWithParam<Place> {
 protected:
  static Executor Threads(int threads) { return {GetParam(), threads}; }
};

TEST_P(BatchNormPlace, NoRowsPassStatisticsThroughAndHaveNoGradient) {
  for (bool is_training : {true, false}) {
    const BatchNormProblem p = MakeBatchNormProblem({0, 37, is_training});
    const CoreRun<double> run(p, Threads(2));
    EXPECT_TRUE(run.y.empty() && run.dx.empty());
    EXPECT_EQ(run.running_mean, p.mean);
    EXPECT_EQ(run.running_variance, p.variance);
    EXPECT_EQ(run.dscale, Doubles(37, 0.0));
    EXPECT_EQ(run.doffset, Doubles(37, 0.0));
  }
}

TEST_P(BatchNormPlace, NoRowsHaveNoGradientWhateverTheStatistics) {
  BatchNormProblem p = MakeBatchNormProblem({0, 3});
  p.mean[1] = kNaN;
  const CoreRun<float> run(p, Threads(2));
  EXPECT_EQ(run.dscale, std::vector<float>(3, 0.0f));
  EXPECT_EQ(run.doffset, std::vector<float>(3, 0.0f));
}

TEST_P(BatchNormPlace, NoChannels) {
  EXPECT_TRUE(CoreRun<float>(MakeBatchNormProblem({0, 0}), Threads(2)).y.empty());
}

TEST_P(BatchNormPlace, InferenceRepeatsTheStatistics) {
  const BatchNormProblem p = MakeBatchNormProblem({70, 37, /*is_training=*/false});
  const CoreRun<float> run(p, Threads(2));
  EXPECT_EQ(run.running_mean, Cast<float>(p.mean));
  EXPECT_EQ(run.running_variance, Cast<float>(p.variance));
}

// A single row is its own mean: nothing varies, whatever the row.
TEST_P(BatchNormPlace, OneRowGivesTheOffset) {
  const BatchNormProblem p = MakeBatchNormProblem({1, 37});
  const CoreRun<float> run(p, Threads(2));
  EXPECT_EQ(run.y, Cast<float>(p.offset));
  EXPECT_EQ(run.dx, std::vector<float>(37, 0.0f));
  EXPECT_EQ(run.dscale, std::vector<float>(37, 0.0f));
  EXPECT_EQ(run.doffset, Cast<float>(p.dy));
  for (int64_t j = 0; j < 37; ++j) {
    EXPECT_FLOAT_EQ(run.running_variance[j], (1 - p.momentum) * p.variance[j]);
  }
}

TEST_P(BatchNormPlace, ConstantChannelHasNoVariance) {
  for (double value : {0.1f, 1e30f, -7.0f}) {
    BatchNormProblem p = MakeBatchNormProblem({3001, 21});
    p.momentum = 1;
    std::fill(p.x.begin(), p.x.end(), value);
    const CoreRun<float> run(p, Threads(2));
    EXPECT_EQ(run.running_mean, std::vector<float>(21, static_cast<float>(value)));
    EXPECT_EQ(run.running_variance, std::vector<float>(21, 0.0f));
    for (int64_t i = 0; i < 3001 * 21; ++i) {
      ASSERT_EQ(run.y[i], static_cast<float>(p.offset[i % 21]));
    }
    EXPECT_EQ(run.dscale, std::vector<float>(21, 0.0f));
  }
}

// Random normal values around `mean`, rounded to float. With `outlier`, the very first row is 0.
BatchNormProblem FarFromZero(int64_t n, int64_t channels, double mean, double deviation,
                             bool outlier) {
  BatchNormProblem p = MakeBatchNormProblem({n, channels});
  p.epsilon = 1e-12;
  p.momentum = 1;
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal(mean, deviation);
  for (double& x : p.x) x = static_cast<float>(normal(engine));
  if (outlier) std::fill_n(p.x.begin(), channels, 0.0);
  return p;
}

// A float near 1000 is known to 3e-5, a thousandth of this deviation: only sums of differences, and
// a mean of more digits than a float has, leave anything of y.
TEST_P(BatchNormPlace, LargeMeanKeepsItsPrecision) {
  for (int64_t n : {50, 100000}) {
    for (bool outlier : {false, true}) {
      const BatchNormProblem p = FarFromZero(n, 19, 1000, std::sqrt(1e-3), outlier);
      const CoreRun<float> run(p, Threads(2));
      const auto expected = BatchNormReference(p);
      ExpectClose(run, expected, 1e-5);
      for (int64_t j = 0; j < 19; ++j) {
        EXPECT_NEAR(run.running_variance[j] / expected.running_variance[j], 1, 1e-5);
      }
    }
  }
}

// Of a million rows a running float sum would forget the last ones; on CUDA, the last slices.
TEST_P(BatchNormPlace, ManyRowsKeepTheirPrecision) {
  const int64_t n = GetParam().processor == Processor::kCpu ? 1 << 20 : 1 << 18;
  const BatchNormProblem p = FarFromZero(n, 5, 3, 1, /*outlier=*/false);
  ExpectClose(CoreRun<float>(p, Threads(1)), BatchNormReference(p), 2e-6);
}

TEST_P(BatchNormPlace, MomentumEndsAreOldAndNewStatistics) {
  BatchNormProblem p = MakeBatchNormProblem({70, 5});
  p.momentum = 0;
  const CoreRun<double> old(p, Threads(2));
  EXPECT_EQ(old.running_mean, p.mean);
  EXPECT_EQ(old.running_variance, p.variance);
  p.momentum = 1;
  const CoreRun<double> fresh(p, Threads(2));
  EXPECT_EQ(fresh.running_mean, fresh.saved_mean);
}

TEST_P(BatchNormPlace, NaNStaysInItsChannel) {
  for (bool is_training : {true, false}) {
    for (bool relu : {true, false}) {
      for (int64_t bad_channel : {0, 20, 36}) {
        for (double bad : {kNaN, kInf}) {
          const BatchNormProblem p = MakeBatchNormProblem({70, 37, is_training, relu});
          BatchNormProblem broken = p;
          broken.x[33 * 37 + bad_channel] = bad;
          const CoreRun<float> run(broken, Threads(2)), clean(p, Threads(2));
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

// With frozen statistics dx = scale · dz / √(σ² + epsilon) whatever x is: an x that is not finite
// shows in y and, since x̂ is a factor of it, in dscale.
TEST_P(BatchNormPlace, InferenceGradientOfAnInputThatIsNotFinite) {
  for (bool relu : {true, false}) {
    for (int64_t bad_channel : {0, 20, 36}) {
      for (double bad : {kNaN, kInf, -kInf}) {
        BatchNormProblem p = MakeBatchNormProblem({70, 37, /*is_training=*/false, relu});
        p.x[33 * 37 + bad_channel] = bad;
        const CoreRun<float> run(p, Threads(2));
        const auto expected = BatchNormReference(p);
        EXPECT_LT(RelativeError(run.dx, expected.dx), kTolerance<float>);
        EXPECT_LT(RelativeError(run.doffset, expected.doffset), kTolerance<float>);
        for (int64_t j = 0; j < 37; ++j) {
          EXPECT_EQ(std::isfinite(run.dscale[j]), j != bad_channel);
          EXPECT_EQ(std::isfinite(run.dscale[j]), std::isfinite(expected.dscale[j]));
        }
      }
    }
  }
}

// The rectifier passes NaN on: a diverged run must show.
TEST_P(BatchNormPlace, ReluKeepsNaN) {
  BatchNormProblem p = MakeBatchNormProblem({3, 5, /*is_training=*/false, /*relu=*/true});
  p.x[7] = kNaN;
  EXPECT_TRUE(std::isnan(CoreRun<float>(p, Threads(1)).y[7]));
}

// z is recomputed in the backward pass: it must have exactly the bits of the forward pass, or dy
// would pass where y is 0. Small steps around z = 0, and a mean that float cannot hold.
TEST_P(BatchNormPlace, GradientPassesExactlyWhereTheOutputIsPositive) {
  BatchNormProblem p = FarFromZero(5000, 19, 1000, 1e-3, /*outlier=*/false);
  p.shape.relu = true;
  std::fill(p.dy.begin(), p.dy.end(), 1.0);
  for (double& offset : p.offset) offset = 0;
  const CoreRun<float> run(p, Threads(3));
  for (int64_t j = 0; j < 19; ++j) {
    int64_t positive = 0;
    for (int64_t r = 0; r < 5000; ++r) positive += run.y[r * 19 + j] > 0;
    EXPECT_EQ(run.doffset[j], positive);
  }
}

// Whole packs in a larger array, which begin anywhere.
TEST_P(BatchNormPlace, UnalignedRowsAreWrittenAndNothingBesides) {
  for (const auto& [n, channels] : {std::pair(36, 8), std::pair(64, 5), std::pair(144, 16)}) {
    for (int64_t before : {1, 2, 3, 8}) {
      const BatchNormProblem p = MakeBatchNormProblem({n, channels, true, /*relu=*/true});
      ExpectClose(CoreRun<float>(p, Threads(2), {false, before}), BatchNormReference(p),
                  kTolerance<float>);
      ExpectClose(CoreRun<double>(p, Threads(2), {false, before}), BatchNormReference(p),
                  kTolerance<double>);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, BatchNormPlace, ::testing::ValuesIn(Places()),
                         [](const auto& info) { return info.param.Name(); });

// What the CUDA core alone has.
class BatchNormCuda : public BatchNormPlace {};

std::vector<Place> CudaPlaces() {
  std::vector<Place> places;
  for (const Place& place : Places()) {
    if (place.processor == Processor::kCuda) places.push_back(place);
  }
  return places;
}

// Sizes around a warp, a block, the rows of a slice and the blocks that the harness's device runs
// at once, with and without whole packs in either layout.
const std::vector<std::pair<int64_t, int64_t>> kCudaSizes = {
    {1, 256},  {31, 1},    {32, 32},  {33, 31},   {257, 33},   {256, 257}, {64, 1028},
    {96, 520}, {8192, 4},  {8200, 1}, {16384, 1}, {16385, 2},  {1000, 40}, {4096, 12},
    {3, 4000}, {2209, 16}, {400, 64}, {12100, 8}, {40000, 10}, {6241, 24}};

TEST_P(BatchNormCuda, EqualsTheCpuCore) {
  uint64_t seed = 2;
  for (const auto& [n, channels] : kCudaSizes) {
    SCOPED_TRACE(std::to_string(n) + " rows, " + std::to_string(channels) + " channels");
    const BatchNormCase shape{n, channels, /*is_training=*/seed % 4 != 0, /*relu=*/seed % 2 == 0};
    const BatchNormProblem p = MakeBatchNormProblem(shape, seed++);
    const CoreRun<double> cpu(p, {{Processor::kCpu}, 2});
    ExpectClose(CoreRun<double>(p, Threads(1)), cpu, 1e-12);
    ExpectClose(CoreRun<float>(p, Threads(2)), cpu, 3e-6);
  }
}

template <typename T>
BatchNormProblem RoundRows(BatchNormProblem p) {
  for (Doubles* rows : {&p.x, &p.dy}) {
    for (double& value : *rows) value = Widened(Rounded<T>(static_cast<float>(value)));
  }
  return p;
}

// 16-bit rows: everything but their own rounding is as precise as in float.
template <typename T>
void ExpectHalfEqualsReference(const Executor& executor, double rounding) {
  for (const auto& [n, channels] : kCudaSizes) {
    SCOPED_TRACE(std::to_string(n) + " rows, " + std::to_string(channels) + " channels");
    const bool is_training = n != 400, relu = channels % 3 > 0;
    const BatchNormProblem p = RoundRows<T>(MakeBatchNormProblem({n, channels, is_training, relu}));
    const Arrangement arrangement{/*in_place=*/n % 3 == 0, /*before=*/n % 8 > 0 ? 0 : n % 5};
    ExpectClose(CoreRun<T>(p, executor, arrangement), BatchNormReference(p), kTolerance<float>,
                rounding);
  }
}
TEST_P(BatchNormCuda, HalfEqualsReference) {
  ExpectHalfEqualsReference<Half>(Threads(3), 1.0 / (1 << 11));
}
TEST_P(BatchNormCuda, BFloat16EqualsReference) {
  ExpectHalfEqualsReference<BFloat16>(Threads(2), 1.0 / (1 << 8));
}

TEST_P(BatchNormCuda, NoHalfRows) {
  const CoreRun<Half> run(MakeBatchNormProblem({0, 5}), Threads(1));
  EXPECT_EQ(run.dscale, std::vector<float>(5, 0.0f));
  CoreRun<BFloat16>(MakeBatchNormProblem({0, 0}), Threads(1));
}

// So many elements that the number of slices is bounded, and rows that make no equal slices of
// whole packs: 125 planes of 132 pixels. Every channel has its own numbers, c and c + 1 by turns.
TEST_P(BatchNormCuda, BoundedSlicesCutNoPack) {
  constexpr int64_t kImages = 125, kPlane = 132, n = kImages * kPlane, C = 512;
  const bool channels_first = GetParam().channels_first;
  const BatchNormShape shape{n, C, channels_first ? kPlane : 1};
  DeviceArray<float> x(n * C), scale(std::vector<float>(C, 1)), offset(std::vector<float>(C, 0));
  for (int64_t i = 0; i < n * C; ++i) {
    const int64_t channel = channels_first ? i / kPlane % C : i % C;
    const int64_t row = channels_first ? i % kPlane : i / C;
    x.data()[i] = static_cast<float>(channel + row % 2);
  }
  DeviceArray<float> mean(C), variance(C),
      saved[3] = {DeviceArray<float>(C), DeviceArray<float>(C), DeviceArray<float>(C)};
  DeviceArray<double> sums(BatchNormSumsGpu(shape));
  DeviceArray<float> coefficients(BatchNormCoefficients(shape));
  Threads(1).Forward<float>({shape,
                             true,
                             BatchNormActivation::kIdentity,
                             /*epsilon=*/0.75,
                             /*momentum=*/1,
                             x.data(),
                             scale.data(),
                             offset.data(),
                             offset.data(),
                             offset.data(),
                             x.data(),
                             mean.data(),
                             variance.data(),
                             {saved[0].data(), saved[1].data(), saved[2].data()},
                             sums.data(),
                             coefficients.data()});
  for (int64_t c = 0; c < C; ++c) {
    EXPECT_EQ(mean[c], c + 0.5f);
    EXPECT_FLOAT_EQ(variance[c], 0.25 * n / (n - 1));
  }
  for (int64_t i = 0; i < n * C; ++i) ASSERT_EQ(std::abs(x[i]), 0.5f) << i;
}

// There is none where LATE_PHASE_CPU is set.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BatchNormCuda);
INSTANTIATE_TEST_SUITE_P(Places, BatchNormCuda, ::testing::ValuesIn(CudaPlaces()),
                         [](const auto& info) { return info.param.Name(); });

// The scratch for sums is bounded, however many rows and channels there are.
TEST(BatchNormSumsTest, BoundedByTheShape) {
  for (int64_t n : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 40}) {
    for (int64_t C : {1, 3, 128, 160, 4096, 1 << 20}) {
      for (int64_t plane : {int64_t{1}, n}) {
        EXPECT_LE(BatchNormSumsGpu({n, C, plane}), std::max<int64_t>(2 * 128 * 1024, 2 * C));
      }
    }
  }
  EXPECT_EQ(BatchNormSumsGpu({0, 160}), 0);
  EXPECT_EQ(BatchNormSumsGpu({0, 0, 0}), 0);
}

}  // namespace
}  // namespace late_phase

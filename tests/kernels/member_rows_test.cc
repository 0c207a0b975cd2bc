// Spawning, SWA and collapsing, and the random numbers beneath: the CPU core and, in the CUDA
// harness, the CUDA core, whose bits must be the CPU core's. No TensorFlow; also run under ASan and
// UBSan, and with LATE_PHASE_CPU set to each instruction set. Statistics are of fixed seeds; their
// bounds are five standard errors.
#include "kernels/member_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/elements.h"
#include "kernels/philox_normal.h"
#include "tests/cuda_harness/device_array.h"
#include "tests/kernels/processors.h"

namespace late_phase {
namespace {

using cuda_harness::DeviceArray;
using test_util::Processor;

struct Executor : test_util::Executor {
  template <typename T>
  void Spawn(const SpawnArgs<T>& args) const {
    Run([&](const Parallel& parallel) { SpawnCpu(args, parallel); },
        [&] { return SpawnGpu(args, nullptr); });
  }
  template <typename T>
  void SwaUpdate(int64_t D, const T* source, int64_t count, T* average) const {
    Run([&](const Parallel& parallel) { SwaUpdateCpu(D, source, count, average, parallel); },
        [&] { return SwaUpdateGpu(D, source, count, average, nullptr); });
  }
  template <typename T>
  void Collapse(int64_t K, int64_t D, const T* rows, T* mean) const {
    Run([&](const Parallel& parallel) { CollapseCpu(K, D, rows, mean, parallel); },
        [&] { return CollapseGpu(K, D, rows, mean, nullptr); });
  }
};

// Cases that run on every processor.
class OnProcessor : public ::testing::TestWithParam<Processor> {
 protected:
  static Executor Threads(int threads) { return {{GetParam(), threads}}; }
};
class SpawnTest : public OnProcessor {};
class SwaTest : public OnProcessor {};
class CollapseTest : public OnProcessor {};
class MemberRowsTest : public OnProcessor {};

std::string ProcessorName(const ::testing::TestParamInfo<Processor>& info) {
  return test_util::Name(info.param);
}
INSTANTIATE_TEST_SUITE_P(On, SpawnTest, ::testing::ValuesIn(test_util::Processors()),
                         ProcessorName);
INSTANTIATE_TEST_SUITE_P(On, SwaTest, ::testing::ValuesIn(test_util::Processors()), ProcessorName);
INSTANTIATE_TEST_SUITE_P(On, CollapseTest, ::testing::ValuesIn(test_util::Processors()),
                         ProcessorName);
INSTANTIATE_TEST_SUITE_P(On, MemberRowsTest, ::testing::ValuesIn(test_util::Processors()),
                         ProcessorName);

template <typename T>
std::vector<T> Randoms(int64_t size, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<T> values(size);
  for (T& value : values) value = uniform(engine);
  return values;
}

template <typename T>
double Rms(const T* x, int64_t D) {
  double sum = 0;
  for (int64_t i = 0; i < D; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum / D);
}

template <typename T>
std::vector<T> Spawned(const Executor& executor, const std::vector<T>& row0, int64_t K,
                       double sigma, int64_t seed0 = 1, int64_t seed1 = 2) {
  const int64_t D = row0.size();
  std::vector<T> rows(K * D, std::numeric_limits<T>::quiet_NaN());
  std::copy(row0.begin(), row0.end(), rows.begin());
  std::vector<double> sums(SpawnSums(D));
  executor.Spawn<T>({K, D, rows.data(), static_cast<T>(sigma), {seed0, seed1}, sums.data()});
  return rows;
}

TEST(PhiloxTest, KnownAnswers) {
  // The vectors published with Random123.
  auto expect = [](PhiloxWords counter, PhiloxKey key, PhiloxWords expected) {
    const PhiloxWords actual = Philox(counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], expected.word[i]);
  };
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  expect({{0, 0, 0, 0}}, {{0, 0}}, {{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}});
  expect({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}},
         {{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}});
}

TEST(NormalTest, LogarithmIsThatOfTheLibrary) {
  std::mt19937 engine(1);
  for (int i = 0; i < 200000; ++i) {
    const float u = (engine() + 0.5f) * 0x1p-32f;
    EXPECT_NEAR(Logarithm(u), std::log(static_cast<double>(u)),
                2e-7 * std::abs(std::log(static_cast<double>(u))));
  }
  for (float u : {0x1p-33f, 0x1p-32f, 0.70710677f, 0.70710684f, 0.5f, 1 - 0x1p-24f, 1 - 0x1p-23f}) {
    EXPECT_NEAR(Logarithm(u) / std::log(static_cast<double>(u)), 1, 2e-7) << u;
  }
  EXPECT_EQ(Logarithm(1), 0);
}

TEST(NormalTest, SineAndCosineAreThoseOfTheLibrary) {
  std::mt19937 engine(2);
  auto check = [](uint32_t x) {
    float sine, cosine;
    SineCosine(x, &sine, &cosine);
    const double angle = 2 * M_PI * (x / 4294967296.0);
    EXPECT_NEAR(sine, std::sin(angle), 1.5e-7) << x;
    EXPECT_NEAR(cosine, std::cos(angle), 1.5e-7) << x;
  };
  for (int i = 0; i < 200000; ++i) check(engine());
  for (uint32_t eighth = 0; eighth < 8; ++eighth) {
    for (int32_t off : {-1, 0, 1}) check((eighth << 29) + static_cast<uint32_t>(off));
  }
}

TEST(NormalTest, ExtremeWordsGiveFiniteNormals) {
  constexpr uint32_t kOnes = 0xFFFFFFFF, kHalf = 0x80000000;
  const std::vector<uint32_t> extremes = {0,         1,           2,         kHalf - 1, kHalf,
                                          kHalf + 1, kOnes - 255, kOnes - 1, kOnes};
  for (uint32_t radius : extremes) {
    for (uint32_t angle : extremes) {
      float first, second;
      NormalPair(radius, angle, &first, &second);
      EXPECT_TRUE(std::isfinite(first) && std::isfinite(second)) << radius << " " << angle;
      EXPECT_LE(std::hypot(first, second), 6.77);
    }
  }
  float largest, zero;
  NormalPair(0, 0, &largest, &zero);
  EXPECT_NEAR(largest, std::sqrt(66 * std::log(2.0)), 1e-5);
  EXPECT_EQ(zero, 0);
}

// The core's vector loops against the header's functions, element by element, as the header
// documents the places.
template <typename T>
void ExpectRowsAreDocumentedNormals(const Executor& executor) {
  for (int64_t D : {1, 7, 63, 64, 65, 255, 256, 257, 1000, 40000}) {
    constexpr int64_t K = 3;
    const std::vector<T> row0 = Randoms<T>(D, 9);
    const std::vector<T> rows = Spawned(executor, row0, K, 0.5, -3, int64_t{1} << 40);
    const NormalStream stream = MakeNormalStream(-3, int64_t{1} << 40);
    const T scale = static_cast<T>(0.5 * Rms(row0.data(), D));
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t i = 0; i < D; ++i) {
        float normals[4];
        FourNormals(stream, k, i / 256 * 64 + i % 64, normals);
        const double noise = static_cast<double>(scale) * normals[i / 64 % 4];
        ASSERT_NEAR(rows[k * D + i], row0[i] + noise, sizeof(T) == 4 ? 1e-6 : 1e-13)
            << "D=" << D << " k=" << k << " i=" << i;
      }
    }
  }
}
TEST_P(SpawnTest, FloatRowsAreTheDocumentedNormals) {
  ExpectRowsAreDocumentedNormals<float>(Threads(1));
}
TEST_P(SpawnTest, DoubleRowsAreTheDocumentedNormals) {
  ExpectRowsAreDocumentedNormals<double>(Threads(1));
}

// Recorded once: every instruction set, and every later version, must spawn these members, bit for
// bit.
TEST_P(SpawnTest, BitsAreThoseRecorded) {
  constexpr int64_t K = 5, D = 40003;
  std::vector<float> row0(D);
  for (int64_t i = 0; i < D; ++i) row0[i] = static_cast<float>(i % 97 - 40) / 64;
  const std::vector<float> rows = Spawned(Threads(1), row0, K, 0.35, 1234, -5678);
  uint64_t hash = 14695981039346656037u;  // FNV-1a over the bits
  for (float value : rows) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211u;
  }
  EXPECT_EQ(hash, 15944610494689212504u);
}

TEST_P(SpawnTest, NoiseIsStandardNormalTimesSigmaTimesRms) {
  constexpr int64_t K = 8, D = 250000;
  constexpr double kSigma = 0.35, N = static_cast<double>(K) * D;
  for (double size : {1e-3, 1.0, 50.0}) {  // the noise follows the layer's scale
    std::vector<float> row0 = Randoms<float>(D, 11);
    for (float& value : row0) value *= size;
    const std::vector<float> rows = Spawned(Threads(1), row0, K, kSigma);
    const double scale = kSigma * Rms(row0.data(), D);
    double sums[5] = {};
    double largest = 0;
    for (int64_t k = 0; k < K; ++k) {
      double row_sum = 0, row_squares = 0;
      for (int64_t i = 0; i < D; ++i) {
        const double z = (static_cast<double>(rows[k * D + i]) - row0[i]) / scale;
        double power = 1;
        for (double& sum : sums) sum += power, power *= z;
        row_sum += z, row_squares += z * z;
        largest = std::max(largest, std::abs(z));
      }
      EXPECT_NEAR(row_sum / D, 0, 5 / std::sqrt(D)) << "row " << k;
      EXPECT_NEAR(row_squares / D, 1, 5 * std::sqrt(2.0 / D)) << "row " << k;
    }
    // Moments of N(0, 1): 0, 1, 0, 3; their variances 1, 2, 15, 96, over the number of samples.
    EXPECT_NEAR(sums[1] / N, 0, 5 * std::sqrt(1 / N));
    EXPECT_NEAR(sums[2] / N, 1, 5 * std::sqrt(2 / N));
    EXPECT_NEAR(sums[3] / N, 0, 5 * std::sqrt(15 / N));
    EXPECT_NEAR(sums[4] / N, 3, 5 * std::sqrt(96 / N));
    // Of two million normals the largest lies between 4.4 and 6.3 with a probability of 1 − 1e-3.
    EXPECT_GT(largest, 4.4);
    EXPECT_LT(largest, 6.3);
  }
}

// Kolmogorov-Smirnov against the normal distribution: the whole shape, not moments alone.
TEST_P(SpawnTest, DistributionIsNormal) {
  constexpr int64_t D = 400000;
  std::vector<double> z = Spawned(Threads(1), std::vector<double>(D, 1.0), 1, 1.0);
  std::sort(z.begin(), z.end());
  double distance = 0;
  for (int64_t i = 0; i < D; ++i) {
    const double p = 0.5 * std::erfc(-(z[i] - 1) / std::sqrt(2.0));
    distance = std::max({distance, std::abs(p - i / double{D}), std::abs(p - (i + 1) / double{D})});
  }
  EXPECT_LT(distance * std::sqrt(double{D}), 1.95);  // exceeded once in a thousand seeds
}

TEST_P(SpawnTest, MembersNeighboursAndSeedsAreIndependent) {
  constexpr int64_t K = 6, D = 100000;
  const std::vector<double> ones(D, 1.0);
  const std::vector<double> rows = Spawned(Threads(1), ones, K, 1.0, 7, 7),
                            seed0 = Spawned(Threads(1), ones, 1, 1.0, 8, 7),
                            seed1 = Spawned(Threads(1), ones, 1, 1.0, 7, 8),
                            high = Spawned(Threads(1), ones, 1, 1.0, 7 + (int64_t{1} << 32), 7);
  // The mean of products of independent normals is normal with standard error 1/√D, for the numbers
  // and for their squares' deviations (those have variance 4).
  auto expect_independent = [&](const double* x, const double* y, int64_t size,
                                const std::string& what) {
    double product = 0, squares = 0;
    for (int64_t i = 0; i < size; ++i) {
      const double a = x[i] - 1, b = y[i] - 1;
      product += a * b;
      squares += (a * a - 1) * (b * b - 1);
    }
    EXPECT_NEAR(product / size, 0, 5 / std::sqrt(size)) << what;
    EXPECT_NEAR(squares / size, 0, 5 * 2 / std::sqrt(size)) << what;
  };
  for (int64_t k = 0; k < K; ++k) {
    const double* row = &rows[k * D];
    for (int64_t other = 0; other < k; ++other)
      expect_independent(row, &rows[other * D], D, "members");
    // 64, 128 and 192 apart are numbers of one counter, 256 and 16384 the next chunk and block.
    for (int64_t lag : {1, 2, 3, 4, 16, 63, 64, 65, 128, 192, 256, 16384}) {
      expect_independent(row, row + lag, D - lag, "lag " + std::to_string(lag));
    }
  }
  for (const auto* other : {&seed0, &seed1, &high}) {
    expect_independent(rows.data(), other->data(), D, "seeds");
  }
}

template <typename T>
void ExpectSameBitsForEveryThreadCount(Processor processor) {
  for (int64_t D : {int64_t{1}, int64_t{100}, 5 * kBlockElements + 77}) {
    const std::vector<T> row0 = Randoms<T>(D, 13);
    const Executor alone{{processor, 1}}, two{{processor, 2}}, seven{{processor, 7}};
    const std::vector<T> one = Spawned(alone, row0, 3, 0.1);
    EXPECT_EQ(Spawned(two, row0, 3, 0.1), one);
    EXPECT_EQ(Spawned(seven, row0, 3, 0.1), one);
    std::vector<T> mean(D), other(D);
    alone.Collapse(3, D, one.data(), mean.data());
    std::vector<T> average = row0, other_average = row0;
    alone.SwaUpdate(D, one.data(), 4, average.data());
    seven.Collapse(3, D, one.data(), other.data());
    seven.SwaUpdate(D, one.data(), 4, other_average.data());
    EXPECT_EQ(other, mean);
    EXPECT_EQ(other_average, average);
  }
}
TEST_P(MemberRowsTest, EveryThreadCountGivesTheSameBitsFloat) {
  ExpectSameBitsForEveryThreadCount<float>(GetParam());
}
TEST_P(MemberRowsTest, EveryThreadCountGivesTheSameBitsDouble) {
  ExpectSameBitsForEveryThreadCount<double>(GetParam());
}

// An element's noise depends on seed, row and place alone: more members or more elements change
// none of it.
TEST_P(SpawnTest, NoiseDoesNotDependOnTheNumberOfMembersOrElements) {
  const std::vector<double> few = Spawned(Threads(1), std::vector<double>(300, 1.0), 2, 1.0);
  const std::vector<double> many = Spawned(Threads(1), std::vector<double>(900, 1.0), 5, 1.0);
  for (int64_t k = 0; k < 2; ++k) {
    for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(few[k * 300 + i], many[k * 900 + i]);
  }
}

TEST_P(SpawnTest, ZeroNoiseCopiesExactly) {
  for (int64_t D : {1, 7, 17, 1000, 40000}) {
    std::vector<float> row0 = Randoms<float>(D, 15);
    row0[0] = -0.0f;
    if (D > 2) row0[1] = std::numeric_limits<float>::infinity(), row0[2] = 1e-42f;
    const std::vector<float> rows = Spawned(Threads(3), row0, 4, 0.0);
    for (int64_t k = 0; k < 4; ++k) {
      EXPECT_EQ(std::memcmp(&rows[k * D], row0.data(), D * sizeof(float)), 0);
    }
  }
}

TEST_P(SpawnTest, ZeroWeightsStayZero) {
  for (float value : Spawned(Threads(1), std::vector<float>(100, 0.0f), 3, 0.5))
    EXPECT_EQ(value, 0);
}

TEST_P(SpawnTest, WritesItsRowsOnly) {
  for (int64_t D : {1, 63, 257}) {
    std::vector<float> memory(3 + 2 * D + 16, -77.25f);
    std::fill_n(memory.begin() + 3, D, 1.0f);
    std::vector<double> sums(SpawnSums(D));
    Threads(2).Spawn<float>({2, D, memory.data() + 3, 0.5f, {1, 2}, sums.data()});
    for (int64_t i = 0; i < static_cast<int64_t>(memory.size()); ++i) {
      EXPECT_EQ(memory[i] == -77.25f, i < 3 || i >= 3 + 2 * D) << i;
    }
  }
}

TEST_P(MemberRowsTest, EmptyRowsAreFine) {
  Threads(2).Spawn<float>({2, 0, nullptr, 0.5f, {1, 2}, nullptr});
  Threads(2).Spawn<float>({2, 0, nullptr, 0, {1, 2}, nullptr});
  Threads(2).SwaUpdate<float>(0, nullptr, 0, nullptr);
  Threads(2).SwaUpdate<float>(0, nullptr, 3, nullptr);
  Threads(2).Collapse<float>(2, 0, nullptr, nullptr);
}

template <typename T>
void ExpectSwaIsTheMean(const Executor& executor) {
  for (int64_t D : {1, 7, 17, 1000, 40000}) {
    // What the average held before the first sample does not matter.
    std::vector<T> average(D + 1, std::numeric_limits<T>::quiet_NaN());
    std::vector<double> sum(D);
    constexpr int64_t kSamples = 40;
    for (int64_t n = 0; n < kSamples; ++n) {
      const std::vector<T> source = Randoms<T>(D, 20 + n);
      executor.SwaUpdate(D, source.data(), n, average.data() + 1);
      for (int64_t i = 0; i < D; ++i) sum[i] += source[i];
      if (n == 0) {
        EXPECT_EQ(std::vector<T>(average.begin() + 1, average.end()), source);
      }
    }
    // A rounding of half a unit per update, which later updates shrink: n/2 units at most, of
    // values below 1/2.
    const double bound = 0.25 * kSamples * std::numeric_limits<T>::epsilon();
    for (int64_t i = 0; i < D; ++i) EXPECT_NEAR(average[i + 1], sum[i] / kSamples, bound);
  }
}
TEST_P(SwaTest, FloatAverageIsTheMeanOfItsSamples) { ExpectSwaIsTheMean<float>(Threads(2)); }
TEST_P(SwaTest, DoubleAverageIsTheMeanOfItsSamples) { ExpectSwaIsTheMean<double>(Threads(2)); }

TEST_P(SwaTest, EqualSamplesLeaveTheAverageExact) {
  const std::vector<float> source = Randoms<float>(100, 30);
  std::vector<float> average = source;
  for (int64_t n : {int64_t{1}, int64_t{2}, int64_t{1} << 40}) {
    Threads(1).SwaUpdate(100, source.data(), n, average.data());
    EXPECT_EQ(average, source);
  }
}

template <typename T>
void ExpectCollapseIsTheMean(const Executor& executor) {
  for (int64_t K : {1, 2, 3, 10, 25}) {
    for (int64_t D : {1, 7, 31, 32, 33, 1000, 40000}) {
      const std::vector<T> rows = Randoms<T>(K * D, 40);
      std::vector<T> mean(D + 2, T(-77.25));
      executor.Collapse(K, D, rows.data(), mean.data() + 1);
      for (int64_t i = 0; i < D; ++i) {
        long double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += rows[k * D + i];
        // Float: one rounding of a double. Double: two per row, of values below 2.
        const double bound = sizeof(T) == 4 ? 0x1p-24 : 2 * K * 0x1p-52;
        ASSERT_NEAR(mean[i + 1], static_cast<double>(sum / K), bound);
      }
      EXPECT_EQ(mean.front(), T(-77.25));
      EXPECT_EQ(mean.back(), T(-77.25));
    }
  }
}
TEST_P(CollapseTest, FloatIsTheMean) { ExpectCollapseIsTheMean<float>(Threads(2)); }
TEST_P(CollapseTest, DoubleIsTheMean) { ExpectCollapseIsTheMean<double>(Threads(2)); }

template <typename T>
void ExpectCollapseOfCopiesIsExact(const Executor& executor) {
  const std::vector<T> row = Randoms<T>(1000, 50);
  for (int64_t K : {1, 3, 7, 10}) {
    const std::vector<T> rows = Spawned(executor, row, K, 0.0);
    std::vector<T> mean(row.size());
    executor.Collapse<T>(K, row.size(), rows.data(), mean.data());
    EXPECT_EQ(mean, row);
  }
}
TEST_P(CollapseTest, MeanOfEqualRowsIsExactFloat) {
  ExpectCollapseOfCopiesIsExact<float>(Threads(1));
}
TEST_P(CollapseTest, MeanOfEqualRowsIsExactDouble) {
  ExpectCollapseOfCopiesIsExact<double>(Threads(1));
}

// The CUDA core's bits are the CPU core's. For 16-bit types those of widening all, computing in
// float and rounding once.
template <typename T>
class CudaTest : public ::testing::Test {
 protected:
  using S = ComputeType<T>;

  // An array at the end of its memory, `offset` elements into it: packs need an offset of 0.
  struct Array {
    Array(const std::vector<T>& values, int64_t offset) : offset(offset), memory(Padded(values)) {}
    std::vector<T> Padded(const std::vector<T>& values) const {
      std::vector<T> padded(offset, T{});
      padded.insert(padded.end(), values.begin(), values.end());
      return padded;
    }
    T* data() { return memory.data() + offset; }

    int64_t offset;
    DeviceArray<T> memory;
  };

  static std::vector<S> Wide(const std::vector<T>& values) {
    std::vector<S> wide;
    for (T value : values) wide.push_back(Widened(value));
    return wide;
  }
  static std::vector<T> RoundedAll(const std::vector<S>& values) {
    std::vector<T> rounded;
    for (S value : values) rounded.push_back(Rounded<T>(value));
    return rounded;
  }
  static std::vector<S> WideRandoms(int64_t size, uint64_t seed) {
    std::vector<S> values = Randoms<S>(size, seed);
    for (S& value : values) value *= S(1.1);  // a double with more bits than a float's
    return values;
  }
  static std::vector<T> RandomValues(int64_t size, uint64_t seed) {
    return RoundedAll(WideRandoms(size, seed));
  }

  // Another order of the threads every time.
  void OnCuda(const std::function<std::string()>& run) {
    Executor{{Processor::kCuda, ++runs_}}.Run([](const Parallel&) {}, run);
  }

  // The place of the first difference, or -1.
  template <typename U>
  static int64_t FirstDifference(const U* actual, const std::vector<U>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      // Bits are compared, not values: NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
      if (std::memcmp(&actual[i], &expected[i], sizeof(U)) != 0) return i;
    }
    return -1;
  }

  void ExpectSpawnGivesTheBitsOfTheCpu(int64_t K, int64_t D, double sigma) {
    SCOPED_TRACE("K=" + std::to_string(K) + " D=" + std::to_string(D) +
                 " sigma=" + std::to_string(sigma));
    std::vector<T> start = RandomValues(D, D + K);
    start.resize(K * D, T{});
    std::vector<S> expected = Wide(start);
    std::vector<double> expected_sums(SpawnSums(D));
    SpawnCpu<S>({K, D, expected.data(), S(sigma), {3, -4}, expected_sums.data()}, Parallel());

    Array rows(start, (D + K) % 2);
    DeviceArray<double> sums(SpawnSums(D));
    OnCuda([&] {
      return SpawnGpu<T>({K, D, rows.data(), S(sigma), {3, -4}, sums.data()}, nullptr);
    });
    ASSERT_EQ(FirstDifference(rows.data(), RoundedAll(expected)), -1);
    if (sigma == 0) return;
    EXPECT_WRITTEN(sums);
    expected_sums.pop_back();  // the scale, which the CPU core keeps elsewhere
    ASSERT_EQ(FirstDifference(sums.data(), expected_sums), -1);
  }

  // Around a warp, the strides of normals and packs, a CUDA block; beyond one grid.
  const std::vector<int64_t> sizes_ = {1,
                                       31,
                                       32,
                                       33,
                                       63,
                                       64,
                                       65,
                                       255,
                                       256,
                                       257,
                                       512,
                                       1023,
                                       1024,
                                       1025,
                                       4096,
                                       4099,
                                       kBlockElements,
                                       kBlockElements + 1,
                                       5 * kBlockElements + 77};
  int runs_ = 0;
};
using CudaTypes = ::testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(CudaTest, CudaTypes);

TYPED_TEST(CudaTest, SpawnGivesTheBitsOfTheCpu) {
  for (int64_t D : this->sizes_) {
    for (int64_t K : {1, 2, 10}) {
      for (double sigma : {0.0, 0.35}) this->ExpectSpawnGivesTheBitsOfTheCpu(K, D, sigma);
    }
  }
  // More blocks than the warp has lanes that adds their sums.
  this->ExpectSpawnGivesTheBitsOfTheCpu(1, 33 * kBlockElements + 1, 0.35);
}

TYPED_TEST(CudaTest, SwaUpdateGivesTheBitsOfTheCpu) {
  using T = TypeParam;
  using S = ComputeType<T>;
  for (int64_t D : this->sizes_) {
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 40}) {
      for (int64_t offset : {0, 1}) {
        const auto values = this->RandomValues(D, D);
        std::vector<S> expected = this->WideRandoms(D, D + 1);
        DeviceArray<S> average(expected);
        SwaUpdateCpu<S>(D, this->Wide(values).data(), count, expected.data(), Parallel());

        typename TestFixture::Array source(values, offset);
        this->OnCuda(
            [&] { return SwaUpdateGpu<T>(D, source.data(), count, average.data(), nullptr); });
        ASSERT_EQ(this->FirstDifference(average.data(), expected), -1)
            << "D=" << D << " count=" << count << " offset=" << offset;
      }
    }
  }
}

TYPED_TEST(CudaTest, CollapseGivesTheBitsOfTheCpu) {
  using T = TypeParam;
  using S = ComputeType<T>;
  for (int64_t D : this->sizes_) {
    for (int64_t K : {1, 2, 3, 10}) {
      const auto values = this->RandomValues(K * D, D + K);
      std::vector<S> expected(D);
      CollapseCpu<S>(K, D, this->Wide(values).data(), expected.data(), Parallel());

      for (int64_t offset : {0, 1}) {
        typename TestFixture::Array rows(values, offset);
        DeviceArray<T> mean(D);
        this->OnCuda([&] { return CollapseGpu<T>(K, D, rows.data(), mean.data(), nullptr); });
        EXPECT_WRITTEN(mean);
        ASSERT_EQ(this->FirstDifference(mean.data(), this->RoundedAll(expected)), -1)
            << "K=" << K << " D=" << D << " offset=" << offset;
      }
    }
  }
}

TYPED_TEST(CudaTest, EmptyRowsAreFine) {
  using T = TypeParam;
  this->OnCuda([] { return SpawnGpu<T>({2, 0, nullptr, 1, {1, 2}, nullptr}, nullptr); });
  this->OnCuda([] { return SpawnGpu<T>({2, 0, nullptr, 0, {1, 2}, nullptr}, nullptr); });
  this->OnCuda([] { return SwaUpdateGpu<T>(0, nullptr, 0, nullptr, nullptr); });
  this->OnCuda([] { return SwaUpdateGpu<T>(0, nullptr, 1, nullptr, nullptr); });
  this->OnCuda([] { return CollapseGpu<T>(2, 0, nullptr, nullptr, nullptr); });
}

}  // namespace
}  // namespace late_phase

// The update rules against plain double-precision loops written from the equations: the CPU core
// and, in the CUDA harness, the CUDA core. No TensorFlow; also run under ASan and UBSan, and with
// LATE_PHASE_CPU set to each instruction set.
#include "kernels/update_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/elements.h"
#include "tests/cuda_harness/device_array.h"
#include "tests/kernels/processors.h"

namespace late_phase {
namespace {

enum class Rule { kSgd, kMomentum, kNesterov, kKerasMomentum, kKerasNesterov, kAdam };

constexpr Rule kRules[] = {Rule::kSgd,           Rule::kMomentum,      Rule::kNesterov,
                           Rule::kKerasMomentum, Rule::kKerasNesterov, Rule::kAdam};

bool IsNesterov(Rule rule) { return rule == Rule::kNesterov || rule == Rule::kKerasNesterov; }
bool HasRateInAccum(Rule rule) {
  return rule == Rule::kKerasMomentum || rule == Rule::kKerasNesterov;
}

const char* Name(Rule rule) {
  constexpr const char* kNames[] = {"Sgd",           "Momentum",      "Nesterov",
                                    "KerasMomentum", "KerasNesterov", "Adam"};
  return kNames[static_cast<int>(rule)];
}

using cuda_harness::DeviceArray;
using test_util::Name;
using test_util::Processor;
using test_util::Processors;

struct Executor : test_util::Executor {
  template <typename T>
  void Apply(const SgdArgs<T>& args) const {
    Run([&](const Parallel& parallel) { ApplySgdCpu(args, parallel); },
        [&] { return ApplySgdGpu(args, nullptr); });
  }
  template <typename T>
  void Apply(const MomentumArgs<T>& args) const {
    Run([&](const Parallel& parallel) { ApplyMomentumCpu(args, parallel); },
        [&] { return ApplyMomentumGpu(args, nullptr); });
  }
  template <typename T>
  void Apply(const AdamArgs<T>& args) const {
    Run([&](const Parallel& parallel) { ApplyAdamCpu(args, parallel); },
        [&] { return ApplyAdamGpu(args, nullptr); });
  }
  template <typename T>
  void Accumulate(int64_t D, const T* grad, T* sum) const {
    Run([&](const Parallel& parallel) { AccumulateCpu(D, grad, sum, parallel); },
        [&] { return AccumulateGpu(D, grad, sum, nullptr); });
  }
};

// Hyper-parameters, rounded to the type of the core and kept in double for the reference.
struct Settings {
  double lr = 0.05, momentum = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 5e-3, scale = 1;

  template <typename T>
  Settings Rounded() const {
    Settings s = *this;
    for (double* value :
         {&s.lr, &s.momentum, &s.beta1, &s.beta2, &s.epsilon, &s.weight_decay, &s.scale}) {
      *value = static_cast<T>(*value);
    }
    return s;
  }
};

// The equations, element by element, for one array of weights and its slots.
struct Reference {
  explicit Reference(const std::vector<double>& start)
      : w(start), a(start.size()), b(start.size()), sum(start.size()) {}

  void Apply(Rule rule, const Settings& s, size_t i, double g) {
    g = s.scale * g + s.weight_decay * w[i];
    switch (rule) {
      case Rule::kSgd:
        w[i] = w[i] - s.lr * g;
        break;
      case Rule::kMomentum:
        a[i] = s.momentum * a[i] + g;
        w[i] = w[i] - s.lr * a[i];
        break;
      case Rule::kNesterov:
        a[i] = s.momentum * a[i] + g;
        w[i] = w[i] - s.lr * (g + s.momentum * a[i]);
        break;
      case Rule::kKerasMomentum:
        a[i] = s.momentum * a[i] + s.lr * g;
        w[i] = w[i] - a[i];
        break;
      case Rule::kKerasNesterov:
        a[i] = s.momentum * a[i] + s.lr * g;
        w[i] = w[i] - (s.lr * g + s.momentum * a[i]);
        break;
      case Rule::kAdam: {
        const double n = count + 1;
        a[i] = s.beta1 * a[i] + (1 - s.beta1) * g;
        b[i] = s.beta2 * b[i] + (1 - s.beta2) * g * g;
        w[i] = w[i] - s.lr * std::sqrt(1 - std::pow(s.beta2, n)) / (1 - std::pow(s.beta1, n)) *
                          a[i] / (std::sqrt(b[i]) + s.epsilon);
        break;
      }
    }
  }

  std::vector<double> w, a, b, sum;
  int64_t count = 0;
};

// The same through the core. Every array lies `offset` elements into a larger one filled with a
// mark, which must stay.
template <typename T>
class Core {
 public:
  static constexpr T kMark = T(-77.25);

  Core(const std::vector<double>& start, int64_t offset, const Executor& executor)
      : D_(start.size()), offset_(offset), executor_(executor) {
    for (auto* array : {&w_, &a_, &b_, &sum_}) {
      array->assign(D_ + 2 * offset + 17, kMark);
      std::fill_n(array->begin() + offset, D_, T(0));
    }
    std::copy(start.begin(), start.end(), w_.begin() + offset);
  }

  void Apply(Rule rule, const Settings& s, const std::vector<T>& grad, bool use_sum) {
    const UpdateGradient<T> g{grad.data(), use_sum ? At(&sum_) : nullptr, T(s.scale),
                              T(s.weight_decay)};
    switch (rule) {
      case Rule::kSgd:
        executor_.Apply(SgdArgs<T>{D_, At(&w_), g, T(s.lr)});
        break;
      case Rule::kMomentum:
      case Rule::kNesterov:
      case Rule::kKerasMomentum:
      case Rule::kKerasNesterov:
        executor_.Apply(MomentumArgs<T>{D_, At(&w_), At(&a_), g, T(s.lr), T(s.momentum),
                                        IsNesterov(rule), HasRateInAccum(rule)});
        break;
      case Rule::kAdam:
        executor_.Apply(AdamArgs<T>{D_, At(&w_), At(&a_), At(&b_), g, T(s.lr), T(s.beta1),
                                    T(s.beta2), T(s.epsilon), &count_, &rate_});
        break;
    }
  }
  void Accumulate(const std::vector<T>& grad) { executor_.Accumulate(D_, grad.data(), At(&sum_)); }

  std::vector<T> w() const { return Inside(w_); }
  std::vector<T> sum() const { return Inside(sum_); }
  std::vector<std::vector<T>> All() const { return {w_, a_, b_, sum_}; }
  bool MarksAreThere() const {
    for (const auto& array : All()) {
      for (int64_t i = 0; i < static_cast<int64_t>(array.size()); ++i) {
        if ((i < offset_ || i >= offset_ + D_) && array[i] != kMark) return false;
      }
    }
    return true;
  }

 private:
  T* At(std::vector<T>* array) const { return array->data() + offset_; }
  std::vector<T> Inside(const std::vector<T>& array) const {
    return {array.begin() + offset_, array.begin() + offset_ + D_};
  }

  int64_t D_, offset_, count_ = 0;
  T rate_ = 0;
  Executor executor_;
  std::vector<T> w_, a_, b_, sum_;
};

// Values a float holds exactly, so that core and reference see the same numbers.
std::vector<double> Randoms(int64_t size, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<double> values(size);
  for (double& value : values) value = uniform(engine);
  return values;
}

template <typename T>
std::vector<T> Cast(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

template <typename T>
double RelativeError(const std::vector<T>& actual, const std::vector<double>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::isnan(actual[i]) ? 1e9 : std::abs(actual[i] - expected[i]));
    size = std::max(size, std::abs(expected[i]));
  }
  return error / size;
}

template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 1e-6 : 1e-13;

struct Run {
  Rule rule;
  int64_t K;     // cycle length from step kSwitch on; 1 before
  double gamma;  // from kSwitch on; 1 before
  int64_t D;
  int64_t offset = 0;
};
constexpr int kSwitch = 5;

// A run of the base weights: five steps of cycle 1, then cycles of K, the last one cut short.
// Tested after every step.
template <typename T>
void ExpectRunEqualsReference(const Run& run, const Executor& executor) {
  SCOPED_TRACE(std::string(Name(run.rule)) + " K=" + std::to_string(run.K) +
               " gamma=" + std::to_string(run.gamma) + " D=" + std::to_string(run.D));
  Settings s = Settings().Rounded<T>();
  if (run.rule == Rule::kAdam) s.lr = static_cast<T>(1e-2);
  const std::vector<double> start = Randoms(run.D, 1);
  Reference reference(start);
  Core<T> core(start, run.offset, executor);
  const int64_t steps = kSwitch + 3 * run.K + run.K / 2;
  for (int64_t t = 0; t < steps; ++t) {
    const std::vector<double> grad = Randoms(run.D, 100 + t);
    const int64_t cycle = t < kSwitch ? 1 : run.K, member = t < kSwitch ? 0 : (t - kSwitch) % run.K;
    s.scale = t < kSwitch ? 1 : static_cast<T>(run.gamma);
    const bool last = member == cycle - 1;
    for (int64_t i = 0; i < run.D; ++i) {
      reference.sum[i] += grad[i];
      if (!last) continue;
      reference.Apply(run.rule, s, i, reference.sum[i]);
      reference.sum[i] = 0;
    }
    if (last) {
      ++reference.count;
      core.Apply(run.rule, s, Cast<T>(grad), /*use_sum=*/cycle > 1);
      EXPECT_EQ(core.sum(), std::vector<T>(run.D, T(0)));
    } else {
      core.Accumulate(Cast<T>(grad));
    }
    ASSERT_LE(RelativeError(core.w(), reference.w), kTolerance<T>) << "step " << t;
  }
  if (run.K > 1) {
    EXPECT_LE(RelativeError(core.sum(), reference.sum), kTolerance<T>);
  }
  EXPECT_TRUE(core.MarksAreThere());
}

class UpdateRule : public ::testing::TestWithParam<std::tuple<Rule, Processor>> {
 protected:
  static Rule rule() { return std::get<0>(GetParam()); }
  static Executor Threads(int threads) { return {{std::get<1>(GetParam()), threads}}; }
};

TEST_P(UpdateRule, EqualsReferenceOverCycles) {
  for (int64_t K : {1, 2, 10}) {
    for (double gamma : {1.0, 1.0 / K, 0.3}) {
      for (int64_t D : {1, 7, 15, 16, 17, 67, 1000}) {
        ExpectRunEqualsReference<float>({rule(), K, gamma, D}, Threads(1 + D % 3));
        ExpectRunEqualsReference<double>({rule(), K, gamma, D}, Threads(1 + D % 3));
      }
    }
  }
}

TEST_P(UpdateRule, EqualsReferenceOnLargeArrays) {
  ExpectRunEqualsReference<float>({rule(), 2, 0.3, 40000}, Threads(3));
  ExpectRunEqualsReference<double>({rule(), 2, 0.3, 40000}, Threads(3));
}

TEST_P(UpdateRule, UnalignedArraysAreUpdatedAndNothingBesides) {
  for (int64_t offset : {1, 3, 5}) {
    for (int64_t D : {1, 15, 33, 67}) {
      ExpectRunEqualsReference<float>({rule(), 2, 0.5, D, offset}, Threads(2));
      ExpectRunEqualsReference<double>({rule(), 2, 0.5, D, offset}, Threads(2));
    }
  }
}

TEST_P(UpdateRule, EveryThreadCountGivesTheSameBits) {
  constexpr int64_t D = 3 * kBlockElements + 5;
  const auto start = Randoms(D, 3), grad = Randoms(D, 4);
  std::vector<std::vector<std::vector<float>>> results;
  for (int threads : {1, 2, 7}) {
    Core<float> core(start, 1, Threads(threads));
    core.Accumulate(Cast<float>(grad));
    core.Apply(rule(), Settings(), Cast<float>(grad), /*use_sum=*/true);
    core.Apply(rule(), Settings(), Cast<float>(grad), /*use_sum=*/false);
    results.push_back(core.All());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// A row of [K,D] is what a member update works on: its neighbours, which touch it, stay.
TEST_P(UpdateRule, OtherRowsStay) {
  constexpr int64_t K = 4, D = 21, k = 2;
  const auto start = Cast<float>(Randoms(K * D, 5)), grad = Cast<float>(Randoms(D, 6));
  std::vector<float> w = start, a = start, b = start;
  for (float& value : b) value = std::abs(value);
  const auto a_start = a, b_start = b;
  const UpdateGradient<float> g{grad.data(), nullptr, 1, 0};
  const int64_t at = k * D;
  int64_t count = 3;
  float rate;
  switch (rule()) {
    case Rule::kSgd:
      Threads(2).Apply(SgdArgs<float>{D, &w[at], g, 0.1f});
      break;
    case Rule::kAdam:
      Threads(2).Apply(
          AdamArgs<float>{D, &w[at], &a[at], &b[at], g, 0.1f, 0.9f, 0.99f, 1e-8f, &count, &rate});
      break;
    default:
      Threads(2).Apply(MomentumArgs<float>{D, &w[at], &a[at], g, 0.1f, 0.9f, IsNesterov(rule()),
                                           HasRateInAccum(rule())});
  }
  for (int64_t i = 0; i < K * D; ++i) {
    const bool inside = i >= at && i < at + D;
    EXPECT_EQ(w[i] != start[i], inside) << i;
    if (inside) continue;
    EXPECT_EQ(a[i], a_start[i]);
    EXPECT_EQ(b[i], b_start[i]);
  }
}

TEST_P(UpdateRule, EmptyArrayIsFine) {
  Core<float> core({}, 0, Threads(2));
  core.Apply(rule(), Settings(), {}, /*use_sum=*/true);
  core.Accumulate({});
  EXPECT_TRUE(core.MarksAreThere());
}

TEST_P(UpdateRule, NaNStaysInItsElement) {
  auto grad = Cast<float>(Randoms(40, 7));
  grad[18] = std::numeric_limits<float>::quiet_NaN();
  Core<float> core(Randoms(40, 8), 0, Threads(1));
  core.Apply(rule(), Settings(), grad, /*use_sum=*/false);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(core.w()[i]), i == 18) << i;
}

INSTANTIATE_TEST_SUITE_P(Rules, UpdateRule,
                         ::testing::Combine(::testing::ValuesIn(kRules),
                                            ::testing::ValuesIn(Processors())),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) +
                                  Name(std::get<1>(info.param));
                         });

// 16-bit types on CUDA: as if all were widened, updated in float by the same core, and w rounded.
template <typename T>
class UpdateRuleOf16Bits : public ::testing::Test {};
using Types16Bits = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(UpdateRuleOf16Bits, Types16Bits);

template <typename T>
std::vector<float> Wide(const DeviceArray<T>& values) {
  std::vector<float> wide;
  for (int64_t i = 0; i < values.size(); ++i) wide.push_back(Widened(values[i]));
  return wide;
}

template <class Cuda>
void ExpectNoError(const Executor& executor, const Cuda& cuda) {
  executor.Run([](const Parallel&) {}, cuda);
}

TYPED_TEST(UpdateRuleOf16Bits, WeightsAreRoundedOnce) {
  using T = TypeParam;
  for (const int64_t D : {1, 31, 32, 33, 257, 3000}) {
    std::vector<T> start, gradients;
    for (const double value : Randoms(2 * D, 20)) {
      (static_cast<int64_t>(start.size()) < D ? start : gradients).push_back(Rounded<T>(value));
    }
    const Executor cuda{{Processor::kCuda, static_cast<int>(D % 4)}};
    for (const Rule rule : kRules) {
      DeviceArray<T> w(start), grad(gradients);
      DeviceArray<float> wide_w(Wide(w)), wide_grad(Wide(grad));
      // Slots and sums of both runs.
      const std::vector<float> zeros(D);
      DeviceArray<float> a(zeros), b(zeros), sum(zeros), wide_a(zeros), wide_b(zeros),
          wide_sum(zeros);
      int64_t count = 0, wide_count = 0;
      float rate;
      const auto step = [&](auto* weights, const auto* gradient, float* sums, float* first,
                            float* second, int64_t* updates) {
        using Stored = std::remove_reference_t<decltype(*weights)>;
        const UpdateGradient<Stored> g{gradient, sums, 0.5f, 0.01f};
        ExpectNoError(cuda, [&] { return AccumulateGpu<Stored>(D, gradient, sums, nullptr); });
        if (rule == Rule::kSgd) {
          ExpectNoError(cuda, [&] { return ApplySgdGpu<Stored>({D, weights, g, 0.1f}, nullptr); });
        } else if (rule == Rule::kAdam) {
          ExpectNoError(cuda, [&] {
            return ApplyAdamGpu<Stored>(
                {D, weights, first, second, g, 0.1f, 0.9f, 0.99f, 1e-4f, updates, &rate}, nullptr);
          });
        } else {
          ExpectNoError(cuda, [&] {
            return ApplyMomentumGpu<Stored>(
                {D, weights, first, g, 0.1f, 0.9f, IsNesterov(rule), HasRateInAccum(rule)},
                nullptr);
          });
        }
      };
      for (int i = 0; i < 2; ++i) {
        step(w.data(), grad.data(), sum.data(), a.data(), b.data(), &count);
        step(wide_w.data(), wide_grad.data(), wide_sum.data(), wide_a.data(), wide_b.data(),
             &wide_count);
        for (int64_t j = 0; j < D; ++j) {
          ASSERT_EQ(w[j].bits, Rounded<T>(wide_w[j]).bits) << Name(rule) << " " << j;
          ASSERT_EQ(a[j], wide_a[j]) << Name(rule) << " " << j;
          ASSERT_EQ(b[j], wide_b[j]) << Name(rule) << " " << j;
          ASSERT_EQ(sum[j], 0);
          wide_w.data()[j] = Widened(w[j]);  // the next update starts from what was stored
        }
      }
    }
  }
}

// The bias correction of a long run: 1 − βⁿ reaches 1 and stays there.
TEST(AdamTest, LargeCountsAreFinite) {
  for (const Processor processor : Processors()) {
    for (int64_t count :
         {int64_t{1} << 20, int64_t{1} << 40, std::numeric_limits<int64_t>::max() - 1}) {
      double w = 1, m = 0.5, v = 0.25, grad = 0.5, rate;
      Executor{{processor, 1}}.Apply(AdamArgs<double>{
          1, &w, &m, &v, {&grad, nullptr, 1, 0}, 0.1, 0.9, 0.999, 0, &count, &rate});
      EXPECT_NEAR(w, 0.9, 1e-12);
    }
  }
}

}  // namespace
}  // namespace late_phase

// Random batch normalisation problems for tests, and results and gradients as plain
// double-precision loops, written from the equations and not from the core:
//
//   x̂ = (x − μ)/√(σ² + ε),  z = scale·x̂ + offset,  y = z or max(z, 0)
//   training:  dx̂ = dz·scale,  dx = (dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂))/√(σ² + ε)
//   inference: dx = dz·scale/√(σ² + ε)
#ifndef LATE_PHASE_TESTS_SUPPORT_BATCH_NORM_CASES_H_
#define LATE_PHASE_TESTS_SUPPORT_BATCH_NORM_CASES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/compare.h"

namespace late_phase {
namespace test_util {

using Doubles = std::vector<double>;

struct BatchNormCase {
  int64_t n, channels;
  bool is_training = true, relu = false;

  std::string Name() const {
    return "N" + std::to_string(n) + "C" + std::to_string(channels) +
           (is_training ? "Training" : "Inference") + (relu ? "Relu" : "Identity");
  }
};

inline void PrintTo(const BatchNormCase& c, std::ostream* out) { *out << c.Name(); }

// Both modes and activations of odd sizes around the vector widths (4 to 16), the rows of a block
// (16), the channels of a stripe (512), and the elements of a task (16 Ki). With few channels,
// numbers of rows that make no wide row, one, and several with rows left over, in one task and in
// many.
inline std::vector<BatchNormCase> BatchNormCases() {
  std::vector<BatchNormCase> cases;
  for (auto [n, channels] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1},    {1, 40},     {2, 3},     {5, 17},    {31, 7},   {32, 8},
           {33, 16},  {37, 31},    {70, 33},   {129, 160}, {66, 257}, {66, 513},
           {9, 1030}, {63, 1},     {64, 1},    {4099, 1},  {1037, 6}, {515, 16},
           {127, 84}, {1501, 120}, {700, 255}, {40001, 3}}) {
    for (bool is_training : {true, false}) {
      for (bool relu : {true, false}) cases.push_back({n, channels, is_training, relu});
    }
  }
  return cases;
}

struct BatchNormProblem {
  BatchNormCase shape;
  double epsilon, momentum;
  Doubles x;                              // [n,channels]
  Doubles scale, offset, mean, variance;  // [channels]
  Doubles dy;                             // [n,channels]
};

// Values are rounded to float, so that the double oracle and a float core see the same numbers.
inline BatchNormProblem MakeBatchNormProblem(const BatchNormCase& c, uint64_t seed = 1) {
  std::mt19937_64 engine(seed);
  auto uniform = [&](int64_t size, double low, double high) {
    std::uniform_real_distribution<double> distribution(low, high);
    Doubles values(size);
    for (double& value : values) value = static_cast<float>(distribution(engine));
    return values;
  };
  BatchNormProblem p{c,
                     static_cast<float>(1e-3),
                     static_cast<float>(0.3),
                     uniform(c.n * c.channels, -1, 1),
                     uniform(c.channels, -2, 2),
                     uniform(c.channels, -0.5, 0.5),
                     uniform(c.channels, -1, 1),
                     uniform(c.channels, 0.1, 2),
                     uniform(c.n * c.channels, -1, 1)};
  // Every channel has a mean and a deviation of its own.
  const Doubles shift = uniform(c.channels, -3, 3), stretch = uniform(c.channels, 0.1, 2);
  for (int64_t i = 0; i < c.n * c.channels; ++i) {
    p.x[i] = static_cast<float>(p.x[i] * stretch[i % c.channels] + shift[i % c.channels]);
  }
  return p;
}

struct BatchNormResult {
  Doubles y;                               // [n,channels]
  Doubles running_mean, running_variance;  // [channels]
  Doubles dx;                              // [n,channels]
  Doubles dscale, doffset;                 // [channels]
};

inline BatchNormResult BatchNormReference(const BatchNormProblem& p) {
  const int64_t n = p.shape.n, C = p.shape.channels;
  BatchNormResult result{Doubles(n * C), p.mean,          p.variance,
                         Doubles(n * C), Doubles(C, 0.0), Doubles(C, 0.0)};
  const double count = static_cast<double>(n);
  for (int64_t j = 0; j < C; ++j) {
    double mean = p.mean[j], variance = p.variance[j];
    const bool of_batch = p.shape.is_training && n > 0;
    if (of_batch) {
      double sum = 0, squares = 0;
      for (int64_t r = 0; r < n; ++r) sum += p.x[r * C + j];
      mean = sum / count;
      for (int64_t r = 0; r < n; ++r) squares += std::pow(p.x[r * C + j] - mean, 2);
      variance = squares / count;
      const double unbiased = n > 1 ? squares / (count - 1) : squares;
      result.running_mean[j] = (1 - p.momentum) * p.mean[j] + p.momentum * mean;
      result.running_variance[j] = (1 - p.momentum) * p.variance[j] + p.momentum * unbiased;
    }
    const double deviation = std::sqrt(variance + p.epsilon);
    Doubles normal(n), dnormal(n);  // x̂ and its gradient
    double mean_dnormal = 0, mean_product = 0;
    for (int64_t r = 0; r < n; ++r) {
      normal[r] = (p.x[r * C + j] - mean) / deviation;
      const double z = p.scale[j] * normal[r] + p.offset[j];
      result.y[r * C + j] = p.shape.relu ? std::max(z, 0.0) : z;
      const double dz = p.shape.relu && z <= 0 ? 0.0 : p.dy[r * C + j];
      result.doffset[j] += dz;
      result.dscale[j] += dz * normal[r];
      dnormal[r] = dz * p.scale[j];
      mean_dnormal += dnormal[r] / count;
      mean_product += dnormal[r] * normal[r] / count;
    }
    for (int64_t r = 0; r < n; ++r) {
      const double through_statistics = of_batch ? mean_dnormal + normal[r] * mean_product : 0.0;
      result.dx[r * C + j] = (dnormal[r] - through_statistics) / deviation;
    }
  }
  return result;
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_BATCH_NORM_CASES_H_

// Random softmax cross-entropy problems for tests, and loss and gradients as plain double-precision
// loops, written from the equations and not from the core:
//
//   loss_r = log Σ_j exp(z_rj) − z_rl,   dz_rj = dloss_r (softmax(z_r)_j − [j = l]),   z = F·W + b
#ifndef LATE_PHASE_TESTS_SUPPORT_SOFTMAX_CROSS_ENTROPY_CASES_H_
#define LATE_PHASE_TESTS_SUPPORT_SOFTMAX_CROSS_ENTROPY_CASES_H_

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

struct SoftmaxCase {
  int64_t n, units, vocab;

  std::string Name() const {
    return "N" + std::to_string(n) + "Units" + std::to_string(units) + "Vocab" +
           std::to_string(vocab);
  }
};

inline void PrintTo(const SoftmaxCase& c, std::ostream* out) { *out << c.Name(); }

// Odd sizes around the vector widths (4 to 16), the panel width (32), the block of rows (64), the
// smallest slice of units (32), the widest block of columns (512) and, on CUDA, warps (32), blocks
// (256) and the largest vocabulary that a warp has to itself (1024).
inline std::vector<SoftmaxCase> SoftmaxCases() {
  return {{1, 1, 1},      {5, 3, 1},     {7, 23, 2},    {65, 7, 16},
          {63, 33, 31},   {64, 32, 32},  {129, 31, 33}, {23, 67, 205},
          {300, 97, 205}, {67, 65, 511}, {3, 5, 513},   {130, 70, 1030},
          {257, 1, 33},   {9, 2, 257},   {9, 2, 1024},  {5, 2, 1025}};
}

struct SoftmaxProblem {
  SoftmaxCase shape;
  Doubles features, kernel, bias;  // [n,units], [units,vocab], [vocab]
  std::vector<int32_t> labels;     // [n]
  Doubles dloss;                   // [n]
};

// Values are rounded to float, so that the double oracle and a float core see the same numbers.
inline SoftmaxProblem MakeSoftmaxProblem(const SoftmaxCase& c, uint64_t seed = 1) {
  std::mt19937_64 engine(seed);
  auto uniform = [&](int64_t size, double low, double high) {
    std::uniform_real_distribution<double> distribution(low, high);
    Doubles values(size);
    for (double& value : values) value = static_cast<float>(distribution(engine));
    return values;
  };
  // Weights scaled so that logits differ by a few units whatever the size.
  const double w = 4.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, c.units)));
  SoftmaxProblem p{c,
                   uniform(c.n * c.units, -1, 1),
                   uniform(c.units * c.vocab, -w, w),
                   uniform(c.vocab, -2, 2),
                   {},
                   uniform(c.n, -1, 1)};
  for (int64_t r = 0; r < c.n; ++r) p.labels.push_back(static_cast<int32_t>(engine() % c.vocab));
  return p;
}

struct SoftmaxResult {
  Doubles loss;                       // [n]
  Doubles dlogits;                    // [n,vocab], softmax minus one-hot
  Doubles dfeatures, dkernel, dbias;  // of the shapes of features, kernel, bias
};

inline SoftmaxResult SoftmaxReference(const SoftmaxProblem& p) {
  const auto [n, units, vocab] = p.shape;
  SoftmaxResult result{Doubles(n), Doubles(n * vocab), Doubles(n * units, 0.0),
                       Doubles(units * vocab, 0.0), Doubles(vocab, 0.0)};
  for (int64_t r = 0; r < n; ++r) {
    Doubles z = p.bias;
    for (int64_t i = 0; i < units; ++i) {
      for (int64_t j = 0; j < vocab; ++j) {
        z[j] += p.features[r * units + i] * p.kernel[i * vocab + j];
      }
    }
    const double shift = *std::max_element(z.begin(), z.end()), at_label = z[p.labels[r]];
    double sum = 0, others = 0;
    for (int64_t j = 0; j < vocab; ++j) {
      sum += std::exp(z[j] - shift);
      if (j != p.labels[r]) others += std::exp(z[j] - at_label);
    }
    // −log(e^z_l / Σ e^z) = log(1 + Σ_{j≠l} e^(z_j − z_l)), as long as that is finite.
    result.loss[r] = std::isfinite(others) ? std::log1p(others) : std::log(sum) + shift - at_label;
    for (int64_t j = 0; j < vocab; ++j) {
      const double share = j != p.labels[r]        ? std::exp(z[j] - shift) / sum
                           : std::isfinite(others) ? -others / (1 + others)
                                                   : -1.0;
      result.dlogits[r * vocab + j] = share;
      const double dz = p.dloss[r] * share;
      result.dbias[j] += dz;
      for (int64_t i = 0; i < units; ++i) {
        result.dfeatures[r * units + i] += dz * p.kernel[i * vocab + j];
        result.dkernel[i * vocab + j] += dz * p.features[r * units + i];
      }
    }
  }
  return result;
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_SOFTMAX_CROSS_ENTROPY_CASES_H_

// Random rank-1 LSTM problems for tests: the shapes to try and the data.
#ifndef LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_CASES_H_
#define LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_CASES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/rank1_lstm_reference.h"

namespace late_phase {
namespace test_util {

struct LstmCase {
  int64_t T, N, C, H;
  bool tokens;

  std::string Name() const {
    return (tokens ? "Tokens" : "Dense") + ("T" + std::to_string(T)) + "N" + std::to_string(N) +
           "C" + std::to_string(C) + "H" + std::to_string(H);
  }
};

inline void PrintTo(const LstmCase& c, std::ostream* out) { *out << c.Name(); }

// Odd sizes around the vector widths (4 to 16), the panel width (64), the row chunk (128) and, on
// CUDA, warps (32), blocks (256) and the chunk of rows (2048).
inline std::vector<LstmCase> LstmCases() {
  std::vector<LstmCase> cases;
  for (bool tokens : {false, true}) {
    for (auto [T, N, C, H] : std::vector<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                 {7, 1, 23, 7},
                                                                 {1, 129, 7, 23},
                                                                 {23, 7, 1, 1},
                                                                 {2, 23, 129, 16},
                                                                 {7, 23, 67, 23},
                                                                 {3, 67, 7, 67},
                                                                 {67, 3, 5, 32},
                                                                 {2, 5, 3, 129},
                                                                 {129, 2, 7, 7},
                                                                 {3, 33, 257, 3},
                                                                 {70, 33, 5, 3},
                                                                 {2, 2051, 2, 1}}) {
      cases.push_back({T, N, C, H, tokens});
    }
  }
  return cases;
}

struct LstmProblem {
  reference::Lstm inputs;  // x is one-hot for the token form, and bias is zero
  bool token_form;
  std::vector<int32_t> tokens;  // [T,N]; token form only
  reference::LstmOutputs dout;  // gradients of the outputs
};

// Values are rounded to float, so that the double oracle and a float core see the same numbers.
inline LstmProblem MakeLstmProblem(const LstmCase& c, uint64_t seed = 1) {
  std::mt19937_64 engine(seed);
  auto uniform = [&](int64_t size, double low, double high) {
    std::uniform_real_distribution<double> distribution(low, high);
    reference::Values values(size);
    for (double& value : values) value = static_cast<float>(distribution(engine));
    return values;
  };
  const int64_t Z = 4 * c.H;
  // Weights scaled so that z stays of order one whatever the size.
  const double w = 1.5 / std::sqrt(static_cast<double>(std::max<int64_t>(1, c.C))),
               r = 1.5 / std::sqrt(static_cast<double>(c.H));
  LstmProblem p;
  p.token_form = c.tokens;
  p.inputs = {c.T,
              c.N,
              c.C,
              c.H,
              uniform(c.T * c.N * c.C, -1, 1),
              uniform(c.N * c.H, -1, 1),
              uniform(c.N * c.H, -1, 1),
              uniform(c.C * Z, -w, w),
              uniform(c.H * Z, -r, r),
              uniform(Z, -0.5, 0.5),
              uniform(c.H, 0.5, 1.5),
              uniform(Z, 0.5, 1.5)};
  p.dout = {uniform(c.T * c.N * c.H, -1, 1), uniform(c.N * c.H, -1, 1), uniform(c.N * c.H, -1, 1)};
  if (c.tokens) {
    std::fill(p.inputs.x.begin(), p.inputs.x.end(), 0.0);
    std::fill(p.inputs.bias.begin(), p.inputs.bias.end(), 0.0);
    for (int64_t row = 0; row < c.T * c.N; ++row) {
      p.tokens.push_back(static_cast<int32_t>(engine() % c.C));
      p.inputs.x[row * c.C + p.tokens.back()] = 1.0;
    }
  }
  return p;
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_CASES_H_

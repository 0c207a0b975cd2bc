// The rank-1 LSTM and its gradient as plain double-precision loops, written from the equations and
// not from the core:
//
//   z_t = x_t W + b + ((h_{t−1} ∘ u) R) ∘ v,   gate order i, f, g, o
//
// The factors are applied step by step, never folded into R; the token form is the dense one with
// one-hot inputs. Oracle for tests, as slow as it looks.
#ifndef LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_REFERENCE_H_
#define LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace late_phase {
namespace reference {

using Values = std::vector<double>;

struct Lstm {
  int64_t T, N, C, H;
  Values x;                     // [T,N,C]
  Values initial_h, initial_c;  // [N,H]
  Values kernel;                // [C,4H]
  Values recurrent_kernel;      // [H,4H]
  Values bias;                  // [4H]
  Values u, v;                  // [H], [4H]
};

struct LstmOutputs {
  Values h;                 // [T,N,H]
  Values final_h, final_c;  // [N,H]
};

// Gradients have the names and shapes of what they belong to.
using LstmGradients = Lstm;

inline double Sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

// One sequence n through time; keeps what the backward pass needs.
struct Trace {
  std::vector<Values> h, c, i, f, g, o;  // h and c have T+1 entries, the initial state first
};

inline Trace Walk(const Lstm& m, int64_t n) {
  Trace trace;
  Values h(m.H), c(m.H);
  for (int64_t a = 0; a < m.H; ++a) {
    h[a] = m.initial_h[n * m.H + a];
    c[a] = m.initial_c[n * m.H + a];
  }
  trace.h.push_back(h);
  trace.c.push_back(c);
  for (int64_t t = 0; t < m.T; ++t) {
    Values z(4 * m.H);
    for (int64_t j = 0; j < 4 * m.H; ++j) {
      double recurrent = 0;
      for (int64_t a = 0; a < m.H; ++a) {
        recurrent += h[a] * m.u[a] * m.recurrent_kernel[a * 4 * m.H + j];
      }
      double input = m.bias[j];
      for (int64_t k = 0; k < m.C; ++k) {
        input += m.x[(t * m.N + n) * m.C + k] * m.kernel[k * 4 * m.H + j];
      }
      z[j] = input + recurrent * m.v[j];
    }
    Values i(m.H), f(m.H), g(m.H), o(m.H);
    for (int64_t a = 0; a < m.H; ++a) {
      i[a] = Sigmoid(z[a]);
      f[a] = Sigmoid(z[m.H + a]);
      g[a] = std::tanh(z[2 * m.H + a]);
      o[a] = Sigmoid(z[3 * m.H + a]);
      c[a] = f[a] * c[a] + i[a] * g[a];
      h[a] = o[a] * std::tanh(c[a]);
    }
    trace.h.push_back(h);
    trace.c.push_back(c);
    trace.i.push_back(i);
    trace.f.push_back(f);
    trace.g.push_back(g);
    trace.o.push_back(o);
  }
  return trace;
}

inline LstmOutputs Forward(const Lstm& m) {
  LstmOutputs out{Values(m.T * m.N * m.H), Values(m.N * m.H), Values(m.N * m.H)};
  for (int64_t n = 0; n < m.N; ++n) {
    const Trace trace = Walk(m, n);
    for (int64_t a = 0; a < m.H; ++a) {
      for (int64_t t = 0; t < m.T; ++t) out.h[(t * m.N + n) * m.H + a] = trace.h[t + 1][a];
      out.final_h[n * m.H + a] = trace.h.back()[a];
      out.final_c[n * m.H + a] = trace.c.back()[a];
    }
  }
  return out;
}

// `d` holds the gradients of the outputs.
inline LstmGradients Backward(const Lstm& m, const LstmOutputs& d) {
  const int64_t H = m.H, Z = 4 * m.H;
  LstmGradients grad{m.T,
                     m.N,
                     m.C,
                     m.H,
                     Values(m.x.size()),
                     Values(m.N * H),
                     Values(m.N * H),
                     Values(m.C * Z),
                     Values(H * Z),
                     Values(Z),
                     Values(H),
                     Values(Z)};
  for (int64_t n = 0; n < m.N; ++n) {
    const Trace trace = Walk(m, n);
    Values dh(H), dc(H);
    for (int64_t a = 0; a < H; ++a) {
      dh[a] = d.final_h[n * H + a];
      dc[a] = d.final_c[n * H + a];
    }
    for (int64_t t = m.T - 1; t >= 0; --t) {
      Values dz(Z);
      for (int64_t a = 0; a < H; ++a) {
        const double i = trace.i[t][a], f = trace.f[t][a], g = trace.g[t][a], o = trace.o[t][a];
        const double tanh_c = std::tanh(trace.c[t + 1][a]);
        const double total = dh[a] + d.h[(t * m.N + n) * H + a];
        dz[3 * H + a] = total * tanh_c * o * (1 - o);
        dc[a] += total * o * (1 - tanh_c * tanh_c);
        dz[a] = dc[a] * g * i * (1 - i);
        dz[H + a] = dc[a] * trace.c[t][a] * f * (1 - f);
        dz[2 * H + a] = dc[a] * i * (1 - g * g);
        dc[a] *= f;
      }
      const Values& h_prev = trace.h[t];
      for (int64_t a = 0; a < H; ++a) dh[a] = 0;
      for (int64_t j = 0; j < Z; ++j) {
        grad.bias[j] += dz[j];
        for (int64_t k = 0; k < m.C; ++k) {
          const int64_t at = (t * m.N + n) * m.C + k;
          grad.kernel[k * Z + j] += m.x[at] * dz[j];
          grad.x[at] += m.kernel[k * Z + j] * dz[j];
        }
        for (int64_t a = 0; a < H; ++a) {
          const double r = m.recurrent_kernel[a * Z + j];
          grad.recurrent_kernel[a * Z + j] += h_prev[a] * m.u[a] * m.v[j] * dz[j];
          grad.u[a] += h_prev[a] * r * m.v[j] * dz[j];
          grad.v[j] += h_prev[a] * m.u[a] * r * dz[j];
          dh[a] += m.u[a] * r * m.v[j] * dz[j];
        }
      }
    }
    for (int64_t a = 0; a < H; ++a) {
      grad.initial_h[n * H + a] = dh[a];
      grad.initial_c[n * H + a] = dc[a];
    }
  }
  return grad;
}

}  // namespace reference
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_RANK1_LSTM_REFERENCE_H_

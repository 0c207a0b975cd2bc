// The noisy quadratic problem (NQP), a model of stochastic training whose results are known in
// closed form.
//
//   L̂(w) = ½ (w − w* + ε/√B)ᵀ H (w − w* + ε/√B)     H = diag(1/i), i = 1..n;  ε ~ N(0, H⁻¹);  B the
//   batch size ∇L̂(w) = H (w − w*) + √(H/B) z                    z ~ N(0, 1)
//
// The target w* has equal components. A run starts at a given distance from it, towards the origin.
// Simulations: models/nqp/simulation.h. Closed forms: models/nqp/theory.h.
#ifndef LATE_PHASE_MODELS_NQP_PROBLEM_H_
#define LATE_PHASE_MODELS_NQP_PROBLEM_H_

#include <cstdint>
#include <vector>

#include "kernels/philox_normal.h"

namespace late_phase {

struct NqpProblem {
  // REQUIRES: n >= 1, batch >= 1, target_norm > 0.
  NqpProblem(int64_t n, int64_t batch, double target_norm);

  // w* (1 − distance/‖w*‖): [n]
  std::vector<double> Start(double distance) const;

  int64_t n, batch;
  double target_norm;          // ‖w*‖
  std::vector<double> h;       // [n] the diagonal of H
  std::vector<double> noise;   // [n] standard deviation of the gradient, √(h/B)
  std::vector<double> target;  // [n] w*
};

// Gradients and loss of the two models; all arrays are [n] and do not overlap, z is standard
// normal.

// ∇L̂(w): gradient out.
void NqpGradient(const NqpProblem& problem, const double* w, const float* z, double* gradient);

// Model w = θφ with a scalar φ. dtheta out: φ ∇L̂(θφ). Returns the gradient of φ, θᵀ∇L̂(θφ).
double NqpProductGradient(const NqpProblem& problem, const double* theta, double phi,
                          const float* z, double* dtheta);

// ½ (w − w*)ᵀ H (w − w*) of w = θφ.
double NqpLoss(const NqpProblem& problem, const double* theta, double phi);

// The noise of a run: for each of K rows (members) one vector z [n] after the other. Element i of
// row k's vector number t is element t·n + i of that row of the stream (kernels/philox_normal.h),
// so any other program can draw the same numbers.
class NqpNoise {
 public:
  NqpNoise(const NormalStream& stream, int64_t K, int64_t n);

  // The row's vector for the current step: [n], valid until Advance.
  const float* Row(int64_t k) const { return &buffer_[(k * steps_ + step_) * n_]; }
  // Moves all rows to the next step.
  void Advance();

 private:
  void Fill();

  NormalStream stream_;
  int64_t K_, n_;
  int64_t chunks_;  // of noise in a row's buffer; with them a whole number of vectors:
  int64_t steps_;
  int64_t filled_ = 0, step_ = 0;
  std::vector<float> buffer_;  // [K, steps, n]
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_NQP_PROBLEM_H_

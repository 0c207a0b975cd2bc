#include "models/nqp/theory.h"

#include <cmath>

namespace late_phase {
namespace {

// C_i, the variance of coordinate i of the mean of K models.
double Variance(const NqpProblem& problem, double lr, int64_t K, double h) {
  // 1 − (1 − x)² = x (2 − x) without cancellation; h Σ = 1.
  const double x = lr * h;
  return lr * lr * h / (static_cast<double>(K * problem.batch) * x * (2 - x));
}

double Trace(const NqpProblem& problem) {
  double sum = 0;
  for (double h : problem.h) sum += h;
  return sum;
}

// w*ᵀ H w*
double TargetSquare(const NqpProblem& problem) {
  double sum = 0;
  for (int64_t i = 0; i < problem.n; ++i)
    sum += problem.h[i] * problem.target[i] * problem.target[i];
  return sum;
}

// Variance of the mean of N samples of unit variance with correlation ρ^τ, ρ < 1:  (1/N) Σ_|τ|<N (1
// − |τ|/N) ρ^|τ|.
double MeanVariance(double rho, double N) {
  const double rest = 1 - rho;
  if (N * rest < 1e-4) return 1 - N * rest / 3;  // the closed form cancels; this is its series
  return ((1 + rho) / rest - 2 * rho * -std::expm1(N * std::log1p(-rest)) / (N * rest * rest)) / N;
}

}  // namespace

double FullEnsembleLoss(const NqpProblem& problem, double lr, int64_t K) {
  double sum = 0;
  for (double h : problem.h) sum += h * Variance(problem, lr, K, h);
  return sum / 2;
}

double FullEnsembleStandardError(const NqpProblem& problem, double lr, int64_t K, int64_t updates,
                                 int64_t seeds) {
  double sum = 0;
  for (double h : problem.h) {
    // Var(½ h x²) = ½ (h C)² for a normal x of variance C.
    const double size = h * Variance(problem, lr, K, h), decay = 1 - lr * h;
    sum += size * size / 2 * MeanVariance(decay * decay, static_cast<double>(updates));
  }
  return std::sqrt(sum / static_cast<double>(seeds));
}

double SettledPhi(const NqpProblem& problem, double phi, double distance) {
  const double norm = problem.target_norm, theta = (norm - distance) / phi;
  const double kept = theta * theta - phi * phi;
  // norm²/φ² − φ² = kept
  return std::sqrt((std::sqrt(kept * kept + 4 * norm * norm) - kept) / 2);
}

double LatePhaseLoss(const NqpProblem& problem, double lr, double phi, int64_t K) {
  return lr / static_cast<double>(4 * problem.batch * K) *
         (Trace(problem) * phi * phi + TargetSquare(problem) / (phi * phi));
}

double LatePhaseLongRunLoss(const NqpProblem& problem, double lr, int64_t K) {
  const double root = std::sqrt(static_cast<double>(K));
  return lr / static_cast<double>(4 * problem.batch * K) *
         std::sqrt(Trace(problem) * TargetSquare(problem)) * (root + 1 / root);
}

}  // namespace late_phase

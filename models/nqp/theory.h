// What simulations of the noisy quadratic problem must find. Losses are those of the mean model in
// its steady state under gradient descent.
#ifndef LATE_PHASE_MODELS_NQP_THEORY_H_
#define LATE_PHASE_MODELS_NQP_THEORY_H_

#include <cstdint>

#include "models/nqp/problem.h"

namespace late_phase {

// K independent models. Each coordinate of their mean is an autoregressive process x ← (1 − lr·h) x
// + noise of variance
//   C_i = lr² h_i² Σ_i / (K B (1 − (1 − lr h_i)²)),  h_i Σ_i = 1;     L = ½ Σ_i h_i C_i. Exact.
double FullEnsembleLoss(const NqpProblem& problem, double lr, int64_t K);

// Standard error of that loss averaged over `updates` consecutive updates and `seeds` runs. The
// squares of an autoregressive process are correlated as (1 − lr·h)^2τ, so that the slow
// coordinates give few independent samples.
double FullEnsembleStandardError(const NqpProblem& problem, double lr, int64_t K, int64_t updates,
                                 int64_t seeds);

// Where gradient descent without noise takes φ from a start with the given φ: it keeps ‖θ‖² − φ²
// and ends at θφ = w*.
double SettledPhi(const NqpProblem& problem, double phi, double distance);

// Late-phase weights w_k = θφ_k with γ = 1/K while the φ_k are still near φ:  K·L ≈ (lr/4B) (ΣH φ²
// + w*ᵀHw*/φ²). To first order in lr; holds between n/(lr φ²) and 2/(ΣH lr²) cycles.
double LatePhaseLoss(const NqpProblem& problem, double lr, double phi, int64_t K);

// The same in the very long run: noise moves φ until φ⁴ = K w*ᵀHw*/ΣH, and  K·L → (lr/4B) √(ΣH
// w*ᵀHw*) (√K + 1/√K).
double LatePhaseLongRunLoss(const NqpProblem& problem, double lr, int64_t K);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_NQP_THEORY_H_

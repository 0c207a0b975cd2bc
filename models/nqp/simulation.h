// Simulations of the noisy quadratic problem (models/nqp/problem.h) with the optimizer's own cores:
// Algorithm 1 of the paper with w_k = θφ_k, γ = 1/K, T0 = 0 and gradient descent, against K
// independent models. No TensorFlow.
#ifndef LATE_PHASE_MODELS_NQP_SIMULATION_H_
#define LATE_PHASE_MODELS_NQP_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "models/nqp/problem.h"

namespace late_phase {

// Late-phase weights: base θ [n], members φ [K]. The state is readable, so another implementation
// can be compared step by step. The problem must outlive the run.
class NqpLatePhase {
 public:
  // Starts at w = start with every φ_k = phi.
  NqpLatePhase(const NqpProblem& problem, int64_t K, double lr, double phi,
               const std::vector<double>& start, const NormalStream& stream);

  // One minibatch for each member, then the update of θ.
  void Cycle();
  // Of the mean model, θ · mean_k φ_k.
  double Loss() const;

  const std::vector<double>& theta() const { return theta_; }
  const std::vector<double>& phi() const { return phi_; }

 private:
  const NqpProblem& problem_;
  int64_t K_;
  double lr_;
  NqpNoise noise_;
  std::vector<double> theta_, phi_, sum_, grad_;
};

// K independent models w [K,n]. The problem must outlive the run.
class NqpFullEnsemble {
 public:
  NqpFullEnsemble(const NqpProblem& problem, int64_t K, double lr, const std::vector<double>& start,
                  const NormalStream& stream);

  // One minibatch for each model.
  void Step();
  // Of the mean of the first members[j] models, for each j. REQUIRES: members ascending, each <= K.
  void AddLosses(const std::vector<int64_t>& members, std::vector<double>* sums) const;

  const std::vector<double>& w() const { return w_; }

 private:
  const NqpProblem& problem_;
  int64_t K_;
  double lr_;
  NqpNoise noise_;
  std::vector<double> w_, grad_;
};

struct NqpOptions {
  std::vector<int64_t> members = {1, 2, 5, 10, 15, 20, 25};  // ascending
  int64_t seeds = 5;
  int64_t seed = 0;  // of the first run; the others follow
  int64_t n = 100;
  int64_t batch = 1;
  double target_norm = 1;
  double distance = 0;  // of the start from w*
  double phi = 1;
  double lr = 2e-4;
  int64_t iterations = 800000;    // updates of θ, that is cycles
  int64_t average_last = 100000;  // updates over which the loss is averaged
  double drift_lr = 0.05;         // the second experiment: only late-phase weights, in the long run
  int64_t drift_iterations = 200000;
  int64_t drift_average_last = 100000;
};

// Mean loss over the last updates: [members][seeds].
struct NqpResults {
  std::vector<std::vector<double>> late_phase, full_ensemble, drift;
};

// Runs everything. Each run is a single-threaded task, the longest first; results do not depend on
// the number of threads. `progress` is called from any thread with the fraction of the work that
// has just been done; the fractions add up to 1.
NqpResults RunNqp(const NqpOptions& options, const Parallel& parallel,
                  const std::function<void(double)>& progress);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_NQP_SIMULATION_H_

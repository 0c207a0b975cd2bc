#include "models/nqp/simulation.h"

#include <algorithm>

#include "kernels/member_rows.h"
#include "kernels/update_rules.h"
#include "optimizers/random_streams.h"

namespace late_phase {
namespace {

const Parallel& InLine() {
  static const Parallel* parallel = new Parallel;
  return *parallel;
}

}  // namespace

NqpLatePhase::NqpLatePhase(const NqpProblem& problem, int64_t K, double lr, double phi,
                           const std::vector<double>& start, const NormalStream& stream)
    : problem_(problem),
      K_(K),
      lr_(lr),
      noise_(stream, K, problem.n),
      theta_(start),
      phi_(K, phi),
      sum_(problem.n),
      grad_(problem.n) {
  for (double& value : theta_) value /= phi;
}

void NqpLatePhase::Cycle() {
  for (int64_t k = 0; k < K_; ++k) {
    const double dphi =
        NqpProductGradient(problem_, theta_.data(), phi_[k], noise_.Row(k), grad_.data());
    ApplySgdCpu<double>({1, &phi_[k], {&dphi, nullptr, 1, 0}, lr_}, InLine());
    if (k + 1 < K_) {
      AccumulateCpu<double>(problem_.n, grad_.data(), sum_.data(), InLine());
    } else {
      const double gamma = 1 / static_cast<double>(K_);
      double* sum = K_ > 1 ? sum_.data() : nullptr;
      ApplySgdCpu<double>({problem_.n, theta_.data(), {grad_.data(), sum, gamma, 0}, lr_},
                          InLine());
    }
  }
  noise_.Advance();
}

double NqpLatePhase::Loss() const {
  double mean;
  CollapseCpu<double>(K_, 1, phi_.data(), &mean, InLine());
  return NqpLoss(problem_, theta_.data(), mean);
}

NqpFullEnsemble::NqpFullEnsemble(const NqpProblem& problem, int64_t K, double lr,
                                 const std::vector<double>& start, const NormalStream& stream)
    : problem_(problem),
      K_(K),
      lr_(lr),
      noise_(stream, K, problem.n),
      w_(K * problem.n),
      grad_(problem.n) {
  for (int64_t k = 0; k < K; ++k) std::copy(start.begin(), start.end(), &w_[k * problem.n]);
}

void NqpFullEnsemble::Step() {
  for (int64_t k = 0; k < K_; ++k) {
    double* w = &w_[k * problem_.n];
    NqpGradient(problem_, w, noise_.Row(k), grad_.data());
    ApplySgdCpu<double>({problem_.n, w, {grad_.data(), nullptr, 1, 0}, lr_}, InLine());
  }
  noise_.Advance();
}

void NqpFullEnsemble::AddLosses(const std::vector<int64_t>& members,
                                std::vector<double>* sums) const {
  std::vector<double> total(problem_.n);
  int64_t k = 0;
  for (size_t j = 0; j < members.size(); ++j) {
    for (; k < members[j]; ++k) {
      AccumulateCpu<double>(problem_.n, &w_[k * problem_.n], total.data(), InLine());
    }
    (*sums)[j] += NqpLoss(problem_, total.data(), 1 / static_cast<double>(members[j]));
  }
}

namespace {

// One run of a simulation.
struct Job {
  Normals purpose;
  int64_t seed;   // [0, seeds)
  size_t member;  // index into NqpOptions::members; the full ensemble's run serves all
  double cost;    // minibatches
};

int64_t Iterations(const NqpOptions& options, Normals purpose) {
  return purpose == Normals::kNqpDrift ? options.drift_iterations : options.iterations;
}

// Longest jobs first.
std::vector<Job> ListJobs(const NqpOptions& options) {
  std::vector<Job> jobs;
  auto add = [&](Normals purpose, size_t member) {
    const int64_t iterations = Iterations(options, purpose);
    if (iterations == 0) return;
    for (int64_t seed = 0; seed < options.seeds; ++seed) {
      const double cost =
          static_cast<double>(options.members[member]) * static_cast<double>(iterations);
      jobs.push_back({purpose, seed, member, cost});
    }
  };
  for (size_t member = 0; member < options.members.size(); ++member) {
    add(Normals::kNqpLatePhase, member);
    add(Normals::kNqpDrift, member);
  }
  add(Normals::kNqpFullEnsemble, options.members.size() - 1);
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.cost > b.cost; });
  return jobs;
}

// What all jobs share.
struct Simulation {
  const NqpOptions& options;
  const NqpProblem problem;
  const std::vector<double> start;
  const std::function<void(double)>& progress;
  double cost;  // of all jobs
  NqpResults results;

  // Calls step(average) for each iteration, `average` from where the loss counts.
  template <class Step>
  void Loop(const Job& job, int64_t average_last, const Step& step) const {
    const int64_t iterations = Iterations(options, job.purpose);
    const int64_t report = std::max<int64_t>(iterations / 100, 1);
    for (int64_t t = 0; t < iterations; ++t) {
      step(t >= iterations - average_last);
      if (t % report == 0) {
        const int64_t done = std::min(report, iterations - t);
        progress(job.cost / cost * static_cast<double>(done) / static_cast<double>(iterations));
      }
    }
  }

  NormalStream Stream(const Job& job) const {
    return MakeNormalStream(job.purpose, options.seed + job.seed, options.members[job.member]);
  }

  void RunFullEnsemble(const Job& job) {
    NqpFullEnsemble run(problem, options.members[job.member], options.lr, start, Stream(job));
    std::vector<double> sums(options.members.size());
    Loop(job, options.average_last, [&](bool average) {
      run.Step();
      if (average) run.AddLosses(options.members, &sums);
    });
    for (size_t j = 0; j < sums.size(); ++j) {
      results.full_ensemble[j][job.seed] = sums[j] / static_cast<double>(options.average_last);
    }
  }

  void RunLatePhase(const Job& job) {
    const bool drift = job.purpose == Normals::kNqpDrift;
    const int64_t last = drift ? options.drift_average_last : options.average_last;
    NqpLatePhase run(problem, options.members[job.member], drift ? options.drift_lr : options.lr,
                     options.phi, start, Stream(job));
    double sum = 0;
    Loop(job, last, [&](bool average) {
      run.Cycle();
      if (average) sum += run.Loss();
    });
    (drift ? results.drift : results.late_phase)[job.member][job.seed] =
        sum / static_cast<double>(last);
  }
};

}  // namespace

NqpResults RunNqp(const NqpOptions& options, const Parallel& parallel,
                  const std::function<void(double)>& progress) {
  const std::vector<Job> jobs = ListJobs(options);
  double cost = 0;
  for (const Job& job : jobs) cost += job.cost;
  const NqpProblem problem(options.n, options.batch, options.target_norm);
  const std::vector<std::vector<double>> empty(options.members.size(),
                                               std::vector<double>(options.seeds));
  Simulation simulation{options,  problem, problem.Start(options.distance),
                        progress, cost,    {empty, empty, empty}};
  parallel.run(static_cast<int64_t>(jobs.size()), [&](int64_t i) {
    if (jobs[i].purpose == Normals::kNqpFullEnsemble) {
      simulation.RunFullEnsemble(jobs[i]);
    } else {
      simulation.RunLatePhase(jobs[i]);
    }
  });
  return std::move(simulation.results);
}

}  // namespace late_phase

// The loops are compiled once per instruction set: foreach_target.h includes this file again for each. They are plain loops, which
// the compiler vectorises.
#include "models/nqp_problem.h"

#include <cmath>
#include <numeric>

#include "kernels/cpu_target.h"
#include "kernels/normals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/nqp_problem.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {

// Sum of term(i) over [0, n): kLanes sums, which the compiler keeps in vectors, then these in order.
template <class Term>
HWY_INLINE double Sum(int64_t n, const Term& term) {
  constexpr int64_t kLanes = 16;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += term(i + j);
  }
  double total = 0;
  for (; i < n; ++i) total += term(i);
  for (double sum : sums) total += sum;
  return total;
}

void Gradient(int64_t n, const double* HWY_RESTRICT h, const double* HWY_RESTRICT noise,
              const double* HWY_RESTRICT target, const double* HWY_RESTRICT w,
              const float* HWY_RESTRICT z, double* HWY_RESTRICT gradient) {
  for (int64_t i = 0; i < n; ++i) {
    gradient[i] = h[i] * (w[i] - target[i]) + noise[i] * static_cast<double>(z[i]);
  }
}

double ProductGradient(int64_t n, const double* HWY_RESTRICT h, const double* HWY_RESTRICT noise,
                       const double* HWY_RESTRICT target, const double* HWY_RESTRICT theta,
                       double phi, const float* HWY_RESTRICT z, double* HWY_RESTRICT dtheta) {
  for (int64_t i = 0; i < n; ++i) {
    dtheta[i] = h[i] * (theta[i] * phi - target[i]) + noise[i] * static_cast<double>(z[i]);
  }
  const double dphi = Sum(n, [=](int64_t i) HWY_ATTR { return theta[i] * dtheta[i]; });
  for (int64_t i = 0; i < n; ++i) dtheta[i] *= phi;
  return dphi;
}

double Loss(int64_t n, const double* HWY_RESTRICT h, const double* HWY_RESTRICT target,
            const double* HWY_RESTRICT theta, double phi) {
  return 0.5 * Sum(n, [=](int64_t i) HWY_ATTR {
           const double distance = theta[i] * phi - target[i];
           return h[i] * distance * distance;
         });
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

NqpProblem::NqpProblem(int64_t n, int64_t batch, double target_norm)
    : n(n), batch(batch), target_norm(target_norm), h(n), noise(n), target(n, target_norm / std::sqrt(n)) {
  for (int64_t i = 0; i < n; ++i) {
    h[i] = 1.0 / static_cast<double>(i + 1);
    noise[i] = std::sqrt(h[i] / static_cast<double>(batch));
  }
}

std::vector<double> NqpProblem::Start(double distance) const {
  std::vector<double> w = target;
  for (double& value : w) value *= 1 - distance / target_norm;
  return w;
}

void NqpGradient(const NqpProblem& p, const double* w, const float* z, double* gradient) {
  LATE_PHASE_FOR_TARGET(Gradient)
  (p.n, p.h.data(), p.noise.data(), p.target.data(), w, z, gradient);
}

double NqpProductGradient(const NqpProblem& p, const double* theta, double phi, const float* z,
                          double* dtheta) {
  return LATE_PHASE_FOR_TARGET(ProductGradient)(p.n, p.h.data(), p.noise.data(), p.target.data(),
                                                theta, phi, z, dtheta);
}

double NqpLoss(const NqpProblem& p, const double* theta, double phi) {
  return LATE_PHASE_FOR_TARGET(Loss)(p.n, p.h.data(), p.target.data(), theta, phi);
}

NqpNoise::NqpNoise(const NormalStream& stream, int64_t K, int64_t n)
    : stream_(stream), K_(K), n_(n), chunks_(n / std::gcd(n, kNormalChunk)),
      steps_(kNormalChunk / std::gcd(n, kNormalChunk)), buffer_(K * steps_ * n) {
  Fill();
}

void NqpNoise::Advance() {
  if (++step_ == steps_) Fill();
}

void NqpNoise::Fill() {
  for (int64_t k = 0; k < K_; ++k) {
    FillNormals(stream_, static_cast<uint32_t>(k), filled_, chunks_, &buffer_[k * steps_ * n_]);
  }
  filled_ += chunks_;
  step_ = 0;
}

}  // namespace late_phase
#endif  // HWY_ONCE

// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
#include "models/nqp/problem.h"

#include <cmath>
#include <numeric>

#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/normals.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/nqp/problem.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The arrays of a problem.
struct Arrays {
  explicit Arrays(const NqpProblem& p)
      : n(p.n), h(p.h.data()), noise(p.noise.data()), target(p.target.data()) {}
  int64_t n;
  const double *h, *noise, *target;
};

// Calls step(d, i) for each vector of [0, n), and for the elements left over as vectors of one.
// Returns the sum of what it returns.
template <class Step>
HWY_INLINE double ForVectors(int64_t n, const Step step) {
  const hn::ScalableTag<double> d;
  const hn::CappedTag<double, 1> one;
  const int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  auto rest = hn::Zero(one);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::Add(sum, step(d, i));
  for (; i < n; ++i) rest = hn::Add(rest, step(one, i));
  return hn::GetLane(hn::SumOfLanes(d, sum)) + hn::GetLane(rest);
}

// h (x − w*) + noise · z for the vector at i.
template <class D, class V>
HWY_INLINE V GradientAt(D d, const Arrays& p, const float* z, int64_t i, V x) {
  const auto normal = hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), z + i));
  return hn::MulAdd(hn::LoadU(d, p.h + i), hn::Sub(x, hn::LoadU(d, p.target + i)),
                    hn::Mul(hn::LoadU(d, p.noise + i), normal));
}

void Gradient(const NqpProblem& problem, const double* w, const float* z, double* gradient) {
  const Arrays p(problem);
  ForVectors(p.n, [=](auto d, int64_t i) HWY_ATTR {
    const auto g = GradientAt(d, p, z, i, hn::LoadU(d, w + i));
    hn::StoreU(g, d, gradient + i);
    return g;
  });
}

double ProductGradient(const NqpProblem& problem, const double* theta, double phi, const float* z,
                       double* dtheta) {
  const Arrays p(problem);
  return ForVectors(p.n, [=](auto d, int64_t i) HWY_ATTR {
    const auto base = hn::LoadU(d, theta + i), member = hn::Set(d, phi);
    const auto g = GradientAt(d, p, z, i, hn::Mul(base, member));
    hn::StoreU(hn::Mul(member, g), d, dtheta + i);
    return hn::Mul(base, g);
  });
}

double Loss(const NqpProblem& problem, const double* theta, double phi) {
  const Arrays p(problem);
  return 0.5 * ForVectors(p.n, [=](auto d, int64_t i) HWY_ATTR {
           const auto distance =
               hn::MulSub(hn::LoadU(d, theta + i), hn::Set(d, phi), hn::LoadU(d, p.target + i));
           return hn::Mul(hn::LoadU(d, p.h + i), hn::Mul(distance, distance));
         });
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {

NqpProblem::NqpProblem(int64_t n, int64_t batch, double target_norm)
    : n(n),
      batch(batch),
      target_norm(target_norm),
      h(n),
      noise(n),
      target(n, target_norm / std::sqrt(n)) {
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

void NqpGradient(const NqpProblem& problem, const double* w, const float* z, double* gradient) {
  LATE_PHASE_FOR_TARGET(Gradient)(problem, w, z, gradient);
}

double NqpProductGradient(const NqpProblem& problem, const double* theta, double phi,
                          const float* z, double* dtheta) {
  return LATE_PHASE_FOR_TARGET(ProductGradient)(problem, theta, phi, z, dtheta);
}

double NqpLoss(const NqpProblem& problem, const double* theta, double phi) {
  return LATE_PHASE_FOR_TARGET(Loss)(problem, theta, phi);
}

NqpNoise::NqpNoise(const NormalStream& stream, int64_t K, int64_t n)
    : stream_(stream),
      K_(K),
      n_(n),
      chunks_(n / std::gcd(n, kNormalChunk)),
      steps_(kNormalChunk / std::gcd(n, kNormalChunk)),
      buffer_(K * steps_ * n) {
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

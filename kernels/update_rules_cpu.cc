// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
//
// All rules share one loop; a rule is a function of one vector of elements, of any width.
#include "kernels/cpu/cpu_target.h"
#include "kernels/update_rules.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/update_rules_cpu.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What a rule reads and writes; null if the rule has no such array.
template <typename T>
struct Arrays {
  const T* grad;
  T* sum;
  T* w;
  T* slots[2];
};

// g = scale · (sum + grad) + weight_decay · w for the vector at i; clears the sum.
template <class D, typename T, class V>
HWY_INLINE V ReadGradient(D d, const Arrays<T>& a, int64_t i, T scale, T weight_decay, V w) {
  V g = hn::LoadU(d, a.grad + i);
  if (a.sum != nullptr) {
    g = hn::Add(hn::LoadU(d, a.sum + i), g);
    hn::StoreU(hn::Zero(d), d, a.sum + i);
  }
  return hn::MulAdd(hn::Set(d, weight_decay), w, hn::Mul(hn::Set(d, scale), g));
}

// Runs rule(d, arrays, i) for each vector of [begin, end), and for the elements left over as
// vectors of one: the same instructions, hence the same rounding, and nothing is read or written
// past the end.
template <typename T, class Rule>
HWY_INLINE void ForVectors(int64_t begin, int64_t end, const Arrays<T> a, const Rule rule) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) rule(d, a, i);
  for (; i < end; ++i) rule(hn::CappedTag<T, 1>(), a, i);
}

template <typename T>
void SgdBlock(const SgdArgs<T>& args, int64_t begin, int64_t end) {
  const UpdateGradient<T> g = args.gradient;
  const T lr = args.lr;
  ForVectors(begin, end, Arrays<T>{g.grad, g.sum, args.w, {}},
             [=](auto d, const Arrays<T>& a, int64_t i) HWY_ATTR {
               const auto w = hn::LoadU(d, a.w + i);
               const auto step = ReadGradient(d, a, i, g.scale, g.weight_decay, w);
               hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), step, w), d, a.w + i);
             });
}

template <typename T>
void MomentumBlock(const MomentumArgs<T>& args, int64_t begin, int64_t end) {
  const UpdateGradient<T> g = args.gradient;
  const T gradient_rate = args.gradient_rate(), step_rate = args.step_rate(),
          momentum = args.momentum;
  const bool use_nesterov = args.use_nesterov;
  ForVectors(begin, end, Arrays<T>{g.grad, g.sum, args.w, {args.accum, nullptr}},
             [=](auto d, const Arrays<T>& a, int64_t i) HWY_ATTR {
               const auto w = hn::LoadU(d, a.w + i), rho = hn::Set(d, momentum);
               const auto gradient = hn::Mul(hn::Set(d, gradient_rate),
                                             ReadGradient(d, a, i, g.scale, g.weight_decay, w));
               const auto accum = hn::MulAdd(rho, hn::LoadU(d, a.slots[0] + i), gradient);
               const auto step = use_nesterov ? hn::MulAdd(rho, accum, gradient) : accum;
               hn::StoreU(accum, d, a.slots[0] + i);
               hn::StoreU(hn::NegMulAdd(hn::Set(d, step_rate), step, w), d, a.w + i);
             });
}

template <typename T>
void AdamBlock(const AdamArgs<T>& args, int64_t begin, int64_t end) {
  const UpdateGradient<T> g = args.gradient;
  const T lr = CorrectedRate(args), beta1 = args.beta1, beta2 = args.beta2, epsilon = args.epsilon;
  ForVectors(begin, end, Arrays<T>{g.grad, g.sum, args.w, {args.m, args.v}},
             [=](auto d, const Arrays<T>& a, int64_t i) HWY_ATTR {
               const auto w = hn::LoadU(d, a.w + i);
               const auto gradient = ReadGradient(d, a, i, g.scale, g.weight_decay, w);
               const auto m = hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, a.slots[0] + i),
                                         hn::Mul(hn::Set(d, 1 - beta1), gradient));
               const auto v =
                   hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, a.slots[1] + i),
                              hn::Mul(hn::Mul(hn::Set(d, 1 - beta2), gradient), gradient));
               hn::StoreU(m, d, a.slots[0] + i);
               hn::StoreU(v, d, a.slots[1] + i);
               const auto size = hn::Add(hn::Sqrt(v), hn::Set(d, epsilon));
               hn::StoreU(hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, lr), m), size)), d, a.w + i);
             });
}

template <typename T>
void AccumulateBlock(const T* grad, T* sum, int64_t begin, int64_t end) {
  ForVectors(begin, end, Arrays<T>{grad, sum, nullptr, {}},
             [](auto d, const Arrays<T>& a, int64_t i) HWY_ATTR {
               hn::StoreU(hn::Add(hn::LoadU(d, a.sum + i), hn::LoadU(d, a.grad + i)), d, a.sum + i);
             });
}

// One name per type, so that LATE_PHASE_FOR_TARGET can take an address.
void SgdFloat(const SgdArgs<float>& a, int64_t begin, int64_t end) { SgdBlock(a, begin, end); }
void SgdDouble(const SgdArgs<double>& a, int64_t begin, int64_t end) { SgdBlock(a, begin, end); }
void MomentumFloat(const MomentumArgs<float>& a, int64_t begin, int64_t end) {
  MomentumBlock(a, begin, end);
}
void MomentumDouble(const MomentumArgs<double>& a, int64_t begin, int64_t end) {
  MomentumBlock(a, begin, end);
}
void AdamFloat(const AdamArgs<float>& a, int64_t begin, int64_t end) { AdamBlock(a, begin, end); }
void AdamDouble(const AdamArgs<double>& a, int64_t begin, int64_t end) { AdamBlock(a, begin, end); }
void AccumulateFloat(const float* grad, float* sum, int64_t begin, int64_t end) {
  AccumulateBlock(grad, sum, begin, end);
}
void AccumulateDouble(const double* grad, double* sum, int64_t begin, int64_t end) {
  AccumulateBlock(grad, sum, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {
namespace {

template <class Args>
void Apply(const Args& args, const Parallel& parallel,
           void (*block)(const Args& args, int64_t begin, int64_t end)) {
  ForBlocks(args.D, parallel, [&](int64_t begin, int64_t end) { block(args, begin, end); });
}

template <typename T>
void Accumulate(int64_t D, const T* grad, T* sum, const Parallel& parallel,
                void (*block)(const T* grad, T* sum, int64_t begin, int64_t end)) {
  ForBlocks(D, parallel, [&](int64_t begin, int64_t end) { block(grad, sum, begin, end); });
}

}  // namespace

template <>
void ApplySgdCpu(const SgdArgs<float>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(SgdFloat));
}
template <>
void ApplySgdCpu(const SgdArgs<double>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(SgdDouble));
}
template <>
void ApplyMomentumCpu(const MomentumArgs<float>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(MomentumFloat));
}
template <>
void ApplyMomentumCpu(const MomentumArgs<double>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(MomentumDouble));
}
template <>
void ApplyAdamCpu(const AdamArgs<float>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(AdamFloat));
  ++*args.count;
}
template <>
void ApplyAdamCpu(const AdamArgs<double>& args, const Parallel& parallel) {
  Apply(args, parallel, LATE_PHASE_FOR_TARGET(AdamDouble));
  ++*args.count;
}
template <>
void AccumulateCpu(int64_t D, const float* grad, float* sum, const Parallel& parallel) {
  Accumulate(D, grad, sum, parallel, LATE_PHASE_FOR_TARGET(AccumulateFloat));
}
template <>
void AccumulateCpu(int64_t D, const double* grad, double* sum, const Parallel& parallel) {
  Accumulate(D, grad, sum, parallel, LATE_PHASE_FOR_TARGET(AccumulateDouble));
}

}  // namespace late_phase
#endif  // HWY_ONCE

// A rule is a function of one element: the gradient and the arrays to update are read once, and the
// arrays written once. Rounding is as on a CPU with FMA.
//
// Bytes per weight in float (twice that in double; with 16-bit types gradient and w take 2 bytes
// each, the rest as in float): the gradient is read, every other array is read and written.
//                            member row, or cycle 1    base with the cycle's sum
//   SGD         w            12                        20
//   momentum    w, accum     20                        28
//   Adam        w, m, v      28                        36
//   accumulate  sum                                    12
// At most some 20 operations per weight against 28 bytes: an A100 (1555 GB/s, 19.5 TFLOP/s in
// float) reaches its memory's limit at 12.5 operations per byte, so this is entirely memory-bound.
// The roofline: 18 µs for Adam on a million weights, 0.85 ms for the base update of the 36.5
// million weights of a WRN 28-10 (0.66 ms with momentum). Below some 100,000 weights the launch, 3
// to 5 µs, dominates. Estimated, not measured.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/update_rules.h"

namespace late_phase {
namespace {

// A rule is a function of one element: rule(grad, w, slots) updates w and the elements of kSlots
// arrays; kHasWeights is false where there is no w.

// The gradient of UpdateGradient.
template <typename S, bool kWithSum>
struct GradientRule {
  S scale, weight_decay;

  __device__ __forceinline__ S operator()(S grad, S w, S* sum) const {
    if (kWithSum) {
      grad = *sum + grad;
      *sum = 0;
    }
    return fma(weight_decay, w, scale * grad);
  }
};

// The sum, if there is one, is the last slot.
template <typename S, bool kWithSum>
struct SgdRule {
  static constexpr bool kHasWeights = true;
  static constexpr int kSlots = kWithSum;
  GradientRule<S, kWithSum> gradient;
  S lr;

  __device__ __forceinline__ void operator()(S grad, S* w, S* slots) const {
    *w = fma(-lr, gradient(grad, *w, &slots[0]), *w);
  }
};

template <typename S, bool kWithSum>
struct MomentumRule {
  static constexpr bool kHasWeights = true;
  static constexpr int kSlots = 1 + kWithSum;
  GradientRule<S, kWithSum> gradient;
  S gradient_rate, step_rate, momentum;
  bool use_nesterov;

  __device__ __forceinline__ void operator()(S grad, S* w, S* slots) const {
    const S g = gradient_rate * gradient(grad, *w, &slots[kSlots - 1]);
    slots[0] = fma(momentum, slots[0], g);
    const S step = use_nesterov ? fma(momentum, slots[0], g) : slots[0];
    *w = fma(-step_rate, step, *w);
  }
};

template <typename S, bool kWithSum>
struct AdamRule {
  static constexpr bool kHasWeights = true;
  static constexpr int kSlots = 2 + kWithSum;
  GradientRule<S, kWithSum> gradient;
  const S* rate;  // in device memory, because the count of updates is
  S beta1, beta2, epsilon;

  __device__ __forceinline__ void operator()(S grad, S* w, S* slots) const {
    const S g = gradient(grad, *w, &slots[kSlots - 1]);
    slots[0] = fma(beta1, slots[0], (1 - beta1) * g);
    slots[1] = fma(beta2, slots[1], (1 - beta2) * g * g);
    *w = *w - __ldg(rate) * slots[0] / (sqrt(slots[1]) + epsilon);
  }
};

template <typename S>
struct AccumulateRule {
  static constexpr bool kHasWeights = false;
  static constexpr int kSlots = 1;

  __device__ __forceinline__ void operator()(S grad, S*, S* slots) const {
    slots[0] = slots[0] + grad;
  }
};

// [D] each, all of them.
template <typename T, int kSlots>
struct Arrays {
  const T* grad;
  T* w;  // null without weights
  ComputeType<T>* slots[kSlots > 0 ? kSlots : 1];
};

template <typename T, class Rule>
struct Updated {
  Arrays<T, Rule::kSlots> arrays;
  Rule rule;

  template <int kLanes>
  __device__ __forceinline__ void At(int64_t i) const {
    using S = ComputeType<T>;
    const Pack<T, kLanes> grad = LoadPack<kLanes>(arrays.grad + i);
    Pack<T, kLanes> w = {};
    if (Rule::kHasWeights) w = LoadPack<kLanes>(arrays.w + i);
    Pack<S, kLanes> slots[Rule::kSlots + 1];
#pragma unroll
    for (int a = 0; a < Rule::kSlots; ++a) slots[a] = LoadPack<kLanes>(arrays.slots[a] + i);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      S weight = Widened(w.lane[lane]), x[Rule::kSlots + 1];
#pragma unroll
      for (int a = 0; a < Rule::kSlots; ++a) x[a] = slots[a].lane[lane];
      rule(Widened(grad.lane[lane]), &weight, x);
      w.lane[lane] = Rounded<T>(weight);
#pragma unroll
      for (int a = 0; a < Rule::kSlots; ++a) slots[a].lane[lane] = x[a];
    }
    if (Rule::kHasWeights) StorePack(w, arrays.w + i);
#pragma unroll
    for (int a = 0; a < Rule::kSlots; ++a) StorePack(slots[a], arrays.slots[a] + i);
  }
};

// A row of [K,D] can start anywhere, so arrays need not be aligned.
template <typename T, class Rule>
[[nodiscard]] std::string Update(const char* name, int64_t D, const Arrays<T, Rule::kSlots>& arrays,
                                 const Rule& rule, CudaStream stream) {
  constexpr int kLanes = kWidestPack<ComputeType<T>>;
  bool aligned = IsAligned<kLanes>(arrays.grad) && IsAligned<kLanes>(arrays.w);
  for (int a = 0; a < Rule::kSlots; ++a) aligned = aligned && IsAligned<kLanes>(arrays.slots[a]);
  return ForElements<kLanes>(name, D, aligned, Updated<T, Rule>{arrays, rule}, stream);
}

// One thread. The powers are computed here once, in double, and not by every thread of the update.
template <typename T>
__global__ void AdamRateKernel(AdamArgs<T> args) {
  *args.rate = CorrectedRate(args);
  ++*args.count;
}

}  // namespace

template <typename T>
std::string ApplySgdGpu(const SgdArgs<T>& args, CudaStream stream) {
  using S = ComputeType<T>;
  const UpdateGradient<T>& g = args.gradient;
  if (g.sum != nullptr) {
    const SgdRule<S, true> rule{{g.scale, g.weight_decay}, args.lr};
    return Update<T>("ApplySgd", args.D, {g.grad, args.w, {g.sum}}, rule, stream);
  }
  const SgdRule<S, false> rule{{g.scale, g.weight_decay}, args.lr};
  return Update<T>("ApplySgd", args.D, {g.grad, args.w, {}}, rule, stream);
}

template <typename T>
std::string ApplyMomentumGpu(const MomentumArgs<T>& args, CudaStream stream) {
  using S = ComputeType<T>;
  const UpdateGradient<T>& g = args.gradient;
  if (g.sum != nullptr) {
    const MomentumRule<S, true> rule{{g.scale, g.weight_decay},
                                     args.gradient_rate(),
                                     args.step_rate(),
                                     args.momentum,
                                     args.use_nesterov};
    return Update<T>("ApplyMomentum", args.D, {g.grad, args.w, {args.accum, g.sum}}, rule, stream);
  }
  const MomentumRule<S, false> rule{{g.scale, g.weight_decay},
                                    args.gradient_rate(),
                                    args.step_rate(),
                                    args.momentum,
                                    args.use_nesterov};
  return Update<T>("ApplyMomentum", args.D, {g.grad, args.w, {args.accum}}, rule, stream);
}

template <typename T>
std::string ApplyAdamGpu(const AdamArgs<T>& args, CudaStream stream) {
  using S = ComputeType<T>;
  const UpdateGradient<T>& g = args.gradient;
  std::string error = LaunchKernel({"AdamRate", 1, 1, 0, stream}, AdamRateKernel<T>, args);
  if (!error.empty()) return error;
  if (g.sum != nullptr) {
    const AdamRule<S, true> rule{
        {g.scale, g.weight_decay}, args.rate, args.beta1, args.beta2, args.epsilon};
    return Update<T>("ApplyAdam", args.D, {g.grad, args.w, {args.m, args.v, g.sum}}, rule, stream);
  }
  const AdamRule<S, false> rule{
      {g.scale, g.weight_decay}, args.rate, args.beta1, args.beta2, args.epsilon};
  return Update<T>("ApplyAdam", args.D, {g.grad, args.w, {args.m, args.v}}, rule, stream);
}

template <typename T>
std::string AccumulateGpu(int64_t D, const T* grad, ComputeType<T>* sum, CudaStream stream) {
  return Update<T>("Accumulate", D, {grad, nullptr, {sum}}, AccumulateRule<ComputeType<T>>(),
                   stream);
}

#define LATE_PHASE_INSTANTIATE(T)                                            \
  template std::string ApplySgdGpu(const SgdArgs<T>&, CudaStream);           \
  template std::string ApplyMomentumGpu(const MomentumArgs<T>&, CudaStream); \
  template std::string ApplyAdamGpu(const AdamArgs<T>&, CudaStream);         \
  template std::string AccumulateGpu(int64_t, const T*, ComputeType<T>*, CudaStream)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
LATE_PHASE_INSTANTIATE(Half);
LATE_PHASE_INSTANTIATE(BFloat16);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

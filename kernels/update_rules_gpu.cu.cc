// All rules share one kernel: a grid-stride loop that reads the gradient and the arrays to update
// once, 16 bytes at a time where all of them are aligned to that, and writes the arrays once. A
// rule is a function of one element; rounding is as on a CPU with FMA.
//
// Bytes per weight in float (double: twice): the gradient is read, every other array is read and
// written.
//                            member row, or cycle 1    base with the cycle's sum
//   SGD         w            12                        20
//   momentum    w, accum     20                        28
//   Adam        w, m, v      28                        36
//   accumulate  sum                                    12
// At most some 20 operations per weight against 28 bytes: an A100 (1555 GB/s, 19.5 TFLOP/s in
// float) reaches its memory's limit at 12.5 operations per byte, so that memory decides by far. The
// roofline: 18 µs for Adam on a million weights, 0.85 ms for the base update of the 36.5 million
// weights of a WRN 28-10 (0.66 ms with momentum). Below some 100,000 weights the launch, 3 to 5 µs,
// decides. Estimated, not measured.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/cuda_launch.h"
#include "kernels/update_rules.h"

namespace late_phase {
namespace {

constexpr int kThreads = 256;

// [D] each, all of them. The gradient is read, the others are updated.
template <typename T, int kUpdated>
struct Arrays {
  const T* grad;
  T* updated[kUpdated];
};

// Elements that are read or written by one instruction.
template <typename T, int kLanes>
struct alignas(kLanes * sizeof(T)) Pack {
  T lane[kLanes];
};

template <typename T>
constexpr int kWidestPack = 16 / sizeof(T);

// Rules: rule(grad, x) updates x[0], ..., x[kUpdated - 1], elements of the arrays in order.

// The gradient of UpdateGradient; the sum, if there is one, is the last array.
template <typename T, bool kWithSum>
struct GradientRule {
  T scale, weight_decay;

  __device__ __forceinline__ T operator()(T grad, T w, T* sum) const {
    if (kWithSum) {
      grad = *sum + grad;
      *sum = 0;
    }
    return fma(weight_decay, w, scale * grad);
  }
};

template <typename T, bool kWithSum>
struct SgdRule {
  static constexpr int kUpdated = 1 + kWithSum;
  GradientRule<T, kWithSum> gradient;
  T lr;

  __device__ __forceinline__ void operator()(T grad, T* x) const {
    const T g = gradient(grad, x[0], &x[kUpdated - 1]);
    x[0] = fma(-lr, g, x[0]);
  }
};

template <typename T, bool kWithSum>
struct MomentumRule {
  static constexpr int kUpdated = 2 + kWithSum;
  GradientRule<T, kWithSum> gradient;
  T lr, momentum;
  bool use_nesterov;

  __device__ __forceinline__ void operator()(T grad, T* x) const {
    const T g = gradient(grad, x[0], &x[kUpdated - 1]);
    x[1] = fma(momentum, x[1], g);
    const T step = use_nesterov ? fma(momentum, x[1], g) : x[1];
    x[0] = fma(-lr, step, x[0]);
  }
};

template <typename T, bool kWithSum>
struct AdamRule {
  static constexpr int kUpdated = 3 + kWithSum;
  GradientRule<T, kWithSum> gradient;
  T corrected_lr, beta1, beta2, epsilon;

  __device__ __forceinline__ void operator()(T grad, T* x) const {
    const T g = gradient(grad, x[0], &x[kUpdated - 1]);
    x[1] = fma(beta1, x[1], (1 - beta1) * g);
    x[2] = fma(beta2, x[2], (1 - beta2) * g * g);
    x[0] = x[0] - corrected_lr * x[1] / (sqrt(x[2]) + epsilon);
  }
};

template <typename T>
struct AccumulateRule {
  static constexpr int kUpdated = 1;

  __device__ __forceinline__ void operator()(T grad, T* x) const { x[0] = x[0] + grad; }
};

// The rule on the kLanes elements from i on.
template <int kLanes, typename T, class Rule>
__device__ __forceinline__ void UpdateAt(int64_t i, const Arrays<T, Rule::kUpdated>& arrays,
                                         const Rule& rule) {
  using P = Pack<T, kLanes>;
  const P grad = *reinterpret_cast<const P*>(arrays.grad + i);
  P packs[Rule::kUpdated];
#pragma unroll
  for (int a = 0; a < Rule::kUpdated; ++a) {
    packs[a] = *reinterpret_cast<const P*>(arrays.updated[a] + i);
  }
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    T x[Rule::kUpdated];
#pragma unroll
    for (int a = 0; a < Rule::kUpdated; ++a) x[a] = packs[a].lane[lane];
    rule(grad.lane[lane], x);
#pragma unroll
    for (int a = 0; a < Rule::kUpdated; ++a) packs[a].lane[lane] = x[a];
  }
#pragma unroll
  for (int a = 0; a < Rule::kUpdated; ++a) {
    *reinterpret_cast<P*>(arrays.updated[a] + i) = packs[a];
  }
}

template <int kLanes, typename T, class Rule>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(int64_t D, Arrays<T, Rule::kUpdated> arrays, Rule rule) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, packs = D / kLanes;
  for (int64_t i = thread; i < packs; i += stride) UpdateAt<kLanes>(i * kLanes, arrays, rule);
  // The elements left over, fewer than kLanes, go to the first threads.
  const int64_t rest = packs * kLanes + thread;
  if (rest < D) UpdateAt<1>(rest, arrays, rule);
}

template <int kLanes, typename T, class Rule>
std::string LaunchUpdate(const char* name, int64_t D, const Arrays<T, Rule::kUpdated>& arrays,
                         const Rule& rule, CudaStream stream) {
  constexpr int64_t kBlock = int64_t{kThreads} * kLanes;
  const auto kernel = UpdateKernel<kLanes, T, Rule>;
  const unsigned grid = GridForBlocks((D + kBlock - 1) / kBlock, kernel, kThreads, 0);
  return LaunchKernel({name, grid, kThreads, 0, stream}, kernel, D, arrays, rule);
}

// A row of [K,D] begins anywhere: then single elements, whose reads a warp joins all the same.
template <typename T, class Rule>
std::string Update(const char* name, int64_t D, const Arrays<T, Rule::kUpdated>& arrays,
                   const Rule& rule, CudaStream stream) {
  if (D == 0) return "";
  uintptr_t addresses = reinterpret_cast<uintptr_t>(arrays.grad);
  for (T* const array : arrays.updated) addresses |= reinterpret_cast<uintptr_t>(array);
  return addresses % sizeof(Pack<T, kWidestPack<T>>) == 0
             ? LaunchUpdate<kWidestPack<T>>(name, D, arrays, rule, stream)
             : LaunchUpdate<1>(name, D, arrays, rule, stream);
}

}  // namespace

template <typename T>
std::string ApplySgdGpu(const SgdArgs<T>& args, CudaStream stream) {
  const UpdateGradient<T>& g = args.gradient;
  if (g.sum != nullptr) {
    const SgdRule<T, true> rule{{g.scale, g.weight_decay}, args.lr};
    return Update<T>("ApplySgd", args.D, {g.grad, {args.w, g.sum}}, rule, stream);
  }
  const SgdRule<T, false> rule{{g.scale, g.weight_decay}, args.lr};
  return Update<T>("ApplySgd", args.D, {g.grad, {args.w}}, rule, stream);
}

template <typename T>
std::string ApplyMomentumGpu(const MomentumArgs<T>& args, CudaStream stream) {
  const UpdateGradient<T>& g = args.gradient;
  if (g.sum != nullptr) {
    const MomentumRule<T, true> rule{
        {g.scale, g.weight_decay}, args.lr, args.momentum, args.use_nesterov};
    return Update<T>("ApplyMomentum", args.D, {g.grad, {args.w, args.accum, g.sum}}, rule, stream);
  }
  const MomentumRule<T, false> rule{
      {g.scale, g.weight_decay}, args.lr, args.momentum, args.use_nesterov};
  return Update<T>("ApplyMomentum", args.D, {g.grad, {args.w, args.accum}}, rule, stream);
}

template <typename T>
std::string ApplyAdamGpu(const AdamArgs<T>& args, CudaStream stream) {
  const UpdateGradient<T>& g = args.gradient;
  const T lr = CorrectedRate(args);
  if (g.sum != nullptr) {
    const AdamRule<T, true> rule{
        {g.scale, g.weight_decay}, lr, args.beta1, args.beta2, args.epsilon};
    return Update<T>("ApplyAdam", args.D, {g.grad, {args.w, args.m, args.v, g.sum}}, rule, stream);
  }
  const AdamRule<T, false> rule{
      {g.scale, g.weight_decay}, lr, args.beta1, args.beta2, args.epsilon};
  return Update<T>("ApplyAdam", args.D, {g.grad, {args.w, args.m, args.v}}, rule, stream);
}

template <typename T>
std::string AccumulateGpu(int64_t D, const T* grad, T* sum, CudaStream stream) {
  return Update<T>("Accumulate", D, {grad, {sum}}, AccumulateRule<T>(), stream);
}

template std::string ApplySgdGpu(const SgdArgs<float>&, CudaStream);
template std::string ApplySgdGpu(const SgdArgs<double>&, CudaStream);
template std::string ApplyMomentumGpu(const MomentumArgs<float>&, CudaStream);
template std::string ApplyMomentumGpu(const MomentumArgs<double>&, CudaStream);
template std::string ApplyAdamGpu(const AdamArgs<float>&, CudaStream);
template std::string ApplyAdamGpu(const AdamArgs<double>&, CudaStream);
template std::string AccumulateGpu(int64_t, const float*, float*, CudaStream);
template std::string AccumulateGpu(int64_t, const double*, double*, CudaStream);

}  // namespace late_phase

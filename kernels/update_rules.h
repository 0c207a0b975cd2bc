// The update rules of Algorithm 1 (SGD, momentum, Adam) on one array of weights, each in one pass
// over memory.
//
// A rule serves base and late-phase weights alike: a member update is a rule on row k of [K,D]
// without a sum; the base update that closes a cycle is a rule with the cycle's gradient sum, whose
// reading, scaling by γ and clearing take no further pass. The minibatches before the last of a
// cycle call Accumulate.
//
// D weights. Element-wise throughout: any number of threads gives the same bits. Instruction sets
// differ by rounding (FMA). Cores: no TensorFlow; nothing is checked here. K rows at once (spawn,
// average, collapse): kernels/member_rows.h.
//
// A Cpu function takes float and double. A Gpu function is its twin on a stream, which takes Half
// and BFloat16 too: arrays are in device memory, and it returns before they are updated, empty or
// with an error message.
#ifndef LATE_PHASE_KERNELS_UPDATE_RULES_H_
#define LATE_PHASE_KERNELS_UPDATE_RULES_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/stream.h"
#include "kernels/half_types.h"
#include "kernels/host_device.h"

namespace late_phase {

// The gradient that an update uses:
//   g = scale · (sum + grad), and sum is cleared as it is read; g = scale · grad if sum is null
//   g ← g + weight_decay · w (coupled L2)
// Weights and gradients are of type T, everything else of type Scalar.
template <typename T>
struct UpdateGradient {
  using Scalar = ComputeType<T>;
  const T* grad;  // [D]
  Scalar* sum;    // [D] in: the gradients accumulated so far; out: zeros. Or null
  Scalar scale;   // γ
  Scalar weight_decay;
};

// Arrays of one call may not overlap.
template <typename T>
struct SgdArgs {
  using Scalar = ComputeType<T>;
  int64_t D;
  T* w;  // [D] updated in place
  UpdateGradient<T> gradient;
  Scalar lr;
};

template <typename T>
struct MomentumArgs {
  using Scalar = ComputeType<T>;
  int64_t D;
  T* w;           // [D] updated in place
  Scalar* accum;  // [D] updated in place
  UpdateGradient<T> gradient;
  Scalar lr, momentum;
  bool use_nesterov;
  bool lr_in_accum = false;  // as in Keras

  // The factors with which a gradient enters accum, and a step enters w. For the
  // cores.
  Scalar gradient_rate() const { return lr_in_accum ? lr : Scalar(1); }
  Scalar step_rate() const { return lr_in_accum ? Scalar(1) : lr; }
};

template <typename T>
struct AdamArgs {
  using Scalar = ComputeType<T>;
  int64_t D;
  T* w;       // [D] updated in place
  Scalar* m;  // [D] updated in place
  Scalar* v;  // [D] updated in place
  UpdateGradient<T> gradient;
  Scalar lr, beta1, beta2, epsilon;
  int64_t* count;          // [] updates before this one, which is number n = count + 1; out: n
  Scalar* rate = nullptr;  // [] scratch of the Gpu function
};

// w ← w − lr · g
template <typename T>
void ApplySgdCpu(const SgdArgs<T>& args, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string ApplySgdGpu(const SgdArgs<T>& args, CudaStream stream);

// accum ← momentum · accum + g
// w ← w − lr · accum, or with Nesterov's look-ahead w ← w − lr · (g + momentum · accum)
// (TensorFlow's ResourceApplyMomentum)
// With lr_in_accum: accum ← momentum · accum + lr · g, and w ← w − accum, or with the look-ahead
// w ← w − (lr · g + momentum · accum). Then an accumulated step keeps the lr it was made with.
// (Keras's SGD, whose momentum is −accum)
template <typename T>
void ApplyMomentumCpu(const MomentumArgs<T>& args, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string ApplyMomentumGpu(const MomentumArgs<T>& args, CudaStream stream);

// m ← beta1 · m + (1 − beta1) · g
// v ← beta2 · v + (1 − beta2) · g²
// w ← w − lr · √(1 − beta2ⁿ) / (1 − beta1ⁿ) · m / (√v + epsilon)     (TensorFlow's
// ResourceApplyAdam)
template <typename T>
void ApplyAdamCpu(const AdamArgs<T>& args, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string ApplyAdamGpu(const AdamArgs<T>& args, CudaStream stream);

// sum ← sum + grad     both [D]
template <typename T>
void AccumulateCpu(int64_t D, const T* grad, T* sum, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string AccumulateGpu(int64_t D, const T* grad, ComputeType<T>* sum,
                                        CudaStream stream);

// Adam's rate with the bias of m and v corrected: lr · √(1 − beta2ⁿ) / (1 − beta1ⁿ). For the cores.
template <typename T>
LATE_PHASE_HOST_DEVICE ComputeType<T> CorrectedRate(const AdamArgs<T>& args) {
  const double n = static_cast<double>(*args.count) + 1;
  return static_cast<ComputeType<T>>(args.lr * sqrt(1 - pow(static_cast<double>(args.beta2), n)) /
                                     (1 - pow(static_cast<double>(args.beta1), n)));
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_UPDATE_RULES_H_

// The update rules of Algorithm 1 (SGD, momentum, Adam) on one array of weights, each in one pass
// over memory.
//
// A rule serves base and late-phase weights alike: a member update is a rule on row k of [K,D]
// without a sum; the base update that closes a cycle is a rule with the cycle's gradient sum, whose
// reading, scaling by γ and clearing cost no further pass. The minibatches before the last of a
// cycle call Accumulate.
//
// D weights. Element-wise throughout: any number of threads gives the same bits. Instruction sets
// differ by rounding (FMA). Cores: float and double, no TensorFlow; nothing is checked here. K rows
// at once (spawn, average, collapse): kernels/member_rows.h.
//
// A Gpu function is its Cpu twin on a stream: arrays are in device memory, and it returns before
// they are updated, empty or with what went wrong.
#ifndef LATE_PHASE_KERNELS_UPDATE_RULES_H_
#define LATE_PHASE_KERNELS_UPDATE_RULES_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cuda_stream.h"
#include "kernels/parallel.h"

namespace late_phase {

// The gradient an update works with:
//   g = scale · (sum + grad), and sum is cleared as it is read; g = scale · grad if sum is null
//   g ← g + weight_decay · w (coupled L2)
template <typename T>
struct UpdateGradient {
  const T* grad;  // [D]
  T* sum;         // [D] in: the gradients gathered so far; out: zeros. Or null
  T scale;        // γ
  T weight_decay;
};

// Arrays of one call may not overlap.
template <typename T>
struct SgdArgs {
  int64_t D;
  T* w;  // [D] updated in place
  UpdateGradient<T> gradient;
  T lr;
};

template <typename T>
struct MomentumArgs {
  int64_t D;
  T* w;      // [D] updated in place
  T* accum;  // [D] updated in place
  UpdateGradient<T> gradient;
  T lr, momentum;
  bool use_nesterov;
};

template <typename T>
struct AdamArgs {
  int64_t D;
  T* w;  // [D] updated in place
  T* m;  // [D] updated in place
  T* v;  // [D] updated in place
  UpdateGradient<T> gradient;
  T lr, beta1, beta2, epsilon;
  int64_t count;  // updates before this one: this is number n = count + 1
};

// w ← w − lr · g
template <typename T>
void ApplySgdCpu(const SgdArgs<T>& args, const Parallel& parallel);
template <typename T>
std::string ApplySgdGpu(const SgdArgs<T>& args, CudaStream stream);

// accum ← momentum · accum + g
// w ← w − lr · accum, or with Nesterov's look-ahead w ← w − lr · (g + momentum · accum)
// (TensorFlow's ResourceApplyMomentum)
template <typename T>
void ApplyMomentumCpu(const MomentumArgs<T>& args, const Parallel& parallel);
template <typename T>
std::string ApplyMomentumGpu(const MomentumArgs<T>& args, CudaStream stream);

// m ← beta1 · m + (1 − beta1) · g
// v ← beta2 · v + (1 − beta2) · g²
// w ← w − lr · √(1 − beta2ⁿ) / (1 − beta1ⁿ) · m / (√v + epsilon)     (TensorFlow's
// ResourceApplyAdam)
template <typename T>
void ApplyAdamCpu(const AdamArgs<T>& args, const Parallel& parallel);
template <typename T>
std::string ApplyAdamGpu(const AdamArgs<T>& args, CudaStream stream);

// sum ← sum + grad     both [D]
template <typename T>
void AccumulateCpu(int64_t D, const T* grad, T* sum, const Parallel& parallel);
template <typename T>
std::string AccumulateGpu(int64_t D, const T* grad, T* sum, CudaStream stream);

// Adam's rate with the bias of m and v corrected: lr · √(1 − beta2ⁿ) / (1 − beta1ⁿ). For the cores.
template <typename T>
T CorrectedRate(const AdamArgs<T>& args) {
  const double n = static_cast<double>(args.count) + 1;
  return static_cast<T>(args.lr * std::sqrt(1 - std::pow<double>(args.beta2, n)) /
                        (1 - std::pow<double>(args.beta1, n)));
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_UPDATE_RULES_H_

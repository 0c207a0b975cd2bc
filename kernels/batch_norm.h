// Batch normalisation with an activation, forward and backward. Core: no TensorFlow, no threads of
// its own.
//
// n rows (a batch, or all pixels of one) of C channels, channels last; everything is per channel:
//   x̂ = (x − μ) / √(σ² + epsilon)        z = scale · x̂ + offset        y = activation(z)
// In training μ and σ² are the mean and the variance Σ(x − μ)²/n of the rows, and the running
// statistics follow them:
//   running_mean     = (1 − momentum) · mean     + momentum · μ
//   running_variance = (1 − momentum) · variance + momentum · Σ(x − μ)² / max(n − 1, 1)
// In inference, and where there are no rows, μ and σ² are the given mean and variance, which the
// running statistics repeat.
//
// Backward, with dz = dy where z > 0 or there is no activation, else 0:
//   doffset = Σ dz        dscale = Σ dz · x̂
//   dx = scale / √(σ² + epsilon) · (dz − (doffset + x̂ · dscale) / n)     in training
//   dx = scale / √(σ² + epsilon) · dz                                    in inference
//
// Neither a mean far larger than the deviation nor a great number of rows costs precision: sums are
// taken of differences, a few rows at a time, and merged in double. A channel without variance has
// variance 0 and x̂ = 0 exactly. NaN stays in its channel.
//
// A member's rows of scale, offset and statistics are picked by the OpKernels, which check every
// argument: kernels/batch_norm_op.cc.
#ifndef LATE_PHASE_KERNELS_BATCH_NORM_H_
#define LATE_PHASE_KERNELS_BATCH_NORM_H_

#include <cstdint>

#include "kernels/parallel.h"

namespace late_phase {

// Either may be 0, and the pointers of an empty array null.
struct BatchNormShape {
  int64_t n, C;
};

enum class BatchNormActivation { kIdentity, kRelu };

// What the forward pass leaves to the backward pass: μ = mean + mean_rest to twice the precision of
// T, of which x − mean needs the first half alone, and 1/√(σ² + epsilon).
template <typename T>
struct BatchNormSaved {
  T* mean;       // [C]
  T* mean_rest;  // [C]
  T* inv_std;    // [C]
};

template <typename T>
struct BatchNormForwardArgs {
  BatchNormShape shape;
  bool is_training;
  BatchNormActivation activation;
  double epsilon;           // > 0
  double momentum;          // in [0, 1]
  const T* x;               // [n,C]
  const T* scale;           // [C]
  const T* offset;          // [C]
  const T* mean;            // [C] running statistics before this batch
  const T* variance;        // [C]
  T* y;                     // [n,C] out; may be x itself
  T* running_mean;          // [C] out
  T* running_variance;      // [C] out
  BatchNormSaved<T> saved;  // out
  double* sums;             // scratch of BatchNormSums elements
  T* coefficients;          // scratch of BatchNormCoefficients elements
};

template <typename T>
struct BatchNormBackwardArgs {
  BatchNormShape shape;
  bool is_training;
  BatchNormActivation activation;
  const T* x;                     // [n,C]
  const T* scale;                 // [C]
  const T* offset;                // [C]
  BatchNormSaved<const T> saved;  // as the forward pass wrote it
  const T* dy;                    // [n,C]
  T* dx;                          // [n,C] out; may be dy itself
  T* dscale;                      // [C] out
  T* doffset;                     // [C] out
  double* sums;                   // scratch of BatchNormSums elements
  T* coefficients;                // scratch of BatchNormCoefficients elements
};

int64_t BatchNormSums(const BatchNormShape& shape, const Parallel& parallel);
int64_t BatchNormCoefficients(const BatchNormShape& shape);

// Arrays may overlap only where it says so. The same thread count gives the same bits; another one
// differs by rounding.
template <typename T>
void BatchNormForwardCpu(const BatchNormForwardArgs<T>& args, const Parallel& parallel);
template <typename T>
void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>& args, const Parallel& parallel);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_BATCH_NORM_H_

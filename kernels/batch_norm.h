// Batch normalisation with an activation, forward and backward. Core: no TensorFlow, no threads of
// its own.
//
// n rows (a batch, or all pixels of one) of C channels, channels last; everything is per channel:
//   x̂ = (x − μ) / √(σ² + epsilon)        z = scale · x̂ + offset        y = activation(z)
// In training μ and σ² are the mean and the variance Σ(x − μ)²/n of the rows, and the running
// statistics follow them:
//   running_mean     = (1 − momentum) · mean     + momentum · μ
//   running_variance = (1 − momentum) · variance + momentum · Σ(x − μ)² / max(n − 1, 1)
// In inference, or without rows, μ and σ² are the given mean and variance, which the
// running statistics repeat.
//
// Backward, with dz = 0 where the activation is a rectifier and z ≤ 0, else dy:
//   doffset = Σ dz        dscale = Σ dz · x̂
//   dx = scale / √(σ² + epsilon) · (dz − (doffset + x̂ · dscale) / n)     in training
//   dx = scale / √(σ² + epsilon) · dz                                    in inference
//
// Neither a mean far larger than the deviation nor a large number of rows costs precision: sums are
// taken of differences, a few rows at a time, and merged in double. A constant channel has
// variance 0 and x̂ = 0 exactly. NaN stays in its channel. In inference an x that is not finite
// affects its own y and the channel's dscale; dx does not depend on it.
//
// A member's rows of scale, offset and statistics are picked by the OpKernels, which check every
// argument: kernels/batch_norm_op.cc.
#ifndef LATE_PHASE_KERNELS_BATCH_NORM_H_
#define LATE_PHASE_KERNELS_BATCH_NORM_H_

#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/stream.h"
#include "kernels/half_types.h"

namespace late_phase {

// n rows of C channels. Either may be 0; the pointers of an empty array may be null.
//
// `plane` is their layout in memory, [n/plane, C, plane]: 1 is channels last, [n,C]; the pixels
// of an image are channels first (NCHW). The Cpu functions take channels last only.
struct BatchNormShape {
  int64_t n, C, plane = 1;
};

enum class BatchNormActivation { kIdentity, kRelu };

// What the forward pass leaves for the backward pass: 1/√(σ² + epsilon), and μ = mean + mean_rest
// to twice the precision of T, of which x − mean needs only the first half.
template <typename T>
struct BatchNormSaved {
  T* mean;       // [C]
  T* mean_rest;  // [C]
  T* inv_std;    // [C]
};

// Rows are of type T, everything else of type Scalar.
template <typename T>
struct BatchNormForwardArgs {
  using Scalar = ComputeType<T>;
  BatchNormShape shape;
  bool is_training;
  BatchNormActivation activation;
  double epsilon;                // > 0
  double momentum;               // in [0, 1]
  const T* x;                    // [n,C]
  const Scalar* scale;           // [C]
  const Scalar* offset;          // [C]
  const Scalar* mean;            // [C] running statistics before this batch
  const Scalar* variance;        // [C]
  T* y;                          // [n,C] out; may be x itself
  Scalar* running_mean;          // [C] out
  Scalar* running_variance;      // [C] out
  BatchNormSaved<Scalar> saved;  // out
  double* sums;                  // scratch of BatchNormSums elements
  Scalar* coefficients;          // scratch of BatchNormCoefficients elements
};

template <typename T>
struct BatchNormBackwardArgs {
  using Scalar = ComputeType<T>;
  BatchNormShape shape;
  bool is_training;
  BatchNormActivation activation;
  const T* x;                          // [n,C]
  const Scalar* scale;                 // [C]
  const Scalar* offset;                // [C]
  BatchNormSaved<const Scalar> saved;  // as the forward pass wrote it
  const T* dy;                         // [n,C]
  T* dx;                               // [n,C] out; may be dy itself
  Scalar* dscale;                      // [C] out
  Scalar* doffset;                     // [C] out
  double* sums;                        // scratch of BatchNormSums elements
  Scalar* coefficients;                // scratch of BatchNormCoefficients elements
};

int64_t BatchNormSums(const BatchNormShape& shape, const Parallel& parallel);
int64_t BatchNormCoefficients(const BatchNormShape& shape);

// Arrays may overlap only where stated. The same thread count gives the same bits; another one
// differs by rounding.
template <typename T>
void BatchNormForwardCpu(const BatchNormForwardArgs<T>& args, const Parallel& parallel);
template <typename T>
void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>& args, const Parallel& parallel);

// On a stream: arrays are in device memory; returns before they are written, empty or with an error
// message. Rows may be of type Half and BFloat16 too. The same bits in every run on the same
// GPU.
int64_t BatchNormSumsGpu(const BatchNormShape& shape);
template <typename T>
[[nodiscard]] std::string BatchNormForwardGpu(const BatchNormForwardArgs<T>& args,
                                              CudaStream stream);
template <typename T>
[[nodiscard]] std::string BatchNormBackwardGpu(const BatchNormBackwardArgs<T>& args,
                                               CudaStream stream);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_BATCH_NORM_H_

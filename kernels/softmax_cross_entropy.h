// The loss of a linear classifier in one go: product, softmax and cross-entropy, forward and
// backward. Core: no TensorFlow, no threads of its own.
//
//   z = F·W + b                                     the logits, of which only a block of rows
//   exists loss[r] = log Σ_j exp(z[r,j]) − z[r, label_r]   = −log softmax(z[r])[label_r]
//   dlogits[r,j] = softmax(z[r])[j] − [j = label_r] the gradient of loss[r] by z[r,j]
//
// n rows, `units` features, `vocab` classes. The largest logit of a row is subtracted before exp,
// and the label's share is kept apart from the others': however confident or wrong a prediction is,
// loss and gradient keep the relative precision of their type. A class of logit −inf has
// probability 0 (loss inf if it is the label); a NaN or +inf, or −inf throughout, makes its row NaN
// and no other.
//
// The OpKernels, which check every argument, are in kernels/softmax_cross_entropy_op.cc.
//
// A Gpu function is its Cpu twin on a stream: arrays are in device memory, and it returns before
// they are written, empty or with an error message. Labels, which have not been checked there, may
// be out of range: such a label reads nothing and makes its row of loss and dlogits NaN.
#ifndef LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_H_
#define LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_H_

#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"

namespace late_phase {

// REQUIRES: vocab >= 1. n and units may be 0; the pointers of an empty array may be null.
struct SoftmaxCrossEntropyShape {
  int64_t n, units, vocab;
};

template <typename Scalar>
struct SoftmaxCrossEntropyForwardArgs {
  SoftmaxCrossEntropyShape shape;
  const Scalar* features;  // F [n,units]
  const Scalar* kernel;    // W [units,vocab]
  const Scalar* bias;      // b [vocab]
  const int32_t* labels;   // [n], every value in [0, vocab)
  Scalar* loss;            // [n] out
  Scalar* dlogits;         // [n,vocab] out, for the backward pass
  Scalar* workspace;       // scratch of SoftmaxCrossEntropyForwardWorkspace elements
};

template <typename Scalar>
struct SoftmaxCrossEntropyBackwardArgs {
  SoftmaxCrossEntropyShape shape;
  const Scalar* features;  // F [n,units]
  const Scalar* kernel;    // W [units,vocab]
  const Scalar* dlogits;   // [n,vocab] as the forward pass wrote it
  const Scalar* dloss;     // [n]
  Scalar* dfeatures;       // [n,units] out
  Scalar* dkernel;         // [units,vocab] out
  Scalar* dbias;           // [vocab] out
  Scalar* workspace;       // scratch of SoftmaxCrossEntropyBackwardWorkspace elements
};

// Elements of scratch.
int64_t SoftmaxCrossEntropyForwardWorkspace(const SoftmaxCrossEntropyShape& shape,
                                            const Parallel& parallel);
int64_t SoftmaxCrossEntropyBackwardWorkspace(const SoftmaxCrossEntropyShape& shape,
                                             const Parallel& parallel);

// Outputs may not overlap inputs or each other. The same thread count gives the same bits; another
// one differs by rounding.
template <typename Scalar>
void SoftmaxCrossEntropyForwardCpu(const SoftmaxCrossEntropyForwardArgs<Scalar>& args,
                                   const Parallel& parallel);
template <typename Scalar>
void SoftmaxCrossEntropyBackwardCpu(const SoftmaxCrossEntropyBackwardArgs<Scalar>& args,
                                    const Parallel& parallel);

int64_t SoftmaxCrossEntropyForwardWorkspaceGpu(const SoftmaxCrossEntropyShape& shape);
int64_t SoftmaxCrossEntropyBackwardWorkspaceGpu(const SoftmaxCrossEntropyShape& shape);

// The same bits in every run on the same GPU.
template <typename Scalar>
[[nodiscard]] std::string SoftmaxCrossEntropyForwardGpu(
    const SoftmaxCrossEntropyForwardArgs<Scalar>& args, CudaStream stream,
    const CudaMatmul& matmul);
template <typename Scalar>
[[nodiscard]] std::string SoftmaxCrossEntropyBackwardGpu(
    const SoftmaxCrossEntropyBackwardArgs<Scalar>& args, CudaStream stream,
    const CudaMatmul& matmul);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_H_

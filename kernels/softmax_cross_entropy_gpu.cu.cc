// Forward: one product into dlogits, then one kernel that computes loss and gradient from the
// logits, in place. Backward: one kernel that scales the gradient and sums its columns, then two
// products.
//
// Figures are for an A100 (108 multiprocessors, 1555 GB/s, 19.5 TFLOP/s in float, 3 to 5 µs a
// launch), floats and the sizes of enwik8: 12,800 rows, 500 units, 205 classes. Estimated, not
// measured.
//   forward    F·W, 2.6 GFLOP: 135 µs; the kernel: 14 µs
//   backward   dz and dbias: 14 µs and a launch; two products: 270 µs
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/softmax_cross_entropy.h"

namespace late_phase {
namespace {

constexpr int kThreads = 256;
// Up to this many classes, a warp has a row: at most 32 logits per thread, and no barrier in the
// block.
constexpr int64_t kWarpVocab = 1024;

// Of the threads that share a row.
template <int kRowThreads, typename S, class Operation>
__device__ __forceinline__ S ReduceRow(S value, Operation operation) {
  if constexpr (kRowThreads == kWarp) {
    return ReduceWarp(value, operation);
  } else {
    return ReduceBlock<kRowThreads>(value, operation);
  }
}

// dlogits arrives as F·W and becomes the gradient. Three passes along the row, in each of which a
// thread has the same columns: the largest logit; the sum of the exponentials; the gradient. Logits
// are read again, and exponentials taken again, rather than kept: a row of 205 is 820 bytes, and
// those of the 48 warps of a multiprocessor fit into its level-1 cache, so that 10.5 MB are read
// and 10.5 MB written: 14 µs from memory, less if the L2 cache (40 MB) still has the product. With
// 50,000 classes the L2 cache serves the second and the third pass.
//
// Two exponentials per logit, 5.2 million: about 3 µs. 40 registers in float leave room for 48
// warps per multiprocessor: two and a half rounds of 12,800 rows.
template <int kRowThreads, typename S>
__global__ void __launch_bounds__(kThreads) SoftmaxKernel(SoftmaxCrossEntropyForwardArgs<S> args) {
  constexpr int kBlockRows = kThreads / kRowThreads;
  constexpr S kInfinity = std::numeric_limits<S>::infinity();
  const int64_t vocab = args.shape.vocab;
  const int first = threadIdx.x % kRowThreads;
  for (int64_t r = int64_t{blockIdx.x} * kBlockRows + threadIdx.x / kRowThreads; r < args.shape.n;
       r += int64_t{gridDim.x} * kBlockRows) {
    S* row = args.dlogits + r * vocab;
    const int64_t label = args.labels[r];
    S of_label = std::numeric_limits<S>::quiet_NaN();
    if (label >= 0 && label < vocab) of_label = row[label] + args.bias[label];

    S largest = -kInfinity;
#pragma unroll 4
    for (int64_t j = first; j < vocab; j += kRowThreads) {
      largest = fmax(largest, row[j] + __ldg(args.bias + j));
    }
    largest = ReduceRow<kRowThreads>(largest, Largest());

    // The label is left out, and added separately. NaN, which the largest logit ignores,
    // comes in here, and an infinite logit has no distance to itself.
    S others = 0;
    for (int64_t j = first; j < vocab; j += kRowThreads) {
      if (j != label) others += exp(row[j] + __ldg(args.bias + j) - largest);
    }
    others = ReduceRow<kRowThreads>(others, Sum());
    __syncwarp();  // all have read the label's logit, and one of them is about to overwrite it

    // A confident prediction has others ≪ exp(label_logit) = 1: neither its loss nor its gradient
    // may be computed from the rounded total.
    const S label_logit = of_label - largest, share = exp(label_logit);
    const S total = others + share, scale = 1 / total;
    if (first == 0) args.loss[r] = share == 1 ? log1p(others) : log(total) - label_logit;
    for (int64_t j = first; j < vocab; j += kRowThreads) {
      row[j] = j == label ? -others / total  // p − 1
                          : exp(row[j] + __ldg(args.bias + j) - largest) * scale;
    }
  }
}

template <int kRowThreads, typename S>
[[nodiscard]] std::string LaunchSoftmax(const SoftmaxCrossEntropyForwardArgs<S>& args,
                                        CudaStream stream) {
  constexpr int kBlockRows = kThreads / kRowThreads;
  const auto kernel = SoftmaxKernel<kRowThreads, S>;
  const int64_t blocks = (args.shape.n + kBlockRows - 1) / kBlockRows;
  const unsigned grid = GridForBlocks(blocks, kernel, kThreads, 0);
  return LaunchKernel({"SoftmaxCrossEntropy", grid, kThreads, 0, stream}, kernel, args);
}

// dz = dloss ∘ dlogits, whose column sums are dbias. Reads 10.5 MB, writes as much: 14 µs; 448
// blocks of 8 warps. __ldg, because the compiler cannot know that what is written is not read
// again.
template <typename S>
struct ScaledGradient {
  int64_t vocab;
  const S *dloss, *dlogits;
  S* dz;

  __device__ __forceinline__ S operator()(int64_t r, int64_t j) const {
    const int64_t at = r * vocab + j;
    return dz[at] = __ldg(dloss + r) * __ldg(dlogits + at);
  }
};

}  // namespace

int64_t SoftmaxCrossEntropyForwardWorkspaceGpu(const SoftmaxCrossEntropyShape&) { return 0; }

int64_t SoftmaxCrossEntropyBackwardWorkspaceGpu(const SoftmaxCrossEntropyShape& s) {
  return s.n * s.vocab + ColumnSumsWorkspace(s.n, s.vocab);
}

template <typename Scalar>
std::string SoftmaxCrossEntropyForwardGpu(const SoftmaxCrossEntropyForwardArgs<Scalar>& args,
                                          CudaStream stream, const CudaMatmul& matmul) {
  const auto [n, units, vocab] = args.shape;
  const std::string error = matmul.Run({n, units, vocab}, args.features, args.kernel, args.dlogits);
  if (!error.empty()) return error;
  return vocab <= kWarpVocab ? LaunchSoftmax<kWarp>(args, stream)
                             : LaunchSoftmax<kThreads>(args, stream);
}

template <typename Scalar>
std::string SoftmaxCrossEntropyBackwardGpu(const SoftmaxCrossEntropyBackwardArgs<Scalar>& args,
                                           CudaStream stream, const CudaMatmul& matmul) {
  const auto [n, units, vocab] = args.shape;
  Scalar* dz = args.workspace;  // [n,vocab]
  std::string error = ColumnSums("SoftmaxCrossEntropyBiasGradient", n, vocab,
                                 ScaledGradient<Scalar>{vocab, args.dloss, args.dlogits, dz},
                                 args.dbias, args.workspace + n * vocab, stream);
  if (!error.empty()) return error;
  error =
      matmul.Run({n, vocab, units, false, /*transpose_b=*/true}, dz, args.kernel, args.dfeatures);
  if (!error.empty()) return error;
  return matmul.Run({units, n, vocab, /*transpose_a=*/true}, args.features, dz, args.dkernel);
}

#define LATE_PHASE_INSTANTIATE(T)                                                                \
  template std::string SoftmaxCrossEntropyForwardGpu(const SoftmaxCrossEntropyForwardArgs<T>&,   \
                                                     CudaStream, const CudaMatmul&);             \
  template std::string SoftmaxCrossEntropyBackwardGpu(const SoftmaxCrossEntropyBackwardArgs<T>&, \
                                                      CudaStream, const CudaMatmul&)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

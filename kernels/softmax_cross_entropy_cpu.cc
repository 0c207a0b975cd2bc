// How the work is divided:
//   1. pack W (backward: Wᵀ) into panels: one task per panel;
//   2. the rows: a few tasks per thread, each of which goes through its slice block by block.
//   A block's features, logits and the packed weights share a second-level cache;
//   3. backward only, dkernel: one task per slice of the units, over all rows. Slices of the
//   columns would be uneven: 205 symbols are seven panels.
// The divisions follow the thread count, and the order of a few sums follows them, so another count
// changes only the rounding.
//
// Logits live in blocks whose rows are padded to whole vectors, with classes of probability 0:
// nothing is left over at the end of a row, and the products have an even width; with an odd one,
// those generated for AVX2 are markedly slower.
//
// The loop over the logits is compiled once per instruction set: foreach_target.h includes this
// file again for each.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/matmul.h"
#include "kernels/softmax_cross_entropy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax_cross_entropy_cpu.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

#ifndef LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_BLOCK_
#define LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_BLOCK_
namespace late_phase {

// Rows of a block are multiples of this: of every vector, and of a cache line.
constexpr int64_t kPadding = 16;

template <typename T>
struct SoftmaxBlock {
  int64_t rows, vocab;
  int64_t width;          // vocab, rounded up to a multiple of kPadding
  T* logits;              // [rows,width] F·W; overwritten
  const T* bias;          // [width], −inf beyond vocab
  const int32_t* labels;  // [rows]
  T* loss;                // [rows] out
  T* dlogits;             // [rows,vocab] out
};

}  // namespace late_phase
#endif  // LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_BLOCK_

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
void Softmax(const SoftmaxBlock<T>& a) {
  const hn::CappedTag<T, kPadding> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t row = 0; row < a.rows; ++row) {
    T* z = a.logits + row * a.width;
    const int64_t label = a.labels[row];

    auto largest = hn::Set(d, -std::numeric_limits<T>::infinity());
    for (int64_t j = 0; j < a.width; j += lanes) {
      const auto logit = hn::Add(hn::LoadU(d, z + j), hn::LoadU(d, a.bias + j));
      hn::StoreU(logit, d, z + j);
      largest = hn::Max(largest, logit);
    }
    largest = hn::MaxOfLanes(d, largest);

    // The label is left out, and added separately.
    const T label_logit = z[label] - hn::GetLane(largest), of_label = std::exp(label_logit);
    z[label] = -std::numeric_limits<T>::infinity();
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < a.width; j += lanes) {
      const auto x = hn::Sub(hn::LoadU(d, z + j), largest);
      // Highway's Exp turns NaN into a number.
      const auto e = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
      hn::StoreU(e, d, z + j);
      sum = hn::Add(sum, e);
    }
    const T others = hn::GetLane(hn::SumOfLanes(d, sum));

    // A confident prediction has others ≪ of_label = 1: neither its loss nor its gradient may be
    // computed from the rounded total.
    const T total = others + of_label, scale = 1 / total;
    a.loss[row] = of_label == 1 ? std::log1p(others) : std::log(total) - label_logit;
    T* dlogits = a.dlogits + row * a.vocab;
    int64_t j = 0;
    for (; j + lanes <= a.vocab; j += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, z + j), hn::Set(d, scale)), d, dlogits + j);
    }
    for (; j < a.vocab; ++j) dlogits[j] = z[j] * scale;
    dlogits[label] = -others / total;  // p − 1
  }
}

// One name per type, so that LATE_PHASE_FOR_TARGET can take an address.
void SoftmaxFloat(const SoftmaxBlock<float>& block) { Softmax(block); }
void SoftmaxDouble(const SoftmaxBlock<double>& block) { Softmax(block); }

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {
namespace {

// With 500 units, 205 symbols and floats: features 128 kB, logits 53 kB, packed weights 416 kB.
constexpr int64_t kBlockRows = 64;
// More than one, so that a delayed thread does not delay the others.
constexpr int64_t kTasksPerThread = 4;
// dkernel: the widest block of columns, so that operands and accumulators share a second-level
// cache whatever the vocabulary.
constexpr int64_t kBlockColumns = 16 * kPanelWidth;
// With fewer units than this per thread, packing the gradient again costs more than another thread
// gains.
constexpr int64_t kMinSliceUnits = 32;

void RunSoftmax(const SoftmaxBlock<float>& block) { LATE_PHASE_FOR_TARGET(SoftmaxFloat)(block); }
void RunSoftmax(const SoftmaxBlock<double>& block) { LATE_PHASE_FOR_TARGET(SoftmaxDouble)(block); }

int64_t Padded(int64_t columns) { return (columns + kPadding - 1) / kPadding * kPadding; }

int64_t RowTasks(const SoftmaxCrossEntropyShape& s, const Parallel& parallel) {
  return std::clamp<int64_t>(s.n / kBlockRows, 1, kTasksPerThread * std::max(1, parallel.threads));
}

int64_t UnitTasks(const SoftmaxCrossEntropyShape& s, const Parallel& parallel) {
  return std::clamp<int64_t>(s.units / kMinSliceUnits, 1, std::max(1, parallel.threads));
}

// Calls block(row, rows) for blocks that cover the slice.
template <typename Block>
void ForBlocksOfRows(const Slice& slice, const Block& block) {
  for (int64_t row = slice.begin; row < slice.end; row += kBlockRows) {
    block(row, std::min(kBlockRows, slice.end - row));
  }
}

template <typename Scalar>
class Forward {
 public:
  Forward(const SoftmaxCrossEntropyForwardArgs<Scalar>& args, const Parallel& parallel)
      : args_(args),
        shape_(args.shape),
        width_(Padded(args.shape.vocab)),
        tasks_(RowTasks(args.shape, parallel)),
        parallel_(parallel) {
    logits_ = args.workspace;
    bias_ = logits_ + tasks_ * kBlockRows * width_;
    packed_kernel_ = bias_ + width_;
  }

  void Run() {
    std::fill(std::copy_n(args_.bias, shape_.vocab, bias_), bias_ + width_,
              -std::numeric_limits<Scalar>::infinity());
    parallel_.run(PanelCount(width_), [this](int64_t panel) { Pack(panel); });
    parallel_.run(tasks_, [this](int64_t task) { Rows(task); });
  }

 private:
  void Pack(int64_t panel) {
    const int64_t units = shape_.units, vocab = shape_.vocab;
    const int64_t width = PanelColumns(width_, panel), given = PanelColumns(vocab, panel);
    Scalar* packed = packed_kernel_ + PanelOffset(units, panel);
    if (given == width) return PackPanel(args_.kernel, vocab, units, vocab, panel, packed);
    for (int64_t k = 0; k < units; ++k, packed += width) {
      const Scalar* row = args_.kernel + k * vocab + panel * kPanelWidth;
      std::fill(std::copy_n(row, given, packed), packed + width, Scalar(0));
    }
  }

  void Rows(int64_t task) {
    const int64_t units = shape_.units, vocab = shape_.vocab;
    Scalar* logits = logits_ + task * kBlockRows * width_;
    ForBlocksOfRows(Slice(shape_.n, tasks_, task), [&](int64_t row, int64_t rows) {
      const Matmul<Scalar> product(
          {rows, units, width_, units, width_, /*transpose_a=*/false, /*add=*/false});
      product.Run(args_.features + row * units, packed_kernel_, logits);
      RunSoftmax({rows, vocab, width_, logits, bias_, args_.labels + row, args_.loss + row,
                  args_.dlogits + row * vocab});
    });
  }

  const SoftmaxCrossEntropyForwardArgs<Scalar>& args_;
  const SoftmaxCrossEntropyShape& shape_;
  const int64_t width_;  // vocab, padded
  const int64_t tasks_;
  const Parallel& parallel_;
  Scalar* logits_;         // [tasks][kBlockRows,width]
  Scalar* bias_;           // b [width]
  Scalar* packed_kernel_;  // W [units,width]
};

template <typename Scalar>
class Backward {
 public:
  Backward(const SoftmaxCrossEntropyBackwardArgs<Scalar>& args, const Parallel& parallel)
      : args_(args),
        shape_(args.shape),
        width_(Padded(args.shape.vocab)),
        row_tasks_(RowTasks(args.shape, parallel)),
        unit_tasks_(UnitTasks(args.shape, parallel)),
        parallel_(parallel) {
    const int64_t columns = std::min(width_, kBlockColumns);
    dz_ = args.workspace;
    dbias_ = dz_ + row_tasks_ * kBlockRows * width_;
    packed_dz_ = dbias_ + row_tasks_ * width_;
    dkernel_ = packed_dz_ + unit_tasks_ * kBlockRows * columns;
    packed_kernel_ = dkernel_ + shape_.units * columns;
  }

  void Run() {
    const int64_t vocab = shape_.vocab;
    parallel_.run(PanelCount(shape_.units), [this](int64_t panel) { Pack(panel); });
    parallel_.run(row_tasks_, [this](int64_t task) { Rows(task); });
    std::copy_n(dbias_, vocab, args_.dbias);
    for (int64_t task = 1; task < row_tasks_; ++task) {
      for (int64_t j = 0; j < vocab; ++j) args_.dbias[j] += dbias_[task * width_ + j];
    }
    parallel_.run(unit_tasks_, [this](int64_t task) { WeightGradient(task); });
  }

 private:
  void Pack(int64_t panel) {
    const int64_t units = shape_.units, vocab = shape_.vocab;
    const int64_t columns = PanelColumns(units, panel);
    Scalar* packed = packed_kernel_ + PanelOffset(width_, panel);
    PackPanelOfTranspose(args_.kernel, vocab, vocab, units, panel, packed);
    std::fill(packed + vocab * columns, packed + width_ * columns, Scalar(0));
  }

  // dz = dloss ∘ dlogits, dF = dz·Wᵀ, db = Σ_r dz[r]
  void Rows(int64_t task) {
    const int64_t units = shape_.units, vocab = shape_.vocab;
    Scalar* dz = dz_ + task * kBlockRows * width_;
    Scalar* dbias = dbias_ + task * width_;
    std::fill_n(dbias, width_, Scalar(0));
    ForBlocksOfRows(Slice(shape_.n, row_tasks_, task), [&](int64_t row, int64_t rows) {
      // A single panel: row after row.
      PackAndAddGradientRows<Scalar>({rows, args_.dlogits + row * vocab, vocab, vocab, width_, dz,
                                      dbias, width_, nullptr, args_.dloss + row, width_ - vocab});
      const Matmul<Scalar> product(
          {rows, width_, units, width_, units, /*transpose_a=*/false, /*add=*/false});
      product.Run(dz, packed_kernel_, args_.dfeatures + row * units);
    });
  }

  // dW = Fᵀ·dz for a slice of the units.
  void WeightGradient(int64_t task) {
    const int64_t units = shape_.units, vocab = shape_.vocab;
    const int64_t widest = std::min(width_, kBlockColumns);
    const Slice slice(units, unit_tasks_, task);
    Scalar* packed = packed_dz_ + task * kBlockRows * widest;
    Scalar* dkernel = dkernel_ + slice.begin * widest;
    for (int64_t begin = 0; begin < vocab; begin += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, vocab - begin), width = Padded(columns);
      std::fill_n(dkernel, slice.size() * width, Scalar(0));
      ForBlocksOfRows(Slice(shape_.n, 1, 0), [&](int64_t row, int64_t rows) {
        PackAndAddGradientRows<Scalar>({rows, args_.dlogits + row * vocab + begin, vocab, columns,
                                        kPanelWidth, packed, nullptr, 0, nullptr, args_.dloss + row,
                                        width - columns});
        const Matmul<Scalar> product(
            {slice.size(), rows, width, units, width, /*transpose_a=*/true, /*add=*/true});
        product.Run(args_.features + row * units + slice.begin, packed, dkernel);
      });
      for (int64_t i = 0; i < slice.size(); ++i) {
        std::copy_n(dkernel + i * width, columns,
                    args_.dkernel + (slice.begin + i) * vocab + begin);
      }
    }
  }

  const SoftmaxCrossEntropyBackwardArgs<Scalar>& args_;
  const SoftmaxCrossEntropyShape& shape_;
  const int64_t width_;  // vocab, padded
  const int64_t row_tasks_, unit_tasks_;
  const Parallel& parallel_;
  Scalar* dz_;             // [row tasks][kBlockRows,width]
  Scalar* dbias_;          // [row tasks][width], the tasks' shares
  Scalar* packed_dz_;      // [unit tasks][kBlockRows,a block of columns]
  Scalar* dkernel_;        // [units,a block of columns]
  Scalar* packed_kernel_;  // Wᵀ [width,units]
};

}  // namespace

int64_t SoftmaxCrossEntropyForwardWorkspace(const SoftmaxCrossEntropyShape& s,
                                            const Parallel& parallel) {
  return (RowTasks(s, parallel) * kBlockRows + 1 + s.units) * Padded(s.vocab);
}

int64_t SoftmaxCrossEntropyBackwardWorkspace(const SoftmaxCrossEntropyShape& s,
                                             const Parallel& parallel) {
  const int64_t width = Padded(s.vocab);
  return RowTasks(s, parallel) * (kBlockRows + 1) * width +
         (UnitTasks(s, parallel) * kBlockRows + s.units) * std::min(width, kBlockColumns) +
         width * s.units;
}

template <typename Scalar>
void SoftmaxCrossEntropyForwardCpu(const SoftmaxCrossEntropyForwardArgs<Scalar>& args,
                                   const Parallel& parallel) {
  Forward<Scalar>(args, parallel).Run();
}

template <typename Scalar>
void SoftmaxCrossEntropyBackwardCpu(const SoftmaxCrossEntropyBackwardArgs<Scalar>& args,
                                    const Parallel& parallel) {
  Backward<Scalar>(args, parallel).Run();
}

#define LATE_PHASE_INSTANTIATE(T)                                                         \
  template void SoftmaxCrossEntropyForwardCpu(const SoftmaxCrossEntropyForwardArgs<T>&,   \
                                              const Parallel&);                           \
  template void SoftmaxCrossEntropyBackwardCpu(const SoftmaxCrossEntropyBackwardArgs<T>&, \
                                               const Parallel&)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase
#endif  // HWY_ONCE

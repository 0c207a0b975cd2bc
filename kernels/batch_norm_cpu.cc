// How the work is divided: the rows go to a few tasks per thread. Each direction passes over its
// arrays twice, once for the sums, with the tasks' shares left in `sums`, and once for the result.
//
// A few channels do not fill a vector, so several narrow rows are treated as one wide row, which
// holds every channel once per narrow row: see Partition. The loops do not know about this.
//
// A share is made of blocks of kBlockRows rows. Within a block sums are of type T and, for the
// statistics, of differences to the block's first row: since that row is one of the block, the sum
// of squares Σ(x − x₀)² is at most kBlockRows times Σ(x − μ)², so little is lost when the latter is
// derived from it, whatever the mean and outliers. Blocks, then the rows of a wide row, then
// tasks, are merged in double.
//
// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "kernels/batch_norm.h"
#include "kernels/cpu/cpu_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/batch_norm_cpu.cc"
// foreach_target.h comes first
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#ifndef LATE_PHASE_KERNELS_BATCH_NORM_ROWS_
#define LATE_PHASE_KERNELS_BATCH_NORM_ROWS_
namespace late_phase {

// Channels whose sums stay in the first-level cache.
constexpr int64_t kStripe = 512;

// What the loops see: rows of x and dy, and what is the same for all rows of a channel.
template <typename T>
struct BatchNormRows {
  int64_t rows, C;
  bool relu, frozen;   // frozen: dx = dz · factor
  const T* x;          // [rows,C]
  const T* mean;       // [C] BatchNormSaved::mean
  const T* factor;     // [C] z = (x − mean) · factor + constant
  const T* constant;   // [C]
  T* y;                // [rows,C] forward, out
  const T* dy;         // [rows,C] backward
  const T* dconstant;  // [C] dx = (dz − dconstant − (x − mean) · dfactor) · factor
  const T* dfactor;    // [C]
  T* dx;               // [rows,C] backward, out
  // Out: two numbers per channel. Forward, of the mean and of Σ(x − μ)² of these rows; backward, of
  // Σ dz and Σ dz · (x − mean).
  double* first;   // [C]
  double* second;  // [C]
};

// Chan, Golub and LeVeque: of A rows with mean m and B rows with mean m + δ the mean is
// m + δ·B/(A + B), and δ²·A·B/(A + B) is added to the sums of squares. With A = 0, and zeros for
// its mean and squares, the result is exactly that of the B rows.
struct MergeMoments {
  MergeMoments(int64_t before, int64_t count)
      : share(static_cast<double>(count) / static_cast<double>(before + count)),
        weight(static_cast<double>(before) * share) {}
  HWY_INLINE void operator()(double of_mean, double of_squared, double* mean,
                             double* squared) const {
    const double delta = of_mean - *mean;
    *mean += delta * share;
    *squared += of_squared + delta * weight * delta;
  }
  double share, weight;
};

}  // namespace late_phase
#endif  // LATE_PHASE_KERNELS_BATCH_NORM_ROWS_

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows whose sums are of type T.
constexpr int64_t kBlockRows = 16;

// Calls body(d, j) for vectors of channels that cover [j, end): whole ones, then one each of half,
// a quarter, … for the rest.
template <class D, class Body>
HWY_INLINE void ForChannels(D d, int64_t j, int64_t end, const Body& body) {
  const int64_t lanes = hn::Lanes(d);
  for (; j + lanes <= end; j += lanes) body(d, j);
  if constexpr (hn::MaxLanes(d) > 1) {
    if (j < end) ForChannels(hn::Half<D>(), j, end, body);
  }
}

// Two sums per channel, by blocks of rows and stripes of channels. add(d, block, row, j, sum,
// other) adds what `row` has at channel j to the vectors sum and other, where `block` is the first
// row of its block; merge(block, rows, begin, width, sums, others) takes over a block's sums of the
// channels from `begin`.
//
// Memory is read row by row: several rows side by side would save loads and stores of the sums,
// but lose more because the processor can prefetch less.
template <typename T, class Add, class Merge>
HWY_INLINE void SumBlocks(const BatchNormRows<T>& a, const Add& add, const Merge& merge) {
  std::fill_n(a.first, a.C, 0.0);
  std::fill_n(a.second, a.C, 0.0);
  for (int64_t block = 0; block < a.rows; block += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, a.rows - block);
    for (int64_t begin = 0; begin < a.C; begin += kStripe) {
      const int64_t width = std::min(kStripe, a.C - begin);
      HWY_ALIGN T sums[kStripe], others[kStripe];
      std::fill_n(sums, width, T(0));
      std::fill_n(others, width, T(0));
      for (int64_t row = block; row < block + rows; ++row) {
        ForChannels(hn::ScalableTag<T>(), 0, width, [&](auto d, int64_t j) HWY_ATTR {
          auto sum = hn::LoadU(d, sums + j), other = hn::LoadU(d, others + j);
          add(d, block, row, begin + j, sum, other);
          hn::StoreU(sum, d, sums + j);
          hn::StoreU(other, d, others + j);
        });
      }
      merge(block, rows, begin, width, sums, others);
    }
  }
}

template <typename T>
void Statistics(const BatchNormRows<T>& a) {
  auto add = [&](auto d, int64_t block, int64_t row, int64_t j, auto& sum, auto& squares) HWY_ATTR {
    const auto shift = hn::LoadU(d, a.x + block * a.C + j);
    const auto difference = hn::Sub(hn::LoadU(d, a.x + row * a.C + j), shift);
    sum = hn::Add(sum, difference);
    squares = hn::MulAdd(difference, difference, squares);
  };
  auto merge = [&](int64_t block, int64_t rows, int64_t begin, int64_t width, const T* sums,
                   const T* squares) HWY_ATTR {
    const MergeMoments merged(block, rows);
    const double share = 1 / static_cast<double>(rows);
    const T* shift = a.x + block * a.C + begin;
    double *mean = a.first + begin, *squared = a.second + begin;
    for (int64_t j = 0; j < width; ++j) {
      const double sum = sums[j], average = sum * share;
      merged(shift[j] + average, squares[j] - sum * average, mean + j, squared + j);
    }
  };
  SumBlocks(a, add, merge);
}

// z > 0 lets dy through, and so does NaN, so that a diverged channel shows.
template <bool kRelu, class D, class V>
HWY_INLINE V Unactivated(D d, V difference, V factor, V constant, V dy) {
  if constexpr (!kRelu) return dy;
  const V z = hn::MulAdd(difference, factor, constant);
  return hn::IfThenZeroElse(hn::Le(z, hn::Zero(d)), dy);
}

template <bool kRelu, typename T>
void GradientSums(const BatchNormRows<T>& a) {
  auto add = [&](auto d, int64_t, int64_t row, int64_t j, auto& sum, auto& products) HWY_ATTR {
    const int64_t i = row * a.C + j;
    const auto difference = hn::Sub(hn::LoadU(d, a.x + i), hn::LoadU(d, a.mean + j));
    const auto dz = Unactivated<kRelu>(d, difference, hn::LoadU(d, a.factor + j),
                                       hn::LoadU(d, a.constant + j), hn::LoadU(d, a.dy + i));
    sum = hn::Add(sum, dz);
    products = hn::MulAdd(dz, difference, products);
  };
  auto merge = [&](int64_t, int64_t, int64_t begin, int64_t width, const T* sums, const T* products)
                   HWY_ATTR {
                     double *first = a.first + begin, *second = a.second + begin;
                     for (int64_t j = 0; j < width; ++j) {
                       first[j] += sums[j];
                       second[j] += products[j];
                     }
                   };
  SumBlocks(a, add, merge);
}

template <bool kRelu, typename T>
void Normalize(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  for (int64_t row = 0; row < a.rows; ++row) {
    const T* x = a.x + row * a.C;
    T* y = a.y + row * a.C;
    ForChannels(d, 0, a.C, [&](auto part, int64_t j) HWY_ATTR {
      const auto difference = hn::Sub(hn::LoadU(part, x + j), hn::LoadU(part, a.mean + j));
      auto z =
          hn::MulAdd(difference, hn::LoadU(part, a.factor + j), hn::LoadU(part, a.constant + j));
      // Max would lose NaN.
      if constexpr (kRelu) z = hn::IfThenZeroElse(hn::Le(z, hn::Zero(part)), z);
      hn::StoreU(z, part, y + j);
    });
  }
}

template <bool kRelu, bool kFrozen, typename T>
void InputGradient(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  for (int64_t row = 0; row < a.rows; ++row) {
    const T *x = a.x + row * a.C, *dy = a.dy + row * a.C;
    T* dx = a.dx + row * a.C;
    ForChannels(d, 0, a.C, [&](auto part, int64_t j) HWY_ATTR {
      const auto difference = hn::Sub(hn::LoadU(part, x + j), hn::LoadU(part, a.mean + j));
      const auto factor = hn::LoadU(part, a.factor + j);
      const auto dz = Unactivated<kRelu>(part, difference, factor, hn::LoadU(part, a.constant + j),
                                         hn::LoadU(part, dy + j));
      if constexpr (kFrozen) {
        hn::StoreU(hn::Mul(dz, factor), part, dx + j);
      } else {
        const auto centred = hn::Sub(dz, hn::LoadU(part, a.dconstant + j));
        const auto rest = hn::NegMulAdd(difference, hn::LoadU(part, a.dfactor + j), centred);
        hn::StoreU(hn::Mul(rest, factor), part, dx + j);
      }
    });
  }
}

template <typename T>
void NormalizeRows(const BatchNormRows<T>& a) {
  a.relu ? Normalize<true>(a) : Normalize<false>(a);
}
template <typename T>
void GradientSumsOfRows(const BatchNormRows<T>& a) {
  a.relu ? GradientSums<true>(a) : GradientSums<false>(a);
}
template <typename T>
void InputGradientOfRows(const BatchNormRows<T>& a) {
  if (a.frozen) {
    a.relu ? InputGradient<true, true>(a) : InputGradient<false, true>(a);
  } else {
    a.relu ? InputGradient<true, false>(a) : InputGradient<false, false>(a);
  }
}

// One name per type, so that LATE_PHASE_FOR_TARGET can take an address.
void StatisticsFloat(const BatchNormRows<float>& a) { Statistics(a); }
void StatisticsDouble(const BatchNormRows<double>& a) { Statistics(a); }
void NormalizeFloat(const BatchNormRows<float>& a) { NormalizeRows(a); }
void NormalizeDouble(const BatchNormRows<double>& a) { NormalizeRows(a); }
void GradientSumsFloat(const BatchNormRows<float>& a) { GradientSumsOfRows(a); }
void GradientSumsDouble(const BatchNormRows<double>& a) { GradientSumsOfRows(a); }
void InputGradientFloat(const BatchNormRows<float>& a) { InputGradientOfRows(a); }
void InputGradientDouble(const BatchNormRows<double>& a) { InputGradientOfRows(a); }

}  // namespace HWY_NAMESPACE
}  // namespace late_phase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace late_phase {
namespace {

// More than one, so that a delayed thread does not delay the others.
constexpr int64_t kTasksPerThread = 4;

template <typename T>
using Loop = void (*)(const BatchNormRows<T>&);

template <typename T>
struct Loops {
  Loop<T> statistics, normalize, gradient_sums, input_gradient;
};

Loops<float> ChooseLoops(float) {
  return {LATE_PHASE_FOR_TARGET(StatisticsFloat), LATE_PHASE_FOR_TARGET(NormalizeFloat),
          LATE_PHASE_FOR_TARGET(GradientSumsFloat), LATE_PHASE_FOR_TARGET(InputGradientFloat)};
}
Loops<double> ChooseLoops(double) {
  return {LATE_PHASE_FOR_TARGET(StatisticsDouble), LATE_PHASE_FOR_TARGET(NormalizeDouble),
          LATE_PHASE_FOR_TARGET(GradientSumsDouble), LATE_PHASE_FOR_TARGET(InputGradientDouble)};
}

// Width of a row that keeps the loops busy, and a multiple of every vector width.
constexpr int64_t kLeastWidth = 64, kMostLanes = 16;

// How many rows make a wide one: enough to fill whole vectors and reach the minimum width.
int64_t Fold(const BatchNormShape& s) {
  if (s.C == 0) return 1;
  int64_t fold = kMostLanes / std::gcd(kMostLanes, s.C);
  while (fold * s.C < kLeastWidth) fold *= 2;
  return fold * s.C <= kStripe && fold <= s.n ? fold : 1;
}

// A slice of the rows that the loops see as `rows` rows of `channels` channels.
struct Part {
  int64_t offset;          // in elements
  int64_t rows, channels;  // channels is a multiple of C
  int64_t sums;            // where its two sums per channel are
};

// The division of [n,C] into parts. Each task has a part of at least one wide row of `width` = fold
// · C channels; rows that do not make up a wide one are one more part, of C channels.
struct Partition {
  Partition(const BatchNormShape& s, const Parallel& parallel)
      : C(s.C), width(Fold(s) * C), wide_rows(s.n / Fold(s)), rest(s.n % Fold(s)) {
    const int64_t most = std::min(wide_rows, s.n * C / kBlockElements);
    tasks = std::clamp<int64_t>(most, 1, kTasksPerThread * std::max(1, parallel.threads));
  }

  int64_t parts() const { return tasks + (rest > 0 ? 1 : 0); }
  Part operator[](int64_t i) const {
    if (i == tasks) return {wide_rows * width, rest, C, 2 * i * width};
    const Slice slice(wide_rows, tasks, i);
    return {slice.begin * width, slice.size(), width, 2 * i * width};
  }

  // Elements of scratch for sums: those of all parts, then those of all rows.
  int64_t totals() const { return 2 * parts() * width; }
  int64_t sums() const { return totals() + 2 * C; }

  int64_t C, width, wide_rows, rest, tasks;
};

// Runs the loop over all rows, each part with sums of its own.
template <typename T>
void RunLoop(Loop<T> loop, const Partition& partition, const BatchNormRows<T>& all, double* sums,
             const Parallel& parallel) {
  auto run = [&](int64_t i) {
    const Part part = partition[i];
    BatchNormRows<T> rows = all;
    rows.rows = part.rows;
    rows.C = part.channels;
    rows.x += part.offset;
    if (rows.y != nullptr) rows.y += part.offset;
    if (rows.dy != nullptr) rows.dy += part.offset;
    if (rows.dx != nullptr) rows.dx += part.offset;
    rows.first = sums + part.sums;
    rows.second = rows.first + part.channels;
    loop(rows);
  };
  if (partition.tasks > 1) return parallel.run(partition.parts(), run);
  for (int64_t i = 0; i < partition.parts(); ++i) run(i);
}

// Leaves in the totals what add(rows, first, second, total_first, total_second) makes from all
// parts' sums; it is called for `rows` rows of C channels at a time.
template <class Add>
void Total(const Partition& p, double* sums, const Add& add) {
  double* totals = sums + p.totals();
  std::fill_n(totals, 2 * p.C, 0.0);
  for (int64_t i = 0; i < p.parts(); ++i) {
    const Part part = p[i];
    const double *first = sums + part.sums, *second = first + part.channels;
    for (int64_t j = 0; j < part.channels; j += p.C) {
      add(part.rows, first + j, second + j, totals, totals + p.C);
    }
  }
}

// What is the same for all rows of a channel, repeated to the width of a wide row.
template <typename T>
class Coefficients {
 public:
  Coefficients(const Partition& partition, T* scratch)
      : C_(partition.C), width_(partition.width), next_(scratch) {}

  // of_channel(j) for every channel.
  template <class OfChannel>
  const T* Add(const OfChannel& of_channel) {
    T* values = next_;
    next_ += width_;
    for (int64_t j = 0; j < C_; ++j) values[j] = of_channel(j);
    for (int64_t j = C_; j < width_; ++j) values[j] = values[j - C_];
    return values;
  }

 private:
  int64_t C_, width_;
  T* next_;
};

// z = scale · (x − mean − mean_rest) · inv_std + offset as z = (x − mean) · factor + constant. Both
// directions call this, so that both find the same z > 0.
template <typename T>
void SetAffine(const T* scale, const T* offset, const BatchNormSaved<const T>& saved,
               Coefficients<T>* coefficients, BatchNormRows<T>* rows) {
  rows->mean = coefficients->Add([&](int64_t j) { return saved.mean[j]; });
  const T* factor = coefficients->Add([&](int64_t j) { return scale[j] * saved.inv_std[j]; });
  rows->factor = factor;
  rows->constant = coefficients->Add([&](int64_t j) {
    return static_cast<T>(offset[j] - static_cast<double>(saved.mean_rest[j]) * factor[j]);
  });
}

}  // namespace

int64_t BatchNormSums(const BatchNormShape& shape, const Parallel& parallel) {
  return Partition(shape, parallel).sums();
}

int64_t BatchNormCoefficients(const BatchNormShape& shape) { return 5 * Fold(shape) * shape.C; }

template <typename T>
void BatchNormForwardCpu(const BatchNormForwardArgs<T>& args, const Parallel& parallel) {
  const int64_t n = args.shape.n, C = args.shape.C;
  const Partition partition(args.shape, parallel);
  const Loops<T> loops = ChooseLoops(T());
  BatchNormRows<T> rows = {};
  rows.relu = args.activation == BatchNormActivation::kRelu;
  rows.x = args.x;
  rows.y = args.y;

  auto save = [&](int64_t j, double mean, double variance) {
    args.saved.mean[j] = static_cast<T>(mean);
    args.saved.mean_rest[j] = static_cast<T>(mean - args.saved.mean[j]);
    args.saved.inv_std[j] = static_cast<T>(1 / std::sqrt(variance + args.epsilon));
  };
  if (args.is_training && n > 0) {
    RunLoop(loops.statistics, partition, rows, args.sums, parallel);
    int64_t before = 0;
    Total(partition, args.sums,
          [&, C = C](int64_t count, const double* of_mean, const double* of_squared, double* mean,
                     double* squared) {
            const MergeMoments merge(before, count);
            for (int64_t j = 0; j < C; ++j) merge(of_mean[j], of_squared[j], mean + j, squared + j);
            before += count;
          });
    const double *means = args.sums + partition.totals(), *squares = means + C;
    const double count = static_cast<double>(n), keep = 1 - args.momentum;
    for (int64_t j = 0; j < C; ++j) {
      save(j, means[j], squares[j] / count);
      const double unbiased = squares[j] / std::max(count - 1, 1.0);
      args.running_mean[j] = static_cast<T>(keep * args.mean[j] + args.momentum * means[j]);
      args.running_variance[j] = static_cast<T>(keep * args.variance[j] + args.momentum * unbiased);
    }
  } else {
    for (int64_t j = 0; j < C; ++j) save(j, args.mean[j], args.variance[j]);
    std::copy_n(args.mean, C, args.running_mean);
    std::copy_n(args.variance, C, args.running_variance);
  }
  Coefficients<T> coefficients(partition, args.coefficients);
  SetAffine<T>(args.scale, args.offset, {args.saved.mean, args.saved.mean_rest, args.saved.inv_std},
               &coefficients, &rows);
  if (n > 0) RunLoop(loops.normalize, partition, rows, args.sums, parallel);
}

template <typename T>
void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>& args, const Parallel& parallel) {
  const int64_t n = args.shape.n, C = args.shape.C;
  if (n == 0) {
    std::fill_n(args.dscale, C, T(0));
    std::fill_n(args.doffset, C, T(0));
    return;
  }
  const Partition partition(args.shape, parallel);
  const Loops<T> loops = ChooseLoops(T());
  BatchNormRows<T> rows = {};
  rows.relu = args.activation == BatchNormActivation::kRelu;
  rows.frozen = !args.is_training;
  rows.x = args.x;
  rows.dy = args.dy;
  Coefficients<T> coefficients(partition, args.coefficients);
  SetAffine<T>(args.scale, args.offset, args.saved, &coefficients, &rows);
  RunLoop(loops.gradient_sums, partition, rows, args.sums, parallel);
  Total(partition, args.sums,
        [C = C](int64_t, const double* first, const double* second, double* sum, double* products) {
          for (int64_t j = 0; j < C; ++j) sum[j] += first[j];
          for (int64_t j = 0; j < C; ++j) products[j] += second[j];
        });

  const double *sums = args.sums + partition.totals(), *products = sums + C;
  auto dscale = [&](int64_t j) {
    return (products[j] - static_cast<double>(args.saved.mean_rest[j]) * sums[j]) *
           args.saved.inv_std[j];
  };
  for (int64_t j = 0; j < C; ++j) {
    args.dscale[j] = static_cast<T>(dscale(j));
    args.doffset[j] = static_cast<T>(sums[j]);
  }
  if (!rows.frozen) {
    // dx = factor · (dz − doffset/n − x̂ · dscale/n), x̂ = (x − mean − mean_rest) · inv_std
    const double share = 1 / static_cast<double>(n);
    auto slope = [&](int64_t j) { return dscale(j) * share * args.saved.inv_std[j]; };
    rows.dconstant = coefficients.Add([&](int64_t j) {
      return static_cast<T>(sums[j] * share - args.saved.mean_rest[j] * slope(j));
    });
    rows.dfactor = coefficients.Add([&](int64_t j) { return static_cast<T>(slope(j)); });
  }
  rows.dx = args.dx;
  RunLoop(loops.input_gradient, partition, rows, args.sums, parallel);
}

#define LATE_PHASE_INSTANTIATE(T)                                                     \
  template void BatchNormForwardCpu(const BatchNormForwardArgs<T>&, const Parallel&); \
  template void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>&, const Parallel&)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase
#endif  // HWY_ONCE

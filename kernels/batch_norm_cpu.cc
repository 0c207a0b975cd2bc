// How the work is cut: the rows go to a few tasks per thread. Each direction passes over its arrays
// twice, once for the sums, whose shares the tasks leave in `sums`, and once for the result.
//
// A share is made of blocks of kBlockRows rows. Within a block sums are of type T and, for the
// statistics, of differences to the block's first row: since that row is one of the block, the sum
// of squares Σ(x − x₀)² is at most kBlockRows times Σ(x − μ)², so little is lost when the latter is
// taken from it, whatever mean and outliers there are. Blocks, then tasks, are merged in double.
//
// The loops are compiled once per instruction set: foreach_target.h includes this file again for
// each.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/batch_norm.h"
#include "kernels/cpu_target.h"

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

// What the loops know: rows of x and dy, and what is the same for all rows of a channel.
template <typename T>
struct BatchNormRows {
  int64_t rows, C;
  bool relu;
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

}  // namespace late_phase
#endif  // LATE_PHASE_KERNELS_BATCH_NORM_ROWS_

HWY_BEFORE_NAMESPACE();
namespace late_phase {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows whose sums are of type T.
constexpr int64_t kBlockRows = 32;
// Rows that are read side by side, so that a sum is loaded and stored once for all of them.
constexpr int64_t kTileRows = 4;
// Channels whose sums stay in the first-level cache.
constexpr int64_t kStripe = 256;

// Calls body(d, j) for vectors of channels that cover [j, end): whole ones, then one each of half,
// a quarter, ... for what is left.
template <class D, class Body>
HWY_INLINE void ForChannels(D d, int64_t j, int64_t end, const Body& body) {
  const int64_t lanes = hn::Lanes(d);
  for (; j + lanes <= end; j += lanes) body(d, j);
  if constexpr (hn::MaxLanes(d) > 1) {
    if (j < end) ForChannels(hn::Half<D>(), j, end, body);
  }
}

// Calls tile(count, at) for tiles that cover rows [row, rows): of kTileRows rows each, then of
// single ones. `count` is a std::integral_constant, so that the loop over a tile is unrolled.
template <class Tile>
HWY_INLINE void ForTiles(int64_t row, int64_t rows, const Tile& tile) {
  for (; row + kTileRows <= rows; row += kTileRows) {
    tile(std::integral_constant<int64_t, kTileRows>(), row);
  }
  for (; row < rows; ++row) tile(std::integral_constant<int64_t, 1>(), row);
}

// Adds the share of `rows` rows to the two sums of a vector of channels; add(row, a, b) adds one
// row's to a and b.
template <class D, typename T, class Add>
HWY_INLINE void AddTile(D d, int64_t rows, T* first, T* second, const Add& add) {
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (int64_t row = 0; row < rows; ++row) add(row, a, b);
  hn::StoreU(hn::Add(hn::LoadU(d, first), a), d, first);
  hn::StoreU(hn::Add(hn::LoadU(d, second), b), d, second);
}

// For blocks of rows and stripes of channels: block(row, rows, begin, end, first, second) adds to
// the zeros in first and second [end − begin], then merge(row, rows, begin, width, first, second)
// takes the sums over.
template <typename T, class Block, class Merge>
HWY_INLINE void SumBlocks(int64_t rows, int64_t C, const Block& block, const Merge& merge) {
  for (int64_t row = 0; row < rows; row += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - row);
    for (int64_t begin = 0; begin < C; begin += kStripe) {
      const int64_t width = std::min(kStripe, C - begin);
      HWY_ALIGN T first[kStripe], second[kStripe];
      std::fill_n(first, width, T(0));
      std::fill_n(second, width, T(0));
      block(row, count, begin, begin + width, first, second);
      merge(row, count, begin, width, first, second);
    }
  }
}

template <typename T>
void Statistics(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  const int64_t C = a.C;
  auto block = [&](int64_t row, int64_t rows, int64_t begin, int64_t end, T* first, T* second) {
    const T* x0 = a.x + row * C;
    // The first row has no difference to itself.
    ForTiles(1, rows, [&](auto tile, int64_t at) {
      ForChannels(d, begin, end, [&](auto part, int64_t j) {
        const auto shift = hn::LoadU(part, x0 + j);
        AddTile(part, tile, first + j - begin, second + j - begin,
                [&](int64_t r, auto& sum, auto& squares) {
                  const auto difference = hn::Sub(hn::LoadU(part, x0 + (at + r) * C + j), shift);
                  sum = hn::Add(sum, difference);
                  squares = hn::MulAdd(difference, difference, squares);
                });
      });
    });
  };
  // Chan, Golub and LeVeque: of A rows with mean m and B rows with mean m + δ the mean is
  // m + δ·B/(A + B), and δ²·A·B/(A + B) is added to the sums of squares.
  auto merge = [&](int64_t row, int64_t rows, int64_t begin, int64_t width, const T* sum,
                   const T* squares) {
    const double count = static_cast<double>(rows), before = static_cast<double>(row);
    const double share = count / (before + count), weight = before * share;
    const T* x0 = a.x + row * C + begin;
    double *mean = a.first + begin, *squared = a.second + begin;
    for (int64_t j = 0; j < width; ++j) {
      const double total = sum[j], average = total / count;
      const double block_mean = x0[j] + average, block_squared = squares[j] - total * average;
      const double delta = block_mean - mean[j];
      // The first block has nothing to be merged with.
      mean[j] = row == 0 ? block_mean : mean[j] + delta * share;
      squared[j] = row == 0 ? block_squared : squared[j] + block_squared + delta * delta * weight;
    }
  };
  SumBlocks<T>(a.rows, C, block, merge);
}

// z > 0 lets dy through; NaN, too, so that a diverged channel shows.
template <bool kRelu, class D, class V, typename T>
HWY_INLINE V Unactivated(D d, const BatchNormRows<T>& a, V difference, int64_t j, V dy) {
  if constexpr (!kRelu) return dy;
  const V z = hn::MulAdd(difference, hn::LoadU(d, a.factor + j), hn::LoadU(d, a.constant + j));
  return hn::IfThenZeroElse(hn::Le(z, hn::Zero(d)), dy);
}

template <bool kRelu, typename T>
void GradientSums(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  const int64_t C = a.C;
  auto block = [&](int64_t row, int64_t rows, int64_t begin, int64_t end, T* first, T* second) {
    const T *x = a.x + row * C, *dy = a.dy + row * C;
    ForTiles(0, rows, [&](auto tile, int64_t at) {
      ForChannels(d, begin, end, [&](auto part, int64_t j) {
        const auto mean = hn::LoadU(part, a.mean + j);
        AddTile(part, tile, first + j - begin, second + j - begin,
                [&](int64_t r, auto& sum, auto& products) {
                  const int64_t i = (at + r) * C + j;
                  const auto difference = hn::Sub(hn::LoadU(part, x + i), mean);
                  const auto dz =
                      Unactivated<kRelu>(part, a, difference, j, hn::LoadU(part, dy + i));
                  sum = hn::Add(sum, dz);
                  products = hn::MulAdd(dz, difference, products);
                });
      });
    });
  };
  auto merge = [&](int64_t row, int64_t, int64_t begin, int64_t width, const T* sum,
                   const T* products) {
    double *first = a.first + begin, *second = a.second + begin;
    for (int64_t j = 0; j < width; ++j) {
      first[j] = row == 0 ? sum[j] : first[j] + sum[j];
      second[j] = row == 0 ? products[j] : second[j] + products[j];
    }
  };
  SumBlocks<T>(a.rows, C, block, merge);
}

template <bool kRelu, typename T>
void Normalize(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  for (int64_t row = 0; row < a.rows; ++row) {
    const T* x = a.x + row * a.C;
    T* y = a.y + row * a.C;
    ForChannels(d, 0, a.C, [&](auto part, int64_t j) {
      const auto difference = hn::Sub(hn::LoadU(part, x + j), hn::LoadU(part, a.mean + j));
      auto z =
          hn::MulAdd(difference, hn::LoadU(part, a.factor + j), hn::LoadU(part, a.constant + j));
      // Max would lose NaN.
      if constexpr (kRelu) z = hn::IfThenZeroElse(hn::Le(z, hn::Zero(part)), z);
      hn::StoreU(z, part, y + j);
    });
  }
}

template <bool kRelu, typename T>
void InputGradient(const BatchNormRows<T>& a) {
  const hn::ScalableTag<T> d;
  for (int64_t row = 0; row < a.rows; ++row) {
    const T *x = a.x + row * a.C, *dy = a.dy + row * a.C;
    T* dx = a.dx + row * a.C;
    ForChannels(d, 0, a.C, [&](auto part, int64_t j) {
      const auto difference = hn::Sub(hn::LoadU(part, x + j), hn::LoadU(part, a.mean + j));
      const auto dz = Unactivated<kRelu>(part, a, difference, j, hn::LoadU(part, dy + j));
      const auto centred = hn::Sub(dz, hn::LoadU(part, a.dconstant + j));
      const auto rest = hn::NegMulAdd(difference, hn::LoadU(part, a.dfactor + j), centred);
      hn::StoreU(hn::Mul(rest, hn::LoadU(part, a.factor + j)), part, dx + j);
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
  a.relu ? InputGradient<true>(a) : InputGradient<false>(a);
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

// More than one, so that a thread that is held up does not hold up the others.
constexpr int64_t kTasksPerThread = 4;

template <typename T>
using Loop = void (*)(const BatchNormRows<T>&);

template <typename T>
struct Loops {
  Loop<T> statistics, normalize, gradient_sums, input_gradient;
};

Loops<float> LoopsOf(float) {
  return {LATE_PHASE_FOR_TARGET(StatisticsFloat), LATE_PHASE_FOR_TARGET(NormalizeFloat),
          LATE_PHASE_FOR_TARGET(GradientSumsFloat), LATE_PHASE_FOR_TARGET(InputGradientFloat)};
}
Loops<double> LoopsOf(double) {
  return {LATE_PHASE_FOR_TARGET(StatisticsDouble), LATE_PHASE_FOR_TARGET(NormalizeDouble),
          LATE_PHASE_FOR_TARGET(GradientSumsDouble), LATE_PHASE_FOR_TARGET(InputGradientDouble)};
}

// Every task has at least one row.
int64_t Tasks(const BatchNormShape& s, const Parallel& parallel) {
  const int64_t most = std::min(s.n, s.n * s.C / kBlockElements);
  return std::clamp<int64_t>(most, 1, kTasksPerThread * std::max(1, parallel.threads));
}

// Runs the loop over all rows, each task on its slice, with sums of its own.
template <typename T>
void RunLoop(Loop<T> loop, const BatchNormShape& s, const BatchNormRows<T>& all, double* sums,
             const Parallel& parallel) {
  const int64_t tasks = Tasks(s, parallel);
  auto part = [&](int64_t task) {
    const Slice slice(s.n, tasks, task);
    BatchNormRows<T> rows = all;
    rows.rows = slice.size();
    const int64_t offset = slice.begin * s.C;
    rows.x += offset;
    if (rows.y != nullptr) rows.y += offset;
    if (rows.dy != nullptr) rows.dy += offset;
    if (rows.dx != nullptr) rows.dx += offset;
    rows.first = sums + task * 2 * s.C;
    rows.second = rows.first + s.C;
    loop(rows);
  };
  if (tasks == 1) return part(0);
  parallel.run(tasks, part);
}

// z = scale · (x − mean − mean_rest) · inv_std + offset as z = (x − mean) · factor + constant. Both
// directions call this, so that both find the same z > 0.
template <typename T>
void Affine(int64_t C, const T* scale, const T* offset, const BatchNormSaved<const T>& saved,
            BatchNormRows<T>* rows, T* coefficients) {
  T *factor = coefficients, *constant = coefficients + C;
  for (int64_t j = 0; j < C; ++j) {
    factor[j] = scale[j] * saved.inv_std[j];
    constant[j] = static_cast<T>(offset[j] - static_cast<double>(saved.mean_rest[j]) * factor[j]);
  }
  rows->mean = saved.mean;
  rows->factor = factor;
  rows->constant = constant;
}

}  // namespace

int64_t BatchNormSums(const BatchNormShape& shape, const Parallel& parallel) {
  return 2 * shape.C * Tasks(shape, parallel);
}

template <typename T>
void BatchNormForwardCpu(const BatchNormForwardArgs<T>& args, const Parallel& parallel) {
  const auto [n, C] = args.shape;
  const Loops<T> loops = LoopsOf(T());
  BatchNormRows<T> rows = {};
  rows.C = C;
  rows.relu = args.activation == BatchNormActivation::kRelu;
  rows.x = args.x;
  rows.y = args.y;

  auto save = [&](int64_t j, double mean, double variance) {
    args.saved.mean[j] = static_cast<T>(mean);
    args.saved.mean_rest[j] = static_cast<T>(mean - args.saved.mean[j]);
    args.saved.inv_std[j] = static_cast<T>(1 / std::sqrt(variance + args.epsilon));
  };
  if (args.is_training && n > 0) {
    RunLoop(loops.statistics, args.shape, rows, args.sums, parallel);
    const int64_t tasks = Tasks(args.shape, parallel);
    const double count = static_cast<double>(n);
    for (int64_t j = 0; j < C; ++j) {
      double mean = args.sums[j], squared = args.sums[C + j];
      for (int64_t task = 1; task < tasks; ++task) {
        const Slice slice(n, tasks, task);
        const double share = static_cast<double>(slice.size()) / static_cast<double>(slice.end);
        const double delta = args.sums[task * 2 * C + j] - mean;
        mean += delta * share;
        squared += args.sums[(task * 2 + 1) * C + j] +
                   delta * delta * static_cast<double>(slice.begin) * share;
      }
      save(j, mean, squared / count);
      const double unbiased = squared / std::max(count - 1, 1.0), keep = 1 - args.momentum;
      args.running_mean[j] = static_cast<T>(keep * args.mean[j] + args.momentum * mean);
      args.running_variance[j] = static_cast<T>(keep * args.variance[j] + args.momentum * unbiased);
    }
  } else {
    for (int64_t j = 0; j < C; ++j) save(j, args.mean[j], args.variance[j]);
    std::copy_n(args.mean, C, args.running_mean);
    std::copy_n(args.variance, C, args.running_variance);
  }
  Affine<T>(C, args.scale, args.offset, {args.saved.mean, args.saved.mean_rest, args.saved.inv_std},
            &rows, args.coefficients);
  if (n > 0) RunLoop(loops.normalize, args.shape, rows, args.sums, parallel);
}

template <typename T>
void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>& args, const Parallel& parallel) {
  const auto [n, C] = args.shape;
  if (n == 0) {
    std::fill_n(args.dscale, C, T(0));
    std::fill_n(args.doffset, C, T(0));
    return;
  }
  const Loops<T> loops = LoopsOf(T());
  T *dconstant = args.coefficients + 2 * C, *dfactor = args.coefficients + 3 * C;
  BatchNormRows<T> rows = {};
  rows.C = C;
  rows.relu = args.activation == BatchNormActivation::kRelu;
  rows.x = args.x;
  rows.dy = args.dy;
  Affine<T>(C, args.scale, args.offset, args.saved, &rows, args.coefficients);
  RunLoop(loops.gradient_sums, args.shape, rows, args.sums, parallel);

  // dx = factor · (dz − doffset/n − x̂ · dscale/n), x̂ = (x − mean − mean_rest) · inv_std
  const int64_t tasks = Tasks(args.shape, parallel);
  const double count = static_cast<double>(n);
  for (int64_t j = 0; j < C; ++j) {
    double sum = 0, products = 0;
    for (int64_t task = 0; task < tasks; ++task) {
      sum += args.sums[task * 2 * C + j];
      products += args.sums[(task * 2 + 1) * C + j];
    }
    const double inv_std = args.saved.inv_std[j], rest = args.saved.mean_rest[j];
    const double dscale = (products - rest * sum) * inv_std;
    args.dscale[j] = static_cast<T>(dscale);
    args.doffset[j] = static_cast<T>(sum);
    // Frozen statistics pass nothing on.
    const double slope = args.is_training ? dscale / count * inv_std : 0;
    dfactor[j] = static_cast<T>(slope);
    dconstant[j] = args.is_training ? static_cast<T>(sum / count - rest * slope) : T(0);
  }
  rows.dconstant = dconstant;
  rows.dfactor = dfactor;
  rows.dx = args.dx;
  RunLoop(loops.input_gradient, args.shape, rows, args.sums, parallel);
}

#define LATE_PHASE_INSTANTIATE(T)                                                     \
  template void BatchNormForwardCpu(const BatchNormForwardArgs<T>&, const Parallel&); \
  template void BatchNormBackwardCpu(const BatchNormBackwardArgs<T>&, const Parallel&)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase
#endif  // HWY_ONCE

// Four passes over the rows, two per direction: sums per channel, then the result. All share one
// distribution of the work (Deal, Walk): a block takes a slice of the rows of some channels, and a
// thread keeps to its channels, so that what belongs to a channel stays in registers.
//
//   channels last    a block is `width` packs of neighbouring channels times as many rows as make
//                    up 256 threads; width is any number up to 32, so that few channels leave no
//                    thread idle
//   channels first   a block runs along the planes of one channel; packs are of pixels
// Packs are of 16 bytes where alignment and sizes allow, else of one element, whose reads a warp
// still coalesces.
//
// Sums are of type ComputeType for kRun rows of a thread, then in double: over a thread's rows, the
// threads of a block (SumOverRows), the slices (ChannelsKernel). Nothing is added by atomics, and
// the slices follow from the shape alone, so that the order is always the same. For the statistics,
// a run sums differences to its own first row, and the double sums are of differences to the
// channel's first row. A row of the data is at most √n deviations from its mean: taking the squares
// of the mean from Σ(x − x₀)² costs at most kRun times the rounding of a float in a run, and n
// times that of a double afterwards, whatever the mean and outliers.
//
// On an A100 (1555 GB/s, 19.5 TFLOP/s in float), for [128,32,32,160] float, 84 MB per array:
//   pass             reads, writes    bytes per element    at best
//   SumsKernel       x                4                     54 µs
//   MapKernel        x, y             8                    108 µs     forward   162 µs
//   SumsKernel       x, dy            8                    108 µs
//   MapKernel        x, dy, dx        12                   162 µs     backward  270 µs
// 16-bit types take half of this, double twice. A map runs from the last slice to the first, and
// finds some of what the sums have just read in the second-level cache (40 MB). Estimated, not
// measured.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/batch_norm.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared.h"

namespace late_phase {
namespace {

constexpr int kThreads = 256;
constexpr int kMostWidth = 32;
constexpr int kMostLanes = 8;  // of a pack of any type
constexpr int kRun = 32;

// There are enough slices to fill any GPU, each with enough elements to be worth a block.
constexpr int64_t kMostBlocks = 1024, kSliceElements = 8192;
// The channels that a block is assumed to have when rows are sliced: float packs.
constexpr int64_t kBlockChannels = 4 * kMostWidth;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a single channel are laid out like the pixels of a single plane.
BatchNormShape Simplified(BatchNormShape shape) {
  if (shape.C == 1) shape.plane = shape.n;
  return shape;
}

// How the rows are sliced: the same for every type and GPU. C > 0.
struct Slices {
  explicit Slices(const BatchNormShape& shape) {
    const int64_t channels = shape.plane == 1 ? std::min(shape.C, kBlockChannels) : 1;
    const int64_t most = std::max<int64_t>(1, kMostBlocks / DivideUp(shape.C, channels));
    const int64_t least_rows = std::max(kSliceElements / channels, DivideUp(shape.n, most));
    rows = DivideUp(least_rows, kMostLanes) * kMostLanes;  // no pack is cut
    count = DivideUp(shape.n, rows);
  }

  int64_t rows, count;
};

// How [n/plane, C, plane] is dealt out to blocks: as tasks, each a slice of the rows of some
// channels. n, C > 0. kPlanes: packs are of rows (pixels), else of channels.
template <int kLanesOfPack, bool kPlanesOfShape>
struct Deal {
  static constexpr int kLanes = kLanesOfPack;
  static constexpr bool kPlanes = kPlanesOfShape;
  static constexpr int kChannels = kPlanes ? 1 : kLanes;  // of a thread
  static constexpr int kRows = kPlanes ? kLanes : 1;      // of a pack

  explicit Deal(const BatchNormShape& s) : n(s.n), C(s.C), plane(s.plane) {
    const Slices slices(s);
    slice_rows = slices.rows;
    const int64_t packs = DivideUp(C, kChannels);
    tiles = kPlanes ? C : DivideUp(packs, kMostWidth);
    tasks = slices.count * tiles;
    const int64_t width = DivideUp(packs, tiles), rows = DivideUp(std::min(n, slice_rows), kRows);
    const int64_t height = std::min(kThreads / width, rows);
    block = dim3(static_cast<unsigned>(width), static_cast<unsigned>(height));
    step_rows = height * kRows;
    step_pixels = step_rows % plane;
    step = step_rows / plane * C * plane + step_pixels;
  }

  int64_t n, C, plane;
  int64_t slice_rows, tiles, tasks;
  dim3 block;  // x: packs of channels; y: rows, or packs of them
  // From a thread's pack to its next one: in rows, and in elements unless it passes the end of a
  // plane.
  int64_t step_rows, step_pixels, step;
};

// A thread's path through a task: `steps` packs, of which the current one is at `offset`.
template <class Deal>
struct Walk {
  __device__ __forceinline__ Walk(const Deal& deal, int64_t task)
      : slice(task / deal.tiles),
        channel((task % deal.tiles * blockDim.x + threadIdx.x) * Deal::kChannels),
        inside(channel < deal.C) {
    const int64_t begin = slice * deal.slice_rows, end = min(begin + deal.slice_rows, deal.n);
    const int64_t row = begin + threadIdx.y * Deal::kRows, image = row / deal.plane;
    const int64_t rows = inside ? end - row : 0;
    steps = rows > 0 ? (rows + deal.step_rows - 1) / deal.step_rows : 0;
    pixel = row % deal.plane;
    offset = (image * deal.C + channel) * deal.plane + pixel;
  }

  // No division, which would take longer than the pack.
  __device__ __forceinline__ void Next(const Deal& deal) {
    offset += deal.step;
    if (!Deal::kPlanes) return;
    pixel += deal.step_pixels;
    if (pixel < deal.plane) return;
    pixel -= deal.plane;
    offset += (deal.C - 1) * deal.plane;
  }

  int64_t slice, channel;
  bool inside;
  int64_t steps, pixel, offset;
};

// Adds up each of `sums` over the threads of a block that have the same x; those with y = 0 are
// left with the totals. A tree whose nodes add up to kFan: a block has two or three levels of it,
// of two barriers each.
template <int kSums>
__device__ __forceinline__ void SumOverRows(double (&sums)[kSums]) {
  constexpr int kFan = 8, kOthers = kThreads / kFan * (kFan - 1);
  __shared__ Shared<double, kSums * kOthers> others;
  const int x = threadIdx.x, y = threadIdx.y, width = blockDim.x;
  for (int count = blockDim.y; count > 1;) {
    const int nodes = (count + kFan - 1) / kFan;
    if (y >= nodes && y < count) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) others[s * kOthers + (y - nodes) * width + x] = sums[s];
    }
    __syncthreads();
    if (y < nodes) {
      for (int other = y; other < count - nodes; other += nodes) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s] += others[s * kOthers + other * width + x];
      }
    }
    __syncthreads();
    count = nodes;
  }
}

// z = scale · (x − mean − mean_rest) · inv_std + offset as z = (x − mean) · factor + constant. Both
// directions call this, so that both find the same z > 0.
template <typename S>
struct Affine {
  Affine() = default;
  __device__ __forceinline__ Affine(const S* scale, const S* offset,
                                    const BatchNormSaved<const S>& saved, int64_t channel)
      : mean(saved.mean[channel]), factor(scale[channel] * saved.inv_std[channel]) {
    constant = fma(-saved.mean_rest[channel], factor, offset[channel]);
  }
  __device__ __forceinline__ S operator()(S difference) const {
    return fma(difference, factor, constant);
  }
  S mean, factor, constant;
};

// z > 0 lets dy, and z itself, through, and so does NaN, so that a diverged channel shows.
template <typename S>
__device__ __forceinline__ S Activated(bool relu, S z, S passed) {
  return relu && z <= 0 ? S(0) : passed;
}

// What SumsKernel sums over the rows of a channel: value and value · (x − shift), with one `shift`
// per run. Here Σ(x − x₀) and Σ(x − x₀)², x₀ being the channel's first row; `Total` converts the
// sums of a run, which are relative to the run's own first row, to x₀.
template <typename T>
struct MomentTerms {
  using S = ComputeType<T>;
  static constexpr bool kWithGradient = false;
  using Channel = S;  // x₀

  __device__ __forceinline__ S Of(int64_t channel) const { return Widened(x[channel * plane]); }
  __device__ __forceinline__ S Shift(S, S first_of_run) const { return first_of_run; }
  __device__ __forceinline__ S Value(S, S difference, S) const { return difference; }
  __device__ __forceinline__ void Total(S start, S shift, int rows, S sum, S product, double* first,
                                        double* second) const {
    const double delta = static_cast<double>(shift) - start, moved = rows * delta;
    *first += sum + moved;
    *second += product + delta * (2.0 * sum + moved);
  }

  const T* x;
  int64_t plane;
};

// Σ dz and Σ dz · (x − mean).
template <typename T>
struct GradientTerms {
  using S = ComputeType<T>;
  static constexpr bool kWithGradient = true;
  using Channel = Affine<S>;

  __device__ __forceinline__ Channel Of(int64_t channel) const {
    return {scale, offset, saved, channel};
  }
  __device__ __forceinline__ S Shift(const Channel& affine, S) const { return affine.mean; }
  __device__ __forceinline__ S Value(const Channel& affine, S difference, S dy) const {
    return Activated(relu, affine(difference), dy);
  }
  __device__ __forceinline__ void Total(const Channel&, S, int, S sum, S product, double* first,
                                        double* second) const {
    *first += sum;
    *second += product;
  }

  bool relu;
  const S* scale;
  const S* offset;
  BatchNormSaved<const S> saved;
};

// Two sums per slice and channel: sums[slices,2,C]. Reads x, and dy with a gradient, once; writes
// 16 bytes per slice and channel, 1.6 % of the size of x for [128,32,32,160].
//
// Three operations per element for the moments and six for the gradient, against 4 and 8 bytes.
// Doubles are used once per run and lane, some ten operations, for which even a GPU with few double
// units takes no longer than for the reads. With its 65536 registers a multiprocessor runs 768
// threads for the moments in float (80 each), 512 for the gradient (96) and in 16 bits (126). With
// four reads of 16 bytes each in flight these are 32 KB or more, where the A100's memory needs 7 KB
// per multiprocessor (1555 GB/s · 0.5 µs / 108): hence launch bounds that ask for two blocks only,
// and leave the registers to the reads.
template <class Deal, typename T, class Terms>
__global__ void __launch_bounds__(kThreads, 2)
    SumsKernel(Deal deal, const T* x, const T* dy, Terms terms, double* sums) {
  using S = ComputeType<T>;
  constexpr int kLanes = Deal::kLanes, kChannels = Deal::kChannels;
  for (int64_t task = blockIdx.x; task < deal.tasks; task += gridDim.x) {
    Walk<Deal> walk(deal, task);
    double totals[2 * kChannels] = {};
    if (walk.steps > 0) {
      typename Terms::Channel channels[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) channels[c] = terms.Of(walk.channel + c);
      for (int64_t left = walk.steps; left > 0; left -= kRun) {
        const int run = static_cast<int>(min(left, int64_t{kRun}));
        const Pack<T, kLanes> start = LoadPack<kLanes>(x + walk.offset);
        S shift[kLanes], sum[kLanes] = {}, product[kLanes] = {};
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          shift[lane] = terms.Shift(channels[lane % kChannels], Widened(start.lane[lane]));
        }
#pragma unroll 4
        for (int i = 0; i < run; ++i) {
          const Pack<T, kLanes> row = LoadPack<kLanes>(x + walk.offset);
          Pack<T, kLanes> gradient = {};
          if (Terms::kWithGradient) gradient = LoadPack<kLanes>(dy + walk.offset);
          walk.Next(deal);
#pragma unroll
          for (int lane = 0; lane < kLanes; ++lane) {
            const S difference = Widened(row.lane[lane]) - shift[lane];
            const S value =
                terms.Value(channels[lane % kChannels], difference, Widened(gradient.lane[lane]));
            sum[lane] += value;
            product[lane] = fma(value, difference, product[lane]);
          }
        }
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          const int c = lane % kChannels;
          terms.Total(channels[c], shift[lane], run, sum[lane], product[lane], &totals[c],
                      &totals[kChannels + c]);
        }
      }
    }
    SumOverRows(totals);
    if (threadIdx.y > 0 || !walk.inside) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      double* first = sums + 2 * walk.slice * deal.C + walk.channel + c;
      first[0] = totals[c];
      first[deal.C] = totals[kChannels + c];
    }
  }
}

// finish(channel, first, second) with the sums of all slices. A block is some channels times up to
// kSliceThreads threads, each with slices of its own: 1.3 MB, mostly in the second-level cache, 20
// blocks and some 3 µs for the 512 slices of [128,32,32,160]. There is little double arithmetic.
constexpr int kSliceThreads = 32;
template <class Finish>
__global__ void __launch_bounds__(kThreads)
    ChannelsKernel(int64_t C, int64_t slices, const double* sums, Finish finish) {
  for (int64_t begin = int64_t{blockIdx.x} * blockDim.x; begin < C;
       begin += int64_t{gridDim.x} * blockDim.x) {
    const int64_t channel = begin + threadIdx.x;
    double totals[2] = {};
    if (channel < C) {
#pragma unroll 4
      for (int64_t slice = threadIdx.y; slice < slices; slice += blockDim.y) {
        totals[0] += sums[2 * slice * C + channel];
        totals[1] += sums[(2 * slice + 1) * C + channel];
      }
    }
    SumOverRows(totals);
    if (threadIdx.y == 0 && channel < C) finish(channel, totals[0], totals[1]);
  }
}

// Turns the sums of MomentTerms, if there are any rows, into statistics.
template <typename T>
struct FinishForward {
  using S = ComputeType<T>;

  __device__ __forceinline__ void operator()(int64_t channel, double sum, double squares) const {
    double mean = args.mean[channel], variance = args.variance[channel];
    S running_mean = args.mean[channel], running_variance = args.variance[channel];
    if (args.is_training && args.shape.n > 0) {
      const double n = static_cast<double>(args.shape.n), keep = 1 - args.momentum;
      const double shift = sum / n, squared = squares - sum * shift;
      const double unbiased = squared / max(n - 1, 1.0);
      running_variance = static_cast<S>(keep * variance + args.momentum * unbiased);
      variance = squared / n;
      const double of_rows = Widened(args.x[channel * args.shape.plane]) + shift;
      running_mean = static_cast<S>(keep * mean + args.momentum * of_rows);
      mean = of_rows;
    }
    args.running_mean[channel] = running_mean;
    args.running_variance[channel] = running_variance;
    const S rounded = static_cast<S>(mean);
    args.saved.mean[channel] = rounded;
    args.saved.mean_rest[channel] = static_cast<S>(mean - rounded);
    args.saved.inv_std[channel] = static_cast<S>(1 / sqrt(variance + args.epsilon));
  }

  BatchNormForwardArgs<T> args;
};

// Turns the sums of GradientTerms into gradients, and in training dx = (dz − dconstant − (x − mean)
// · dfactor) · factor for InputGradient.
template <typename T>
struct FinishBackward {
  using S = ComputeType<T>;

  __device__ __forceinline__ void operator()(int64_t channel, double sum, double product) const {
    const bool empty = args.shape.n == 0;
    const double rest = args.saved.mean_rest[channel], inv_std = args.saved.inv_std[channel];
    const double dscale = empty ? 0 : (product - rest * sum) * inv_std;
    args.dscale[channel] = static_cast<S>(dscale);
    args.doffset[channel] = static_cast<S>(sum);
    const bool passes = args.is_training && !empty;
    const double n = static_cast<double>(args.shape.n);
    const double slope = passes ? dscale / n * inv_std : 0;
    args.coefficients[channel] = static_cast<S>(passes ? sum / n - rest * slope : 0);
    args.coefficients[args.shape.C + channel] = static_cast<S>(slope);
  }

  BatchNormBackwardArgs<T> args;
};

template <typename T>
struct Normalize {
  using S = ComputeType<T>;
  static constexpr bool kWithGradient = false;
  using Channel = Affine<S>;

  __device__ __forceinline__ Channel Of(int64_t channel) const {
    return {scale, offset, saved, channel};
  }
  __device__ __forceinline__ S operator()(const Channel& affine, S x, S) const {
    const S z = affine(x - affine.mean);
    return Activated(relu, z, z);
  }

  bool relu;
  const S* scale;
  const S* offset;
  BatchNormSaved<const S> saved;
};

template <typename T>
struct InputGradient {
  using S = ComputeType<T>;
  static constexpr bool kWithGradient = true;
  struct Channel {
    Affine<S> affine;
    S dconstant, dfactor;
  };

  __device__ __forceinline__ Channel Of(int64_t channel) const {
    return {{scale, offset, saved, channel}, dconstant[channel], dfactor[channel]};
  }
  __device__ __forceinline__ S operator()(const Channel& c, S x, S dy) const {
    const S difference = x - c.affine.mean;
    const S dz = Activated(relu, c.affine(difference), dy);
    if (frozen) return dz * c.affine.factor;
    return fma(-difference, c.dfactor, dz - c.dconstant) * c.affine.factor;
  }

  bool relu, frozen;
  const S* scale;
  const S* offset;
  BatchNormSaved<const S> saved;
  const S* dconstant;
  const S* dfactor;
};

// out = map(x, dy), where dy is read only with a gradient; out may be either. Every array is passed
// over once. What belongs to a channel is read once per thread and task, which has some twenty
// packs of [128,32,32,160], and mostly from the caches. At most seven operations per element
// against 8 and 12 bytes. In float 40 and 48 registers: 1536 and 1280 threads per multiprocessor,
// with 24 KB and more of reads in flight.
template <class Deal, typename T, class Map>
__global__ void __launch_bounds__(kThreads)
    MapKernel(Deal deal, const T* x, const T* dy, Map map, T* out) {
  constexpr int kLanes = Deal::kLanes, kChannels = Deal::kChannels;
  for (int64_t task = deal.tasks - 1 - blockIdx.x; task >= 0; task -= gridDim.x) {
    Walk<Deal> walk(deal, task);
    if (walk.steps == 0) continue;
    typename Map::Channel channels[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) channels[c] = map.Of(walk.channel + c);
    for (int64_t i = 0; i < walk.steps; ++i) {
      Pack<T, kLanes> row = LoadPack<kLanes>(x + walk.offset), gradient = {};
      if (Map::kWithGradient) gradient = LoadPack<kLanes>(dy + walk.offset);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        row.lane[lane] = Rounded<T>(
            map(channels[lane % kChannels], Widened(row.lane[lane]), Widened(gradient.lane[lane])));
      }
      StorePack(row, out + walk.offset);
      walk.Next(deal);
    }
  }
}

// Calls launch(deal) with the Deal for this shape and these arrays of it.
template <typename T, class Launch>
[[nodiscard]] std::string LaunchFor(const BatchNormShape& shape,
                                    std::initializer_list<const T*> arrays, const Launch& launch) {
  constexpr int kLanes = kWidestPack<T>;
  const bool planes = shape.plane != 1;
  bool packs = (planes ? shape.plane : shape.C) % kLanes == 0;
  for (const T* array : arrays) packs = packs && IsAligned<kLanes>(array);
  if (planes) return packs ? launch(Deal<kLanes, true>(shape)) : launch(Deal<1, true>(shape));
  return packs ? launch(Deal<kLanes, false>(shape)) : launch(Deal<1, false>(shape));
}

template <typename T, class Terms>
[[nodiscard]] std::string LaunchSums(const BatchNormShape& shape, const T* x, const T* dy,
                                     const Terms& terms, double* sums, CudaStream stream) {
  return LaunchFor<T>(shape, {x, dy}, [&](const auto& deal) {
    const auto kernel = SumsKernel<std::decay_t<decltype(deal)>, T, Terms>;
    const unsigned grid = GridForBlocks(deal.tasks, kernel, deal.block.x * deal.block.y, 0);
    return LaunchKernel({"BatchNormSums", grid, deal.block, 0, stream}, kernel, deal, x, dy, terms,
                        sums);
  });
}

// With no slices, the sums are 0.
template <class Finish>
[[nodiscard]] std::string LaunchChannels(int64_t slices, const Finish& finish, CudaStream stream) {
  const int64_t C = finish.args.shape.C;
  const auto kernel = ChannelsKernel<Finish>;
  const unsigned height = static_cast<unsigned>(std::clamp<int64_t>(slices, 1, kSliceThreads));
  const dim3 block(std::min(32u, kThreads / height), height);
  const unsigned grid = GridForBlocks(DivideUp(C, block.x), kernel, block.x * block.y, 0);
  return LaunchKernel({"BatchNormChannels", grid, block, 0, stream}, kernel, C, slices,
                      finish.args.sums, finish);
}

template <typename T, class Map>
[[nodiscard]] std::string LaunchMap(const BatchNormShape& shape, const T* x, const T* dy,
                                    const Map& map, T* out, CudaStream stream) {
  return LaunchFor<T>(shape, {x, dy, out}, [&](const auto& deal) {
    const auto kernel = MapKernel<std::decay_t<decltype(deal)>, T, Map>;
    const unsigned grid = GridForBlocks(deal.tasks, kernel, deal.block.x * deal.block.y, 0);
    return LaunchKernel({"BatchNormMap", grid, deal.block, 0, stream}, kernel, deal, x, dy, map,
                        out);
  });
}

}  // namespace

int64_t BatchNormSumsGpu(const BatchNormShape& shape) {
  return shape.C == 0 ? 0 : 2 * Slices(Simplified(shape)).count * shape.C;
}

template <typename T>
std::string BatchNormForwardGpu(const BatchNormForwardArgs<T>& args, CudaStream stream) {
  using S = ComputeType<T>;
  const BatchNormShape shape = Simplified(args.shape);
  if (shape.C == 0) return "";
  const bool of_rows = args.is_training && shape.n > 0;
  std::string error;
  if (of_rows) {
    const MomentTerms<T> terms{args.x, shape.plane};
    error = LaunchSums<T>(shape, args.x, nullptr, terms, args.sums, stream);
  }
  if (error.empty()) {
    error = LaunchChannels(of_rows ? Slices(shape).count : 0, FinishForward<T>{args}, stream);
  }
  if (!error.empty() || shape.n == 0) return error;
  const BatchNormSaved<const S> saved{args.saved.mean, args.saved.mean_rest, args.saved.inv_std};
  const Normalize<T> map{args.activation == BatchNormActivation::kRelu, args.scale, args.offset,
                         saved};
  return LaunchMap<T>(shape, args.x, nullptr, map, args.y, stream);
}

template <typename T>
std::string BatchNormBackwardGpu(const BatchNormBackwardArgs<T>& args, CudaStream stream) {
  const BatchNormShape shape = Simplified(args.shape);
  if (shape.C == 0) return "";
  const bool relu = args.activation == BatchNormActivation::kRelu;
  std::string error;
  if (shape.n > 0) {
    const GradientTerms<T> terms{relu, args.scale, args.offset, args.saved};
    error = LaunchSums<T>(shape, args.x, args.dy, terms, args.sums, stream);
  }
  if (error.empty()) {
    error = LaunchChannels(Slices(shape).count, FinishBackward<T>{args}, stream);
  }
  if (!error.empty() || shape.n == 0) return error;
  const InputGradient<T> map{relu,
                             /*frozen=*/!args.is_training,
                             args.scale,
                             args.offset,
                             args.saved,
                             args.coefficients,
                             args.coefficients + shape.C};
  return LaunchMap<T>(shape, args.x, args.dy, map, args.dx, stream);
}

#define LATE_PHASE_INSTANTIATE(T)                                                       \
  template std::string BatchNormForwardGpu(const BatchNormForwardArgs<T>&, CudaStream); \
  template std::string BatchNormBackwardGpu(const BatchNormBackwardArgs<T>&, CudaStream)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
LATE_PHASE_INSTANTIATE(Half);
LATE_PHASE_INSTANTIATE(BFloat16);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

// A time step is two launches: the product with R∘uvᵀ, and one kernel for everything else. What
// does not wait for the previous step is one product over all steps: x W, and in the backward pass
// dx and the weight gradients.
//
// Figures are for an A100 (108 multiprocessors, 1555 GB/s, 19.5 TFLOP/s in float, 3 to 5 µs a
// launch), floats and the sizes of enwik8: T = 100, N = 128, C = 205 symbols, H = 500. Estimated,
// not measured.
//   forward    100 steps, each a product of 256 MFLOP, 13 µs at best, and a launch: 1.7 ms
//   backward   100 steps alike: 1.7 ms; G, 25.6 GFLOP: 1.3 ms; dtable: 80 µs; du, dv and dR: 20 µs
// The products dominate. A step's kernel moves less than 4 MB, most of it in the L2 cache (40 MB),
// and costs about as much as a launch.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cpu/lstm_gates.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/rank1_lstm.h"

namespace late_phase {
namespace {

// ---- Kernels on the elements of [rows,columns]: a thread per element, a warp along a row.
//
// Not a pack of 16 bytes per thread: a step has 64,000 units, which as packs would be 5 warps per
// multiprocessor, too few to hide the latency of exp and tanh; single floats are 18 warps, and a
// warp's 128 bytes are still coalesced.

constexpr int kTileRows = 4, kTileThreads = kTileRows * kWarp;
// Blocks per multiprocessor, for __launch_bounds__: on its own, the compiler makes room for more
// and spills a register (sm_90).
constexpr int kTileBlocks = 8;

// Calls element(row, column) for the thread's share.
template <class Element>
__device__ __forceinline__ void ForTiles(int64_t rows, int64_t columns, const Element& element) {
  for (int64_t row = int64_t{blockIdx.y} * kTileRows + threadIdx.y; row < rows;
       row += int64_t{gridDim.y} * kTileRows) {
    for (int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x; column < columns;
         column += int64_t{gridDim.x} * kWarp) {
      element(row, column);
    }
  }
}

template <typename... Parameters>
KernelLaunch TilesLaunch(const char* name, int64_t rows, int64_t columns,
                         void (*kernel)(Parameters...), CudaStream stream) {
  const int64_t across = (columns + kWarp - 1) / kWarp, down = (rows + kTileRows - 1) / kTileRows;
  const unsigned blocks = GridForBlocks(across * down, kernel, kTileThreads, 0);
  const unsigned x = std::clamp<int64_t>(across, 1, blocks);
  const unsigned y = std::clamp<int64_t>(down, 1, std::min(blocks / x, 65535u));
  return {name, dim3(x, y), dim3(kWarp, kTileRows), 0, stream};
}

// R∘uvᵀ. Reads and writes 4 MB each: 5 µs, once per call.
template <typename S>
__global__ void __launch_bounds__(kTileThreads)
    FoldKernel(int64_t H, const S* recurrent_kernel, const S* u, const S* v, S* folded) {
  ForTiles(H, 4 * H, [&](int64_t i, int64_t j) {
    folded[i * 4 * H + j] = recurrent_kernel[i * 4 * H + j] * (u[i] * v[j]);
  });
}

template <typename S>
[[nodiscard]] std::string Fold(int64_t H, const S* recurrent_kernel, const S* u, const S* v,
                               S* folded, CudaStream stream) {
  const auto kernel = FoldKernel<S>;
  return LaunchKernel(TilesLaunch("Rank1LstmFold", H, 4 * H, kernel, stream), kernel, H,
                      recurrent_kernel, u, v, folded);
}

// e^−x of a very negative x is infinite, and its inverse 0.
template <typename S>
__device__ __forceinline__ S Sigmoid(S x) {
  return 1 / (1 + exp(-x));
}

// LstmGatesForward. `symbols`: the rows of `input`. Per unit 60 bytes: z, input and c are read,
// gates, c and h written (inference: 44). A step: 3.8 MB, 2.5 µs from memory, below a launch. 512
// blocks of 128 threads, which all run at once: registers (38) leave room for 12 on each
// multiprocessor, where 5 are needed.
template <typename S>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    ForwardStepKernel(LstmGatesForwardArgs<S> a, int64_t symbols) {
  const int64_t H = a.H;
  ForTiles(a.rows, H, [&](int64_t row, int64_t unit) {
    const int64_t token = a.tokens == nullptr ? 0 : a.tokens[row];
    const bool known = token >= 0 && token < symbols;
    S* z = a.z + row * 4 * H + unit;
    auto sum = [&](Gate gate) {
      const int64_t at = static_cast<int>(gate) * H;
      return z[at] +
             (known ? a.input[token * 4 * H + at + unit] : std::numeric_limits<S>::quiet_NaN());
    };
    const S i = Sigmoid(sum(Gate::kInput)), f = Sigmoid(sum(Gate::kForget));
    const S g = tanh(sum(Gate::kCell)), o = Sigmoid(sum(Gate::kOutput));
    const S c = fma(f, a.c_prev[row * H + unit], i * g);
    a.c[row * H + unit] = c;
    a.h[row * H + unit] = o * tanh(c);
    if (!a.keep_gates) return;
    z[0] = i;
    z[H] = f;
    z[2 * H] = g;
    z[3 * H] = o;
  });
}

// LstmGatesBackward. Per unit 56 bytes: gates, c before and after, both dh and dc are read, the
// gradient of z and dc written. A step: 3.6 MB, 2.3 µs from memory, below a launch. Registers (48;
// double: 56) leave room for 9 blocks or more on each multiprocessor, where 5 are needed.
template <typename S>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    BackwardStepKernel(LstmGatesBackwardArgs<S> a) {
  const int64_t H = a.H;
  ForTiles(a.rows, H, [&](int64_t row, int64_t unit) {
    const int64_t at = row * H + unit;
    S* gates = a.gates + row * 4 * H + unit;
    const S i = gates[0], f = gates[H], g = gates[2 * H], o = gates[3 * H];
    const S dh = a.dh_out[at] + a.dh_rec[at], tanh_c = tanh(a.c[at]);
    const S dc = fma(dh * o, fma(-tanh_c, tanh_c, S(1)), a.dc[at]);
    // σ' = σ (1 − σ), tanh' = 1 − tanh²
    gates[0] = dc * g * (i * (1 - i));
    gates[H] = dc * a.c_prev[at] * (f * (1 - f));
    gates[2 * H] = dc * i * fma(-g, g, S(1));
    gates[3 * H] = dh * tanh_c * (o * (1 - o));
    a.dc[at] = dc * f;
  });
}

// ---- dtable[s] = Σ dz[row] over the rows whose token is s, without atomics, in an order that
// depends only on the tokens.

// Where the rows of a symbol are in the list, which is sorted by symbol.
struct RowRange {
  int64_t begin, end;
};

constexpr int kListWarps = 4;

// A warp per symbol goes through all tokens twice: the number of smaller ones is where its rows
// begin in the list, and then they are listed. 205 warps and 50 kB of tokens, which a level-1 cache
// holds: some 5 µs. The work grows with C·T·N: with 50,000 symbols it is 40 million rounds of a
// warp, about 0.5 ms, where writing dtable, 400 MB, takes 0.26 ms.
__global__ void __launch_bounds__(kListWarps* kWarp)
    ListRowsKernel(int64_t rows, int64_t symbols, const int32_t* tokens, RowRange* ranges,
                   int64_t* list) {
  const int lane = threadIdx.x;
  for (int64_t symbol = int64_t{blockIdx.x} * kListWarps + threadIdx.y; symbol < symbols;
       symbol += int64_t{gridDim.x} * kListWarps) {
    int64_t smaller = 0;
#pragma unroll 4
    for (int64_t row = lane; row < rows; row += kWarp) {
      smaller += tokens[row] < symbol;
    }
    const int64_t begin = ReduceWarp(smaller, Sum());
    int64_t end = begin;
#pragma unroll 4
    for (int64_t first = 0; first < rows; first += kWarp) {
      const int64_t row = first + lane;
      const bool mine = row < rows && tokens[row] == symbol;
      const unsigned ballot = __ballot_sync(kAllLanes, mine);
      if (mine) list[end + __popc(ballot & ((1u << lane) - 1))] = row;
      end += __popc(ballot);
    }
    if (lane == 0) ranges[symbol] = {begin, end};
  }
}

// A block per symbol and tile of 32 columns: 12,915 blocks. Reads dz once, 102 MB: 66 µs; writes
// dtable, 1.6 MB. 8 warps with 4 rows each in flight: a symbol with an eighth of the rows keeps its
// blocks busy for 50 rounds, about 25 µs, while others run: 32 registers let a multiprocessor hold
// all of its 64 warps. A symbol that does not occur gets zeros.
template <typename S>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    TableGradientKernel(int64_t symbols, int64_t columns, const RowRange* ranges,
                        const int64_t* list, const S* dz, S* dtable) {
  const int64_t tiles = ColumnTiles(columns);
  for (int64_t item = blockIdx.x; item < symbols * tiles; item += gridDim.x) {
    const int64_t symbol = item / tiles, column = item % tiles * kWarp + threadIdx.x;
    const RowRange range = ranges[symbol];
    S sum = 0;
    if (column < columns) {
#pragma unroll 4
      for (int64_t i = range.begin + threadIdx.y; i < range.end; i += kSumWarps) {
        sum += dz[list[i] * columns + column];
      }
    }
    sum = SumOverWarps(sum);
    if (threadIdx.y == 0 && column < columns) dtable[symbol * columns + column] = sum;
  }
}

// ---- The gradients of R, u and v, from G = Σ_t h_{t−1}ᵀ dz_t, the gradient of R∘uvᵀ:
//   dR = G ∘ uvᵀ    du = (G ∘ R) v    dv = (G ∘ R)ᵀ u

constexpr int kRowThreads = 256;

// A block per row: 500 blocks, 37 warps per multiprocessor. Reads G and R, 8 MB: 5 µs.
template <typename S>
__global__ void __launch_bounds__(kRowThreads)
    RowFactorGradientKernel(int64_t H, const S* G, const S* recurrent_kernel, const S* v, S* du) {
  for (int64_t i = blockIdx.x; i < H; i += gridDim.x) {
    const S *g = G + i * 4 * H, *r = recurrent_kernel + i * 4 * H;
    S sum = 0;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < 4 * H; j += kRowThreads) sum += g[j] * r[j] * v[j];
    sum = ReduceBlock<kRowThreads>(sum, Sum());
    if (threadIdx.x == 0) du[i] = sum;
  }
}

// The column sums of this are dv; G becomes dR on the way. Reads 8 MB, writes 4 MB: 8 µs. __ldg,
// because the compiler cannot know that what is written is not read again.
template <typename S>
struct ColumnFactorGradient {
  int64_t H;
  const S *recurrent_kernel, *u, *v;
  S* G;

  __device__ __forceinline__ S operator()(int64_t i, int64_t j) const {
    const int64_t at = i * 4 * H + j;
    const S g = G[at], r = __ldg(recurrent_kernel + at), u_i = __ldg(u + i);
    G[at] = g * (u_i * __ldg(v + j));
    return g * r * u_i;
  }
};

// ---- The passes.

// Inference: rows of x W that exist at once. Enough for an efficient product; 16 MB with 500 units,
// which the L2 cache holds.
constexpr int64_t kChunkRows = 2048;

// Steps whose z exists at once.
int64_t StepsInMemory(const Rank1LstmShape& s, LstmInputForm form, bool training) {
  if (training) return s.T;
  if (form == LstmInputForm::kTokens) return 1;
  return std::clamp<int64_t>(kChunkRows / std::max<int64_t>(1, s.N), 1, std::max<int64_t>(1, s.T));
}

template <typename S>
[[nodiscard]] std::string Copy(int64_t elements, const S* from, S* to, CudaStream stream) {
  if (elements == 0) return "";
  const cudaError_t error =
      cudaMemcpyAsync(to, from, elements * sizeof(S), cudaMemcpyDeviceToDevice, stream);
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // as in LaunchKernel
  return std::string("cudaMemcpyAsync: ") + cudaGetErrorString(error);
}

// The scratch of the backward pass. Everything starts at a multiple of 16 bytes.
template <typename S>
struct BackwardWorkspace {
  explicit BackwardWorkspace(const Rank1LstmBackwardArgs<S>& args) {
    const auto& shape = args.shape;
    const bool tokens = args.input.form == LstmInputForm::kTokens;
    folded = args.workspace;
    ranges = reinterpret_cast<RowRange*>(folded + shape.H * 4 * shape.H);
    sums = reinterpret_cast<S*>(ranges + (tokens ? shape.C : 0));
    list = reinterpret_cast<int64_t*>(sums + ColumnSumsElements(shape, args.input.form));
  }

  // dbias and dv take turns.
  static int64_t ColumnSumsElements(const Rank1LstmShape& shape, LstmInputForm form) {
    const int64_t of_dv = ColumnSumsWorkspace(shape.H, 4 * shape.H);
    if (form == LstmInputForm::kTokens) return of_dv;
    return std::max(of_dv, ColumnSumsWorkspace(shape.T * shape.N, 4 * shape.H));
  }

  S* folded;         // R∘uvᵀ [H,4·H]
  RowRange* ranges;  // [C]; token input only
  S* sums;           // of ColumnSums
  int64_t* list;     // [T·N]; token input only
};

// Back through time: gates become dz, dinitial_h and dinitial_c carry the recurrent gradients.
template <typename S>
[[nodiscard]] std::string BackwardSteps(const Rank1LstmBackwardArgs<S>& args, const S* folded,
                                        CudaStream stream, const CudaMatmul& matmul) {
  const int64_t N = args.shape.N, H = args.shape.H;
  const auto kernel = BackwardStepKernel<S>;
  const KernelLaunch launch = TilesLaunch("Rank1LstmBackwardStep", N, H, kernel, stream);
  std::string error = Copy(N * H, args.dfinal_h, args.dinitial_h, stream);
  if (error.empty()) error = Copy(N * H, args.dfinal_c, args.dinitial_c, stream);
  for (int64_t t = args.shape.T - 1; t >= 0 && error.empty(); --t) {
    const int64_t row = t * N;
    S* dz = args.gates + row * 4 * H;
    const S* c_prev = t > 0 ? args.cells + (row - N) * H : args.initial_c;
    const LstmGatesBackwardArgs<S> step{N,
                                        H,
                                        dz,
                                        c_prev,
                                        args.cells + row * H,
                                        args.dh + row * H,
                                        args.dinitial_h,
                                        args.dinitial_c};
    error = LaunchKernel(launch, kernel, step);
    if (!error.empty()) break;
    error = matmul.Run({N, 4 * H, H, false, /*transpose_b=*/true}, dz, folded, args.dinitial_h);
  }
  return error;
}

// dx = dz Wᵀ    dkernel = xᵀ dz    dbias = Σ dz
template <typename S>
[[nodiscard]] std::string DenseGradients(const Rank1LstmBackwardArgs<S>& args,
                                         const BackwardWorkspace<S>& workspace, CudaStream stream,
                                         const CudaMatmul& matmul) {
  const int64_t rows = args.shape.T * args.shape.N, C = args.shape.C, Z = 4 * args.shape.H;
  const S* dz = args.gates;
  std::string error =
      matmul.Run({rows, Z, C, false, /*transpose_b=*/true}, dz, args.input.kernel, args.dx);
  if (!error.empty()) return error;
  error = matmul.Run({C, rows, Z, /*transpose_a=*/true}, args.input.x, dz, args.dkernel);
  if (!error.empty()) return error;
  return ColumnSums("Rank1LstmBiasGradient", rows, Z, MatrixElement<S>{dz, Z}, args.dbias,
                    workspace.sums, stream);
}

template <typename S>
[[nodiscard]] std::string TableGradient(const Rank1LstmBackwardArgs<S>& args,
                                        const BackwardWorkspace<S>& workspace, CudaStream stream) {
  const int64_t rows = args.shape.T * args.shape.N, C = args.shape.C, Z = 4 * args.shape.H;
  const unsigned list_grid =
      GridForBlocks((C + kListWarps - 1) / kListWarps, ListRowsKernel, kListWarps * kWarp, 0);
  const std::string error =
      LaunchKernel({"Rank1LstmListRows", list_grid, dim3(kWarp, kListWarps), 0, stream},
                   ListRowsKernel, rows, C, args.input.tokens, workspace.ranges, workspace.list);
  if (!error.empty()) return error;
  const auto kernel = TableGradientKernel<S>;
  const unsigned grid = GridForBlocks(C * ColumnTiles(Z), kernel, kSumWarps * kWarp, 0);
  return LaunchKernel({"Rank1LstmTableGradient", grid, dim3(kWarp, kSumWarps), 0, stream}, kernel,
                      C, Z, workspace.ranges, workspace.list, args.gates, args.dtable);
}

template <typename S>
[[nodiscard]] std::string RecurrentGradients(const Rank1LstmBackwardArgs<S>& args,
                                             const BackwardWorkspace<S>& workspace,
                                             CudaStream stream, const CudaMatmul& matmul) {
  const int64_t T = args.shape.T, N = args.shape.N, H = args.shape.H, Z = 4 * H;
  const S* dz = args.gates;
  S* G = args.drecurrent_kernel;
  // The first step's rows of dz belong to initial_h, those of a later step to h one step before.
  std::string error =
      matmul.Run({H, T > 0 ? N : 0, Z, /*transpose_a=*/true}, args.initial_h, dz, G);
  if (T > 1 && error.empty()) {
    error = matmul.Run({H, (T - 1) * N, Z, /*transpose_a=*/true, false, /*add=*/true}, args.h,
                       dz + N * Z, G);
  }
  if (!error.empty()) return error;
  const auto kernel = RowFactorGradientKernel<S>;
  const unsigned grid = GridForBlocks(H, kernel, kRowThreads, 0);
  error = LaunchKernel({"Rank1LstmRowFactorGradient", grid, kRowThreads, 0, stream}, kernel, H, G,
                       args.recurrent_kernel, args.v, args.du);
  if (!error.empty()) return error;
  const ColumnFactorGradient<S> gradient{H, args.recurrent_kernel, args.u, args.v, G};
  return ColumnSums("Rank1LstmColumnFactorGradient", H, Z, gradient, args.dv, workspace.sums,
                    stream);
}

}  // namespace

int64_t Rank1LstmForwardWorkspaceGpu(const Rank1LstmShape& s, LstmInputForm form, bool training) {
  return 4 * s.H * (s.H + (training ? 0 : StepsInMemory(s, form, training) * s.N));
}

int64_t Rank1LstmBackwardWorkspaceGpu(const Rank1LstmShape& s, LstmInputForm form) {
  // In elements of the smaller type.
  constexpr int64_t kOfRange = sizeof(RowRange) / sizeof(float);
  constexpr int64_t kOfRow = sizeof(int64_t) / sizeof(float);
  return 4 * s.H * s.H + BackwardWorkspace<float>::ColumnSumsElements(s, form) +
         (form == LstmInputForm::kTokens ? kOfRange * s.C + kOfRow * s.T * s.N : 0);
}

template <typename Scalar>
std::string Rank1LstmForwardGpu(const Rank1LstmForwardArgs<Scalar>& args, CudaStream stream,
                                const CudaMatmul& matmul) {
  const int64_t T = args.shape.T, N = args.shape.N, C = args.shape.C, H = args.shape.H, Z = 4 * H;
  const Rank1LstmInput<Scalar>& in = args.input;
  const bool dense = in.form == LstmInputForm::kDense, training = args.gates != nullptr;
  Scalar* folded = args.workspace;                                 // R∘uvᵀ [H,4·H]
  Scalar* all_z = training ? args.gates : args.workspace + H * Z;  // [steps,N,4·H]
  const int64_t steps = StepsInMemory(args.shape, in.form, training);

  std::string error = Fold(H, args.recurrent_kernel, args.u, args.v, folded, stream);
  const auto kernel = ForwardStepKernel<Scalar>;
  const KernelLaunch launch = TilesLaunch("Rank1LstmForwardStep", N, H, kernel, stream);
  const Scalar *h_prev = args.initial_h, *c_prev = args.initial_c;
  for (int64_t t = 0; t < T && error.empty(); ++t) {
    const int64_t row = t * N;
    Scalar* z = all_z + t % steps * N * Z;
    if (dense && t % steps == 0) {
      error = matmul.Run({std::min(steps, T - t) * N, C, Z}, in.x + row * C, in.kernel, z);
      if (!error.empty()) break;
    }
    error = matmul.Run({N, H, Z, false, false, /*add=*/dense}, h_prev, folded, z);
    if (!error.empty()) break;
    Scalar* c = training ? args.cells + row * H : args.final_c;
    Scalar* h = args.h + row * H;
    const LstmGatesForwardArgs<Scalar> step{
        N,      H, z, training, dense ? in.bias : in.table, dense ? nullptr : in.tokens + row,
        c_prev, c, h};
    error = LaunchKernel(launch, kernel, step, dense ? 1 : C);
    h_prev = h;
    c_prev = c;
  }
  if (error.empty()) error = Copy(N * H, h_prev, args.final_h, stream);
  if (error.empty() && c_prev != args.final_c) error = Copy(N * H, c_prev, args.final_c, stream);
  return error;
}

template <typename Scalar>
std::string Rank1LstmBackwardGpu(const Rank1LstmBackwardArgs<Scalar>& args, CudaStream stream,
                                 const CudaMatmul& matmul) {
  const BackwardWorkspace<Scalar> workspace(args);
  std::string error =
      Fold(args.shape.H, args.recurrent_kernel, args.u, args.v, workspace.folded, stream);
  if (error.empty()) error = BackwardSteps(args, workspace.folded, stream, matmul);
  if (!error.empty()) return error;
  error = args.input.form == LstmInputForm::kDense ? DenseGradients(args, workspace, stream, matmul)
                                                   : TableGradient(args, workspace, stream);
  if (!error.empty()) return error;
  return RecurrentGradients(args, workspace, stream, matmul);
}

#define LATE_PHASE_INSTANTIATE(T)                                                        \
  template std::string Rank1LstmForwardGpu(const Rank1LstmForwardArgs<T>&, CudaStream,   \
                                           const CudaMatmul&);                           \
  template std::string Rank1LstmBackwardGpu(const Rank1LstmBackwardArgs<T>&, CudaStream, \
                                            const CudaMatmul&)
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

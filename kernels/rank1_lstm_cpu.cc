// How the work is divided:
//   1. pack R∘uvᵀ (and W) into panels: one task per panel;
//   2. the time loop: one task per slice of the batch, which goes through all steps alone, so no
//   step waits for another thread;
//   3. backward only, the weight gradients: one task per block of the 4·H columns, over all T·N
//   rows.
// The divisions of 2. and 3. follow the thread count, and the order of a few sums follows them, so
// another count changes only the rounding.
#include <algorithm>

#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/lstm_gates.h"
#include "kernels/cpu/matmul.h"
#include "kernels/rank1_lstm.h"

namespace late_phase {
namespace {

// With fewer rows than this per thread, reading the packed weights costs more than another thread
// gains.
constexpr int64_t kMinSliceRows = 8;
// Weight gradients: the rows of h and dz in one product, and the widest block of columns.
// With 500 units and floats the operands (h and dz, 250 kB each) and the accumulators (1 MB) share
// a second-level cache; measured, twice the width of a block saves more reads of h than it loses to
// the third level.
constexpr int64_t kChunkRows = 128;
constexpr int64_t kMaxBlockPanels = 16;

int64_t SliceCount(const Rank1LstmShape& s, const Parallel& parallel) {
  return std::clamp<int64_t>(s.N / kMinSliceRows, 1, std::max(1, parallel.threads));
}

// panel[k, n] *= row_scale[k] · column_scale[n]
template <typename Scalar>
void ScalePanel(int64_t rows, int64_t columns, const Scalar* row_scale, const Scalar* column_scale,
                Scalar* panel) {
  for (int64_t k = 0; k < rows; ++k) {
    for (int64_t n = 0; n < columns; ++n) panel[k * columns + n] *= row_scale[k] * column_scale[n];
  }
}

template <typename Scalar>
class Forward {
 public:
  Forward(const Rank1LstmForwardArgs<Scalar>& args, const Parallel& parallel)
      : args_(args), shape_(args.shape), Z_(4 * args.shape.H), parallel_(parallel) {
    packed_recurrent_ = args.workspace;
    packed_kernel_ = packed_recurrent_ + shape_.H * Z_;
    z_ = packed_kernel_ + (Dense() ? shape_.C * Z_ : 0);
  }

  void Run() {
    parallel_.run(PanelCount(Z_), [this](int64_t panel) { Pack(panel); });
    const int64_t slices = SliceCount(shape_, parallel_);
    parallel_.run(slices, [&](int64_t i) { Steps(Slice(shape_.N, slices, i)); });
  }

 private:
  bool Dense() const { return args_.input.form == LstmInputForm::kDense; }
  bool Training() const { return args_.gates != nullptr; }

  void Pack(int64_t panel) {
    Scalar* packed = packed_recurrent_ + PanelOffset(shape_.H, panel);
    PackPanel(args_.recurrent_kernel, Z_, shape_.H, Z_, panel, packed);
    ScalePanel(shape_.H, PanelColumns(Z_, panel), args_.u, args_.v + panel * kPanelWidth, packed);
    if (Dense()) {
      PackPanel(args_.input.kernel, Z_, shape_.C, Z_, panel,
                packed_kernel_ + PanelOffset(shape_.C, panel));
    }
  }

  void Steps(const Slice& slice) {
    const int64_t T = shape_.T, N = shape_.N, C = shape_.C, H = shape_.H, rows = slice.size();
    const Matmul<Scalar> input({rows, C, Z_, C, Z_, /*transpose_a=*/false, /*add=*/true});
    const Matmul<Scalar> recurrent({rows, H, Z_, H, Z_, /*transpose_a=*/false, /*add=*/false});
    const Rank1LstmInput<Scalar>& in = args_.input;
    const Scalar* h_prev = args_.initial_h + slice.begin * H;
    const Scalar* c_prev = args_.initial_c + slice.begin * H;
    Scalar* final_c = args_.final_c + slice.begin * H;
    for (int64_t t = 0; t < T; ++t) {
      const int64_t row = t * N + slice.begin;
      Scalar* z = Training() ? args_.gates + row * Z_ : z_ + slice.begin * Z_;
      Scalar* c = Training() ? args_.cells + row * H : final_c;
      Scalar* h = args_.h + row * H;
      recurrent.Run(h_prev, packed_recurrent_, z);
      if (Dense()) input.Run(in.x + row * C, packed_kernel_, z);
      LstmGatesForward<Scalar>({rows, H, z, Training(), Dense() ? in.bias : in.table,
                                Dense() ? nullptr : in.tokens + row, c_prev, c, h});
      h_prev = h;
      c_prev = c;
    }
    std::copy_n(h_prev, rows * H, args_.final_h + slice.begin * H);
    if (c_prev != final_c) std::copy_n(c_prev, rows * H, final_c);
  }

  const Rank1LstmForwardArgs<Scalar>& args_;
  const Rank1LstmShape& shape_;
  const int64_t Z_;  // 4·H, the width of z
  const Parallel& parallel_;
  Scalar* packed_recurrent_;  // R∘uvᵀ [H,4·H]
  Scalar* packed_kernel_;     // W [C,4·H]; dense input only
  Scalar* z_;                 // [N,4·H]; inference only
};

template <typename Scalar>
class Backward {
 public:
  Backward(const Rank1LstmBackwardArgs<Scalar>& args, const Parallel& parallel)
      : args_(args), shape_(args.shape), Z_(4 * args.shape.H), parallel_(parallel) {
    packed_recurrent_ = args.workspace;
    packed_kernel_ = packed_recurrent_ + Z_ * shape_.H;
    packed_dz_ = packed_kernel_ + (Dense() ? Z_ * shape_.C : 0);
    du_ = packed_dz_ + kChunkRows * Z_;
  }

  void Run() {
    const int64_t H = shape_.H, C = shape_.C;
    parallel_.run(PanelCount(H), [&](int64_t panel) {
      Scalar* packed = packed_recurrent_ + PanelOffset(Z_, panel);
      PackPanelOfTranspose(args_.recurrent_kernel, Z_, Z_, H, panel, packed);
      ScalePanel(Z_, PanelColumns(H, panel), args_.v, args_.u + panel * kPanelWidth, packed);
    });
    if (Dense()) {
      parallel_.run(PanelCount(C), [&](int64_t panel) {
        PackPanelOfTranspose(args_.input.kernel, Z_, Z_, C, panel,
                             packed_kernel_ + PanelOffset(Z_, panel));
      });
    }
    const int64_t slices = SliceCount(shape_, parallel_);
    parallel_.run(slices, [&](int64_t i) { Steps(Slice(shape_.N, slices, i)); });

    // At least one block per thread, however few columns it gets.
    const int64_t panels = PanelCount(Z_);
    const int64_t least = std::min<int64_t>(panels, std::max(1, parallel_.threads));
    const int64_t blocks = std::max((panels + kMaxBlockPanels - 1) / kMaxBlockPanels, least);
    parallel_.run(blocks, [&](int64_t i) { WeightGradients(i, Slice(panels, blocks, i)); });
    std::fill_n(args_.du, H, Scalar(0));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < H; ++i) args_.du[i] += du_[block * H + i];
    }
  }

 private:
  bool Dense() const { return args_.input.form == LstmInputForm::kDense; }

  // Back through time for a slice of the batch: gates become dz, dinitial_h and dinitial_c carry
  // the recurrent gradients.
  void Steps(const Slice& slice) {
    const int64_t N = shape_.N, C = shape_.C, H = shape_.H, rows = slice.size();
    const Matmul<Scalar> input({rows, Z_, C, Z_, C, /*transpose_a=*/false, /*add=*/false});
    const Matmul<Scalar> recurrent({rows, Z_, H, Z_, H, /*transpose_a=*/false, /*add=*/false});
    Scalar* dh_rec = args_.dinitial_h + slice.begin * H;
    Scalar* dc = args_.dinitial_c + slice.begin * H;
    std::copy_n(args_.dfinal_h + slice.begin * H, rows * H, dh_rec);
    std::copy_n(args_.dfinal_c + slice.begin * H, rows * H, dc);
    for (int64_t t = shape_.T - 1; t >= 0; --t) {
      const int64_t row = t * N + slice.begin;
      Scalar* dz = args_.gates + row * Z_;
      const Scalar* c_prev =
          t > 0 ? args_.cells + (row - N) * H : args_.initial_c + slice.begin * H;
      LstmGatesBackward<Scalar>(
          {rows, H, dz, c_prev, args_.cells + row * H, args_.dh + row * H, dh_rec, dc});
      recurrent.Run(dz, packed_recurrent_, dh_rec);
      if (Dense()) input.Run(dz, packed_kernel_, args_.dx + row * C);
    }
  }

  // All weight gradients of one block of columns. With G = Σ_t h_{t−1}ᵀ dz_t, the gradient of
  // R∘uvᵀ:
  //   dR = G ∘ uvᵀ    du = (G ∘ R) v    dv = (G ∘ R)ᵀ u
  void WeightGradients(int64_t block, const Slice& panels) {
    const int64_t N = shape_.N, C = shape_.C, H = shape_.H;
    const int64_t begin = panels.begin * kPanelWidth, end = std::min(panels.end * kPanelWidth, Z_);

    ZeroColumns(args_.drecurrent_kernel, H, begin, end);
    if (Dense()) {
      ZeroColumns(args_.dkernel, C, begin, end);
      std::fill(args_.dbias + begin, args_.dbias + end, Scalar(0));
    } else {
      ZeroColumns(args_.dtable, C, begin, end);
    }
    // Row r of dz belongs to row r − N of h; the first N rows to initial_h.
    const int64_t all = shape_.T * N;
    for (int64_t row = 0; row < all;) {
      const int64_t rows = std::min(kChunkRows, (row < N ? N : all) - row);
      const Scalar* h_prev = row < N ? args_.initial_h + row * H : args_.h + (row - N) * H;
      Chunk(row, rows, h_prev, panels);
      row += rows;
    }

    Scalar* du = du_ + block * H;
    std::fill_n(du, H, Scalar(0));
    std::fill(args_.dv + begin, args_.dv + end, Scalar(0));
    for (int64_t i = 0; i < H; ++i) {
      Scalar* g = args_.drecurrent_kernel + i * Z_;
      const Scalar* r = args_.recurrent_kernel + i * Z_;
      for (int64_t j = begin; j < end; ++j) {
        du[i] += g[j] * r[j] * args_.v[j];
        args_.dv[j] += g[j] * r[j] * args_.u[i];
        g[j] *= args_.u[i] * args_.v[j];
      }
    }
  }

  void ZeroColumns(Scalar* matrix, int64_t rows, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rows; ++i) {
      std::fill(matrix + i * Z_ + begin, matrix + i * Z_ + end, Scalar(0));
    }
  }

  // Adds what `rows` rows of dz, starting at `row`, give to the columns of the given panels.
  void Chunk(int64_t row, int64_t rows, const Scalar* h_prev, const Slice& panels) {
    const int64_t C = shape_.C, H = shape_.H, first = panels.begin, last = panels.end;
    const int64_t begin = first * kPanelWidth, end = std::min(last * kPanelWidth, Z_);
    // One pass over dz, which comes from memory. It is packed because its rows are 4·H apart, for
    // many H a multiple of the page size, of which a cache keeps only a few.
    Scalar* packed = packed_dz_ + PanelOffset(kChunkRows, first);
    Scalar sum[kMaxBlockPanels * kPanelWidth] = {};
    PackAndAddGradientRows<Scalar>({rows, args_.gates + row * Z_ + begin, Z_, end - begin,
                                    kPanelWidth, packed, Dense() ? sum : args_.dtable + begin, Z_,
                                    Dense() ? nullptr : args_.input.tokens + row});
    for (int64_t j = begin; j < end && Dense(); ++j) args_.dbias[j] += sum[j - begin];

    const Matmul<Scalar> recurrent({H, rows, Z_, H, Z_, /*transpose_a=*/true, /*add=*/true});
    const Matmul<Scalar> input({C, rows, Z_, C, Z_, /*transpose_a=*/true, /*add=*/true});
    for (int64_t panel = first; panel < last; ++panel) {
      const Scalar* packed_panel = packed + PanelOffset(rows, panel - first);
      recurrent.RunPanel(panel, h_prev, packed_panel, args_.drecurrent_kernel);
      if (Dense()) input.RunPanel(panel, args_.input.x + row * C, packed_panel, args_.dkernel);
    }
  }

  const Rank1LstmBackwardArgs<Scalar>& args_;
  const Rank1LstmShape& shape_;
  const int64_t Z_;  // 4·H, the width of z
  const Parallel& parallel_;
  Scalar* packed_recurrent_;  // (R∘uvᵀ)ᵀ [4·H,H]
  Scalar* packed_kernel_;     // Wᵀ [4·H,C]; dense input only
  Scalar* packed_dz_;         // [kChunkRows,4·H]
  Scalar* du_;                // [panels,H], the blocks' shares of du in the first rows
};

}  // namespace

int64_t Rank1LstmForwardWorkspace(const Rank1LstmShape& s, LstmInputForm form, bool training) {
  return 4 * s.H * (s.H + (form == LstmInputForm::kDense ? s.C : 0) + (training ? 0 : s.N));
}

int64_t Rank1LstmBackwardWorkspace(const Rank1LstmShape& s, LstmInputForm form) {
  return 4 * s.H * (s.H + (form == LstmInputForm::kDense ? s.C : 0) + kChunkRows) +
         PanelCount(4 * s.H) * s.H;
}

template <typename Scalar>
void Rank1LstmForwardCpu(const Rank1LstmForwardArgs<Scalar>& args, const Parallel& parallel) {
  Forward<Scalar>(args, parallel).Run();
}

template <typename Scalar>
void Rank1LstmBackwardCpu(const Rank1LstmBackwardArgs<Scalar>& args, const Parallel& parallel) {
  Backward<Scalar>(args, parallel).Run();
}

template void Rank1LstmForwardCpu(const Rank1LstmForwardArgs<float>&, const Parallel&);
template void Rank1LstmForwardCpu(const Rank1LstmForwardArgs<double>&, const Parallel&);
template void Rank1LstmBackwardCpu(const Rank1LstmBackwardArgs<float>&, const Parallel&);
template void Rank1LstmBackwardCpu(const Rank1LstmBackwardArgs<double>&, const Parallel&);

}  // namespace late_phase

#include "kernels/cpu/matmul.h"

#include <libxsmm.h>

#include <limits>

#include "kernels/cpu/cpu_target.h"

namespace late_phase {
namespace {

// libxsmm is column-major, we are row-major. Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ, so the
// panel is its first operand.
template <typename T, typename Dispatch>
auto Generate(const MatmulShape& s, int64_t columns, Dispatch dispatch)
    -> void (*)(const T*, const T*, T*) {
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  if (s.M == 0 || s.K == 0 || columns == 0 || std::max({s.M, s.K, s.lda, s.ldc}) > kMax) {
    return nullptr;
  }
  const int ld_panel = static_cast<int>(columns), lda = static_cast<int>(s.lda),
            ldc = static_cast<int>(s.ldc);
  const T alpha = 1, beta = s.add ? 1 : 0;
  const int flags = s.transpose_a ? LIBXSMM_GEMM_FLAG_TRANS_B : LIBXSMM_GEMM_FLAG_NONE;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  auto kernel = dispatch(static_cast<int>(columns), static_cast<int>(s.M), static_cast<int>(s.K),
                         &ld_panel, &lda, &ldc, &alpha, &beta, &flags, &prefetch);
  // libxsmm's type has a trailing "..." for prefetch addresses, which these kernels do not take.
  return reinterpret_cast<void (*)(const T*, const T*, T*)>(kernel);
}

auto GenerateFor(const MatmulShape& s, int64_t columns, float) {
  return Generate<float>(s, columns, libxsmm_smmdispatch);
}
auto GenerateFor(const MatmulShape& s, int64_t columns, double) {
  return Generate<double>(s, columns, libxsmm_dmmdispatch);
}

// C[:, :columns] (+)= A·panel, where there is no generated kernel.
template <typename T>
void PortablePanel(const MatmulShape& s, int64_t columns, const T* a, const T* panel, T* c) {
  const int64_t row_stride = s.transpose_a ? 1 : s.lda, column_stride = s.transpose_a ? s.lda : 1;
  for (int64_t m = 0; m < s.M; ++m) {
    T sum[kPanelWidth] = {};
    for (int64_t k = 0; k < s.K; ++k) {
      const T scale = a[m * row_stride + k * column_stride];
      const T* row = panel + k * columns;
      for (int64_t n = 0; n < columns; ++n) sum[n] += scale * row[n];
    }
    T* out = c + m * s.ldc;
    for (int64_t n = 0; n < columns; ++n) out[n] = s.add ? out[n] + sum[n] : sum[n];
  }
}

}  // namespace

template <typename T>
void PackPanel(const T* b, int64_t ldb, int64_t K, int64_t N, int64_t panel, T* packed_panel) {
  const int64_t columns = PanelColumns(N, panel);
  const T* from = b + panel * kPanelWidth;
  for (int64_t k = 0; k < K; ++k) {
    CopyPanelRow(from + k * ldb, columns, packed_panel + k * columns);
  }
}

template <typename T>
void PackPanelOfTranspose(const T* b, int64_t ldb, int64_t K, int64_t N, int64_t panel,
                          T* packed_panel) {
  const int64_t columns = PanelColumns(N, panel);
  const T* from = b + panel * kPanelWidth * ldb;
  // In blocks of one cache line per row, so that each line is read once.
  constexpr int64_t kBlock = 64 / sizeof(T);
  for (int64_t k0 = 0; k0 < K; k0 += kBlock) {
    const int64_t k1 = std::min(K, k0 + kBlock);
    for (int64_t n = 0; n < columns; ++n) {
      for (int64_t k = k0; k < k1; ++k) packed_panel[k * columns + n] = from[n * ldb + k];
    }
  }
}

template <typename T>
Matmul<T>::Matmul(const MatmulShape& shape) : shape_(shape) {
  if (ChosenCpuTarget() == CpuTarget::kBaseline) return;
  if (shape.N >= kPanelWidth) full_ = GenerateFor(shape, kPanelWidth, T());
  if (shape.N % kPanelWidth != 0) last_ = GenerateFor(shape, shape.N % kPanelWidth, T());
}

template <typename T>
void Matmul<T>::RunPanel(int64_t panel, const T* a, const T* packed_panel, T* c) const {
  const int64_t columns = PanelColumns(shape_.N, panel);
  const Kernel kernel = columns == kPanelWidth ? full_ : last_;
  c += panel * kPanelWidth;
  if (kernel != nullptr) {
    kernel(packed_panel, a, c);
  } else {
    PortablePanel(shape_, columns, a, packed_panel, c);
  }
}

template <typename T>
void Matmul<T>::Run(const T* a, const T* packed_b, T* c) const {
  for (int64_t panel = 0; panel < PanelCount(shape_.N); ++panel) {
    RunPanel(panel, a, packed_b + PanelOffset(shape_.K, panel), c);
  }
}

#define LATE_PHASE_INSTANTIATE(T)                                                          \
  template void PackPanel<T>(const T*, int64_t, int64_t, int64_t, int64_t, T*);            \
  template void PackPanelOfTranspose<T>(const T*, int64_t, int64_t, int64_t, int64_t, T*); \
  template class Matmul<T>
LATE_PHASE_INSTANTIATE(float);
LATE_PHASE_INSTANTIATE(double);
#undef LATE_PHASE_INSTANTIATE

}  // namespace late_phase

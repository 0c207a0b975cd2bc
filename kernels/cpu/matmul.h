// Matrix products of the CPU cores: C (+)= A·B where B is packed once and then multiplied many
// times.
//
// A recurrent network multiplies the same weights at every time step, so the usual packing of B
// inside each product, a copy of the whole matrix per step, is done once per call here. The inner
// kernels are libxsmm's, generated at run time for the machine (docs/benchmarks.md has the
// comparison with OpenBLAS, oneDNN and Eigen); without AVX2, portable loops take their place.
// Single-threaded: the caller divides the work. The order in which an element of C is summed
// depends only on the shape.
#ifndef LATE_PHASE_KERNELS_CPU_MATMUL_H_
#define LATE_PHASE_KERNELS_CPU_MATMUL_H_

#include <algorithm>
#include <cstdint>

namespace late_phase {

// Panels: B [K, N] cut into blocks of kPanelWidth columns (the last one narrower), each block
// stored row by row without gaps, one block after the other. K·N elements in total.
constexpr int64_t kPanelWidth = 32;

inline int64_t PanelCount(int64_t N) { return (N + kPanelWidth - 1) / kPanelWidth; }
inline int64_t PanelColumns(int64_t N, int64_t panel) {
  return std::min(kPanelWidth, N - panel * kPanelWidth);
}
// Where the panel starts inside the packed matrix.
inline int64_t PanelOffset(int64_t K, int64_t panel) { return K * panel * kPanelWidth; }

// Copies one row of a panel. Nearly all are of full width, and a copy of constant size is a few
// instructions, not a call.
template <typename T>
inline void CopyPanelRow(const T* from, int64_t columns, T* to) {
  if (columns == kPanelWidth) {
    std::copy_n(from, kPanelWidth, to);
  } else {
    std::copy_n(from, columns, to);
  }
}

// Packs one panel of B, given as b [K, N] with rows `ldb` elements apart.
template <typename T>
void PackPanel(const T* b, int64_t ldb, int64_t K, int64_t N, int64_t panel, T* packed_panel);

// Packs one panel of Bᵀ [K, N], given as b [N, K] with rows `ldb` elements apart.
template <typename T>
void PackPanelOfTranspose(const T* b, int64_t ldb, int64_t K, int64_t N, int64_t panel,
                          T* packed_panel);

struct MatmulShape {
  int64_t M, K, N;
  int64_t lda;       // elements between the rows of A as stored
  int64_t ldc;       // elements between the rows of C
  bool transpose_a;  // A is stored [K, M] instead of [M, K]
  bool add;          // C += A·B instead of C = A·B
};

// A product of fixed shape, ready to run any number of times from any thread. Cheap to construct (a
// look-up) after the first of its shape in the process.
template <typename T>
class Matmul {
 public:
  explicit Matmul(const MatmulShape& shape);

  // All of C [M, N]. `packed_b` holds every panel.
  void Run(const T* a, const T* packed_b, T* c) const;
  // The columns of one panel: `c` points to C's element (0, 0).
  void RunPanel(int64_t panel, const T* a, const T* packed_panel, T* c) const;

 private:
  using Kernel = void (*)(const T* panel, const T* a, T* c);
  MatmulShape shape_;
  Kernel full_ = nullptr;  // panels of kPanelWidth columns; null: portable loops
  Kernel last_ = nullptr;  // the last, narrower panel
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_MATMUL_H_

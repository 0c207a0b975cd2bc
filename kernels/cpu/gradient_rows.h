// Prepares rows of dz for the weight gradients: one pass over them packs the panels of the product
// and adds up the rows.
#ifndef LATE_PHASE_KERNELS_CPU_GRADIENT_ROWS_H_
#define LATE_PHASE_KERNELS_CPU_GRADIENT_ROWS_H_

#include <cstdint>

namespace late_phase {

template <typename T>
struct GradientRowsArgs {
  int64_t rows;
  const T* dz;  // [rows, columns], rows `stride` elements apart
  int64_t stride;
  int64_t columns;
  int64_t panel_width;  // the columns are cut into panels of this width, the last one narrower
  T* packed;            // out: panel after panel, each [rows, its width] without gaps
  T* sums;  // [·, columns], rows `sums_stride` elements apart: row tokens[r] gets row r of dz
            // added, or row 0; or null
  int64_t sums_stride;
  const int32_t* tokens;      // [rows] or null
  const T* scales = nullptr;  // [rows] or null: row r of dz is first multiplied by scales[r]
  int64_t padding = 0;        // this many columns of zeros are packed after the last one
};

template <typename T>
void PackAndAddGradientRows(const GradientRowsArgs<T>& args);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_GRADIENT_ROWS_H_

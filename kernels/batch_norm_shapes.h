// Shapes of the batch normalisation ops: what the graph checks and what the kernels check. In the
// order of the signatures.
#ifndef LATE_PHASE_KERNELS_BATCH_NORM_SHAPES_H_
#define LATE_PHASE_KERNELS_BATCH_NORM_SHAPES_H_

#include <array>

#include "kernels/shape_rules.h"

namespace late_phase {

// The shape of x and of arrays like it; `rank` is its rank, or anything but 2 and 4 if unknown.
constexpr const char* BatchNormImageShape(int rank, bool channels_first) {
  if (rank == 2) return "[batch, channels]";
  if (channels_first) {
    return rank == 4 ? "[batch, channels, height, width]"
                     : "[batch, channels] or [batch, channels, height, width]";
  }
  return rank == 4 ? "[batch, height, width, channels]"
                   : "[batch, channels] or [batch, height, width, channels]";
}

constexpr std::array<ShapeRule, 6> BatchNormInputs(bool channels_first) {
  return {{
      {"x", BatchNormImageShape(0, channels_first)},
      {"scale", "[K>=1, channels]"},
      {"offset", "[K, channels]"},
      {"mean", "[K, channels]"},
      {"variance", "[K, channels]"},
      {"member", "[]"},
  }};
}
// All but the first, y, which has the shape of x.
inline constexpr const char* kBatchNormFurtherOutputs[] = {
    "[channels]",  // running_mean
    "[channels]",  // running_variance
    "[channels]",  // saved_mean
    "[channels]",  // saved_mean_rest
    "[channels]",  // saved_inv_std
};

// `rank` is that of x.
constexpr std::array<ShapeRule, 8> BatchNormGradInputs(int rank, bool channels_first) {
  return {{
      {"x", BatchNormImageShape(0, channels_first)},
      {"scale", "[K>=1, channels]"},
      {"offset", "[K, channels]"},
      {"member", "[]"},
      {"saved_mean", "[channels]"},
      {"saved_mean_rest", "[channels]"},
      {"saved_inv_std", "[channels]"},
      {"dy", BatchNormImageShape(rank, channels_first)},
  }};
}
// All but the first, dx.
inline constexpr const char* kBatchNormGradFurtherOutputs[] = {
    "[K, channels]",  // dscale
    "[K, channels]",  // doffset
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_BATCH_NORM_SHAPES_H_

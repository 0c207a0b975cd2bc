// Shapes of the softmax cross-entropy ops: what the graph checks and what the kernels check. In the
// order of the signatures.
#ifndef LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_SHAPES_H_
#define LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_SHAPES_H_

#include "kernels/shape_rules.h"

namespace late_phase {

inline constexpr ShapeRule kSoftmaxCrossEntropyInputs[] = {
    {"features", "[n, units]"},
    {"kernel", "[units, vocab>=1]"},
    {"bias", "[vocab]"},
    {"labels", "[n]"},
};
inline constexpr ShapeRule kSoftmaxCrossEntropyOutputs[] = {
    {"loss", "[n]"},
    {"dlogits", "[n, vocab]"},
};

inline constexpr ShapeRule kSoftmaxCrossEntropyGradInputs[] = {
    {"features", "[n, units]"},
    {"kernel", "[units, vocab>=1]"},
    {"dlogits", "[n, vocab]"},
    {"dloss", "[n]"},
};
inline constexpr ShapeRule kSoftmaxCrossEntropyGradOutputs[] = {
    {"dfeatures", "[n, units]"},
    {"dkernel", "[units, vocab]"},
    {"dbias", "[vocab]"},
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_SOFTMAX_CROSS_ENTROPY_SHAPES_H_

// Shapes of the rank-1 LSTM ops: what the graph checks and what the kernels check. In the order of
// the signatures.
#ifndef LATE_PHASE_KERNELS_RANK1_LSTM_SHAPES_H_
#define LATE_PHASE_KERNELS_RANK1_LSTM_SHAPES_H_

#include "kernels/shape_rules.h"

namespace late_phase {

inline constexpr ShapeRule kRank1LstmInputs[] = {
    {"x", "[time, batch, input]"},
    {"initial_h", "[batch, units>=1]"},
    {"initial_c", "[batch, units]"},
    {"kernel", "[input, 4*units]"},
    {"recurrent_kernel", "[units, 4*units]"},
    {"bias", "[4*units]"},
    {"u", "[K>=1, units]"},
    {"v", "[K, 4*units]"},
    {"member", "[]"},
};
inline constexpr ShapeRule kRank1LstmTokensInputs[] = {
    {"tokens", "[time, batch]"},
    {"table", "[vocab, 4*units>=1]"},
    {"initial_h", "[batch, units]"},
    {"initial_c", "[batch, units]"},
    {"recurrent_kernel", "[units, 4*units]"},
    {"u", "[K>=1, units]"},
    {"v", "[K, 4*units]"},
    {"member", "[]"},
};
// Of both forms; `gates` and `cells` are [0, 0, 0] in inference.
inline constexpr ShapeRule kRank1LstmOutputs[] = {
    {"h", "[time, batch, units]"},     {"final_h", "[batch, units]"},
    {"final_c", "[batch, units]"},     {"gates", "[time, batch, 4*units]"},
    {"cells", "[time, batch, units]"},
};

inline constexpr ShapeRule kRank1LstmGradInputs[] = {
    {"x", "[time, batch, input]"},
    {"initial_h", "[batch, units>=1]"},
    {"initial_c", "[batch, units]"},
    {"kernel", "[input, 4*units]"},
    {"recurrent_kernel", "[units, 4*units]"},
    {"u", "[K>=1, units]"},
    {"v", "[K, 4*units]"},
    {"member", "[]"},
    {"h", "[time, batch, units]"},
    {"gates", "[time, batch, 4*units]"},
    {"cells", "[time, batch, units]"},
    {"dh", "[time, batch, units]"},
    {"dfinal_h", "[batch, units]"},
    {"dfinal_c", "[batch, units]"},
};
inline constexpr ShapeRule kRank1LstmGradOutputs[] = {
    {"dx", "[time, batch, input]"},
    {"dinitial_h", "[batch, units]"},
    {"dinitial_c", "[batch, units]"},
    {"dkernel", "[input, 4*units]"},
    {"drecurrent_kernel", "[units, 4*units]"},
    {"dbias", "[4*units]"},
    {"du", "[K, units]"},
    {"dv", "[K, 4*units]"},
};

inline constexpr ShapeRule kRank1LstmTokensGradInputs[] = {
    {"tokens", "[time, batch]"},
    {"table", "[vocab, 4*units>=1]"},
    {"initial_h", "[batch, units]"},
    {"initial_c", "[batch, units]"},
    {"recurrent_kernel", "[units, 4*units]"},
    {"u", "[K>=1, units]"},
    {"v", "[K, 4*units]"},
    {"member", "[]"},
    {"h", "[time, batch, units]"},
    {"gates", "[time, batch, 4*units]"},
    {"cells", "[time, batch, units]"},
    {"dh", "[time, batch, units]"},
    {"dfinal_h", "[batch, units]"},
    {"dfinal_c", "[batch, units]"},
};
inline constexpr ShapeRule kRank1LstmTokensGradOutputs[] = {
    {"dtable", "[vocab, 4*units]"},
    {"dinitial_h", "[batch, units]"},
    {"dinitial_c", "[batch, units]"},
    {"drecurrent_kernel", "[units, 4*units]"},
    {"du", "[K, units]"},
    {"dv", "[K, 4*units]"},
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_RANK1_LSTM_SHAPES_H_

// Averages of the weights over time: SWA, and the further moments of SWAG (optimizers/swag.h).
#ifndef LATE_PHASE_OPTIMIZERS_AVERAGES_H_
#define LATE_PHASE_OPTIMIZERS_AVERAGES_H_

#include "absl/types/span.h"
#include "optimizers/graph_context.h"
#include "optimizers/trained_weights.h"
#include "optimizers/variables.h"

namespace late_phase {

// The number of samples, a variable int64 [].
inline constexpr char kSampleCount[] = "late_phase/swa_count";

// Takes a sample of every weight into its average. Declares the averages NAME/swa and the count,
// and for SWAG, with w̄ the average so far: NAME/swa_square, the mean of squares, and
// NAME/swag_deviations [R, …], the last R deviations w − w̄, a ring indexed by the sample's number.
tensorflow::Operation TakeSample(const GraphContext& graph, absl::Span<TrainedWeight> weights,
                                 Variables* variables);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_AVERAGES_H_

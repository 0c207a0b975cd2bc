// How a minibatch changes the weights: U_θ and U_φ of Algorithm 1 in the graph.
#ifndef LATE_PHASE_OPTIMIZERS_UPDATES_H_
#define LATE_PHASE_OPTIMIZERS_UPDATES_H_

#include <vector>

#include "absl/types/span.h"
#include "optimizers/graph_context.h"
#include "optimizers/trained_weights.h"
#include "optimizers/update_rule.h"
#include "optimizers/variables.h"

namespace late_phase {

// g · clip / max(‖g‖, clip), ‖g‖ over all gradients of the minibatch.
std::vector<tensorflow::Output> ClipGradients(const GraphContext& graph, const TrainingClock& clock,
                                              absl::Span<const TrainedWeight> weights,
                                              absl::Span<const tensorflow::Output> gradients);

// A rule and its numbers in the graph, the same for all weights that follow it.
struct RuleInGraph {
  // base: whether the settings for the base's steps apply.
  RuleInGraph(const GraphContext& graph, const TrainingClock& clock, const UpdateRule& rule,
              bool base);

  UpdateRule rule;
  tensorflow::Output lr, decay, scale, momentum, beta1, beta2, epsilon;
};

// Updates the weight with the gradient, after the operations in `after`. Declares what the rule
// keeps: slots NAME/momentum, NAME/m, NAME/v, the number of steps NAME/count and, where gradients
// are accumulated over a cycle, their sum NAME/sum.
tensorflow::Operation ApplyRule(const GraphContext& graph, const TrainingClock& clock,
                                const tensorflow::Scope& after, const RuleInGraph& values,
                                tensorflow::Output gradient, TrainedWeight* weight,
                                Variables* variables);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_UPDATES_H_

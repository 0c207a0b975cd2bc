// How the members start at T0: every row of a late-phase weight becomes row 0 plus noise of its
// own, and every row of a state becomes row 0.
#ifndef LATE_PHASE_OPTIMIZERS_SPAWNING_H_
#define LATE_PHASE_OPTIMIZERS_SPAWNING_H_

#include <cstdint>

#include "optimizers/graph_context.h"
#include "optimizers/trained_weights.h"
#include "optimizers/variables.h"

namespace late_phase {

inline constexpr char kSpawned[] = "late_phase/spawned";

// A variable, int64 [], that is 1 once the members are spawned. It is declared when it is first
// asked for.
class SpawnMark {
 public:
  tensorflow::Output Handle(Variables* variables);

 private:
  tensorflow::Output handle_;
};

// Spawns the members of a weight, and gives them slots. index: the weight's place in the order of
// declaration.
tensorflow::Operation SpawnWeight(const GraphContext& graph, const TrainedWeight& weight,
                                  int64_t index);

tensorflow::Operation SpawnState(const GraphContext& graph, const ModelState& state);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_SPAWNING_H_

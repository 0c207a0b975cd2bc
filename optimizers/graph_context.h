// What every part of the optimizer's graph is built with, and its clock.
//
// Member and position in the cycle come from the step counter t: before T0 the cycle is 1 and every
// step updates the base at once; from T0 on, minibatch t uses member (t − T0) mod K, or counts from
// the start of its epoch (LatePhaseOptions::restart_every). So one static graph serves the
// whole run.
#ifndef LATE_PHASE_OPTIMIZERS_GRAPH_CONTEXT_H_
#define LATE_PHASE_OPTIMIZERS_GRAPH_CONTEXT_H_

#include "optimizers/late_phase_options.h"
#include "optimizers/variables.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

struct GraphContext {
  // Checks the options and the type. Errors end in the scope's status.
  GraphContext(const tensorflow::Scope& scope, const LatePhaseOptions& options,
               tensorflow::DataType dtype);

  // A constant of the weights' type, on the host.
  tensorflow::Output Scalar(double value) const;

  tensorflow::Scope scope;
  // Counters, schedules and all other scalars: the ops take them from host memory on every device,
  // and the host would have to wait for anything computed on a GPU.
  tensorflow::Scope host;
  LatePhaseOptions options;  // `cycle` is at least 1
  tensorflow::DataType dtype;
};

// Empty if the scope has an error.
struct TrainingClock {
  TrainingClock(const GraphContext& graph, Variables* variables);

  tensorflow::Output step_handle, step, time;  // t as int64 handle, int64, double
  tensorflow::Output late;                     // bool: t >= T0
  tensorflow::Output member;                   // int32: the row of this minibatch
  tensorflow::Output position, cycle;          // int32: the place in the cycle, and its length
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_GRAPH_CONTEXT_H_

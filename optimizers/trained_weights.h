// What a model has declared: its weights, and its states.
#ifndef LATE_PHASE_OPTIMIZERS_TRAINED_WEIGHTS_H_
#define LATE_PHASE_OPTIMIZERS_TRAINED_WEIGHTS_H_

#include <string>
#include <vector>

#include "tensorflow/cc/framework/ops.h"

namespace late_phase {

// A trained variable, and what its update keeps beside it.
struct TrainedWeight {
  std::string name;
  bool late_phase = false;           // has a row per member
  bool reads_stack = false;          // the model reads all rows
  bool decays = true;                // under weight decay
  tensorflow::Output handle, value;  // value: what the model reads and is differentiated by
  tensorflow::Output gradient;       // of a minibatch's loss, not clipped; known after Minimize
  bool gradient_is_row = false;      // of a stack: `gradient` is only the member's row
  tensorflow::TensorShape shape;     // of the variable
  tensorflow::Output average;        // handle; SWA only
  tensorflow::Output sum;            // handle; of gradients accumulated over a cycle
  // Slots of the members, to be reset at T0.
  std::vector<tensorflow::Output> slots;
  tensorflow::Output count;
};

struct ModelState {
  std::string name;
  bool late_phase;  // has a row per member
  tensorflow::Output handle;
  tensorflow::DataType dtype;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_TRAINED_WEIGHTS_H_

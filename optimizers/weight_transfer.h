// The value of a variable that is taken from another run, with other members.
#ifndef LATE_PHASE_OPTIMIZERS_WEIGHT_TRANSFER_H_
#define LATE_PHASE_OPTIMIZERS_WEIGHT_TRANSFER_H_

#include <cstdint>
#include <optional>

#include "optimizers/variables.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// From a run with another K, whose value is `value`: every row is the first one. A single row may
// also be without its dimension, here or there. None if type or rows differ.
std::optional<tensorflow::Tensor> FirstRowEverywhere(const tensorflow::Tensor& value,
                                                     const SavedVariable& variable);

// From a run whose model's value is `value`, where `members` rows of a late-phase variable count:
// every row is their mean. A part of the network may have members there and none here, or the other
// way round. Floating types may differ. None if it is of another type or shape.
std::optional<tensorflow::Tensor> ModelValue(const tensorflow::Tensor& value, int64_t members,
                                             const SavedVariable& variable);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_WEIGHT_TRANSFER_H_

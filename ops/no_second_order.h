// The C++ gradient function of Grad ops: an error that says there is none.
#ifndef LATE_PHASE_OPS_NO_SECOND_ORDER_H_
#define LATE_PHASE_OPS_NO_SECOND_ORDER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {

[[nodiscard]] inline absl::Status NoSecondOrder(const tensorflow::Scope&,
                                                const tensorflow::Operation& op,
                                                const std::vector<tensorflow::Output>&,
                                                std::vector<tensorflow::Output>*) {
  return absl::UnimplementedError(
      absl::StrCat(op.node()->type_string(),
                   ": second-order gradients are not available. Received: a gradient of node ",
                   op.node()->name()));
}

}  // namespace late_phase

#endif  // LATE_PHASE_OPS_NO_SECOND_ORDER_H_

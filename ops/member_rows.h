// C++ graph wrappers of the ops on all members of a variable [K, …]. `var` is the handle of a
// resource variable. Contracts: docs/ops.md.
#ifndef LATE_PHASE_OPS_MEMBER_ROWS_H_
#define LATE_PHASE_OPS_MEMBER_ROWS_H_

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/types.h"

namespace late_phase {
namespace ops {

// Row `member` of var [K, …]: the tensor to differentiate by when a gradient of all of var would
// be wasteful.
tensorflow::Output ReadMember(const tensorflow::Scope& scope, tensorflow::Input var,
                              tensorflow::Input member, tensorflow::DataType dtype);

// The mean over the members.
tensorflow::Output Collapse(const tensorflow::Scope& scope, tensorflow::Input var,
                            tensorflow::DataType dtype);

// Every row ← row 0 + sigma·RMS(row 0)·noise; `seed` is int64 [2].
tensorflow::Operation Spawn(const tensorflow::Scope& scope, tensorflow::Input var,
                            tensorflow::Input sigma, tensorflow::Input seed);

// average ← (count·average + source) / (count + 1); `count` is int64 [].
tensorflow::Operation SwaUpdate(const tensorflow::Scope& scope, tensorflow::Input average,
                                tensorflow::Input source, tensorflow::Input count);

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_MEMBER_ROWS_H_

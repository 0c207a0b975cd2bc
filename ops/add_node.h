// Adds one node to a C++ graph, which is what every wrapper in this folder does.
#ifndef LATE_PHASE_OPS_ADD_NODE_H_
#define LATE_PHASE_OPS_ADD_NODE_H_

#include <functional>
#include <string>

#include "absl/types/span.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/graph/node_builder.h"

namespace late_phase {

// Adds op `op` ("LatePhase>Name") with the given inputs under the scope's next free name for
// `name`. `configure` sets attributes. An error, including one from the shape function, ends in the
// scope's status, and the operation is then empty.
tensorflow::Operation AddNode(
    const tensorflow::Scope& scope, const std::string& op, const std::string& name,
    absl::Span<const tensorflow::Input> inputs,
    const std::function<void(tensorflow::NodeBuilder*)>& configure = nullptr);

// Output `index` of an operation, or an empty output of an empty operation.
tensorflow::Output GetOutput(const tensorflow::Operation& operation, int index);

}  // namespace late_phase

#endif  // LATE_PHASE_OPS_ADD_NODE_H_

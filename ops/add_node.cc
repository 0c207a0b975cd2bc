#include "ops/add_node.h"

#include "tensorflow/cc/ops/const_op.h"

namespace late_phase {

tensorflow::Operation AddNode(const tensorflow::Scope& scope, const std::string& op,
                              const std::string& name, absl::Span<const tensorflow::Input> inputs,
                              const std::function<void(tensorflow::NodeBuilder*)>& configure) {
  if (!scope.ok()) return {};
  tensorflow::NodeBuilder builder(scope.GetUniqueNameForOp(name), op);
  for (const tensorflow::Input& input : inputs) {
    builder.Input(tensorflow::ops::AsNodeOut(scope, input));
    if (!scope.ok()) return {};
  }
  if (configure) configure(&builder);
  scope.UpdateBuilder(&builder);
  tensorflow::Node* node = nullptr;
  scope.UpdateStatus(builder.Finalize(scope.graph(), &node));
  if (!scope.ok()) return {};
  scope.UpdateStatus(scope.DoShapeInference(node));
  return scope.ok() ? tensorflow::Operation(node) : tensorflow::Operation();
}

tensorflow::Output GetOutput(const tensorflow::Operation& operation, int index) {
  return operation.node() == nullptr ? tensorflow::Output() : operation.output(index);
}

}  // namespace late_phase

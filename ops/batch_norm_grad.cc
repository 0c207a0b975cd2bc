// C++ gradient function of batch normalisation: it only calls the Grad op. The Python one:
// python/late_phase/gradients.py.
#include "ops/add_node.h"
#include "ops/no_second_order.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/platform/errors.h"

namespace late_phase {
namespace {

using tensorflow::Input;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Scope;

absl::Status BatchNormGrad(const Scope& scope, const Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  const tensorflow::AttrSlice attrs = op.node()->attrs();
  bool is_training = true;
  std::string activation, data_format;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attrs, "is_training", &is_training));
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attrs, "activation", &activation));
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attrs, "data_format", &data_format));
  // A loss that uses only the running statistics leaves y without a gradient.
  const Input dy = grad_inputs[0].node() != nullptr
                       ? Input(grad_inputs[0])
                       : Input(tensorflow::ops::ZerosLike(scope, op.output(0)));
  // x, scale, offset, member, what was saved, and the gradient of y.
  const Operation grad = AddNode(scope, "LatePhase>BatchNormGrad", "BatchNormGrad",
                                 {op.input(0), op.input(1), op.input(2), op.input(5), op.output(3),
                                  op.output(4), op.output(5), dy},
                                 [&](tensorflow::NodeBuilder* builder) {
                                   builder->Attr("is_training", is_training)
                                       .Attr("activation", activation)
                                       .Attr("data_format", data_format);
                                 });
  for (int i = 0; i < 3; ++i) grad_outputs->push_back(GetOutput(grad, i));
  // mean, variance, member
  for (int i = 0; i < 3; ++i) grad_outputs->push_back(tensorflow::NoGradient());
  return scope.status();
}
REGISTER_GRADIENT_OP("LatePhase>BatchNorm", BatchNormGrad);
REGISTER_GRADIENT_OP("LatePhase>BatchNormGrad", NoSecondOrder);

}  // namespace
}  // namespace late_phase

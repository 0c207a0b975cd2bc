// C++ gradient functions of the rank-1 LSTM family: each only calls its Grad op. The Python ones:
// python/late_phase/gradients.py.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "ops/add_node.h"
#include "ops/no_second_order.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::Input;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Scope;

// Adds `grad_op` on the forward inputs (except `bias`, on which the gradient does not depend),
// the forward outputs h, gates, cells, and the gradients of h, final_h, final_c.
[[nodiscard]] absl::StatusOr<Operation> AddGradNode(const Scope& scope, const Operation& op,
                                                    const std::string& grad_op,
                                                    const std::string& name, int skipped_input,
                                                    absl::Span<const Output> grad_inputs) {
  bool is_training = true;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(op.node()->attrs(), "is_training", &is_training));
  if (!is_training) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.node()->type_string(), ": `is_training` must be true for a gradient, ",
                     "because nothing is saved otherwise. Received: is_training=false in node ",
                     op.node()->name()));
  }
  std::vector<Input> inputs;
  for (int i = 0; i < op.num_inputs(); ++i) {
    if (i != skipped_input) inputs.push_back(op.input(i));
  }
  for (int saved : {0, 3, 4}) inputs.push_back(op.output(saved));
  for (int i : {0, 1, 2}) {
    // An output that the loss does not use has no gradient.
    const bool used = grad_inputs[i].node() != nullptr;
    inputs.push_back(used ? Input(grad_inputs[i])
                          : Input(tensorflow::ops::ZerosLike(scope, op.output(i))));
  }
  const Operation grad = AddNode(scope, grad_op, name, inputs);
  TF_RETURN_IF_ERROR(scope.status());
  return grad;
}

absl::Status Rank1LstmGrad(const Scope& scope, const Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  TF_ASSIGN_OR_RETURN(const Operation grad,
                      AddGradNode(scope, op, "LatePhase>Rank1LstmGrad", "Rank1LstmGrad",
                                  /*skipped_input=*/5, grad_inputs));
  for (int i = 0; i < 8; ++i) grad_outputs->push_back(grad.output(i));
  grad_outputs->push_back(tensorflow::NoGradient());  // member
  return scope.status();
}
REGISTER_GRADIENT_OP("LatePhase>Rank1Lstm", Rank1LstmGrad);

absl::Status Rank1LstmTokensGrad(const Scope& scope, const Operation& op,
                                 const std::vector<Output>& grad_inputs,
                                 std::vector<Output>* grad_outputs) {
  TF_ASSIGN_OR_RETURN(const Operation grad,
                      AddGradNode(scope, op, "LatePhase>Rank1LstmTokensGrad", "Rank1LstmTokensGrad",
                                  /*skipped_input=*/-1, grad_inputs));
  grad_outputs->push_back(tensorflow::NoGradient());  // tokens
  for (int i = 0; i < 6; ++i) grad_outputs->push_back(grad.output(i));
  grad_outputs->push_back(tensorflow::NoGradient());  // member
  return scope.status();
}
REGISTER_GRADIENT_OP("LatePhase>Rank1LstmTokens", Rank1LstmTokensGrad);

REGISTER_GRADIENT_OP("LatePhase>Rank1LstmGrad", NoSecondOrder);
REGISTER_GRADIENT_OP("LatePhase>Rank1LstmTokensGrad", NoSecondOrder);

}  // namespace
}  // namespace late_phase

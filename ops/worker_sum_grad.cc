// C++ gradient function of sums over workers. What a worker adds reaches the losses of all, so its
// gradient is the sum of their gradients by the sum, under the next key.
#include "ops/worker_sum.h"
#include "tensorflow/cc/framework/grad_op_registry.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {
namespace {

using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Scope;

absl::Status WorkerSumGrad(const Scope& scope, const Operation& op,
                           const std::vector<Output>& grad_inputs,
                           std::vector<Output>* grad_outputs) {
  const Scope host = scope.WithDevice("/device:CPU:0");
  const auto next = tensorflow::ops::Add(host, op.input(3), tensorflow::ops::Const(host, 1));
  grad_outputs->push_back(ops::WorkerSum(scope, grad_inputs[0], op.input(1), op.input(2), next));
  for (int i = 1; i < 4; ++i) grad_outputs->push_back(tensorflow::NoGradient());  // the keys
  return scope.status();
}
REGISTER_GRADIENT_OP("CollectiveReduceV2", WorkerSumGrad);

}  // namespace
}  // namespace late_phase

#include "optimizers/variables.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Output ZerosInGraph(const tensorflow::Scope& scope, tensorflow::DataType dtype,
                    const TensorShape& shape) {
  Tensor dims(tensorflow::DT_INT64, {shape.dims()});
  for (int d = 0; d < shape.dims(); ++d) dims.flat<int64_t>()(d) = shape.dim_size(d);
  return tf_ops::Fill(scope, tf_ops::Const(scope, dims),
                      tf_ops::Const(scope, Zeros(dtype, TensorShape())));
}

Output Variables::Declare(const std::string& name, const InitialValue& initial, VariableKind kind) {
  return Declare(scope_, name, initial, kind);
}

Output Variables::DeclareZero(const std::string& name, tensorflow::DataType dtype,
                              const TensorShape& shape) {
  return Declare(scope_, name, InitialValue::Zero(dtype, shape), VariableKind::kInternal);
}

Output Variables::DeclareShare(const std::string& name, tensorflow::DataType dtype,
                               const TensorShape& joint_shape, const Share& share) {
  TensorShape own = joint_shape;
  own.set_dim(0, share.Size(joint_shape.dim_size(0)));
  const Output handle = Declare(scope_, name, InitialValue::Zero(dtype, own), VariableKind::kState);
  if (scope_.ok()) saved_.back().joint_shape = joint_shape;
  return handle;
}

Output Variables::DeclareCounter(const std::string& name) {
  return Declare(host_, name, InitialValue::Zero(tensorflow::DT_INT64, TensorShape()),
                 VariableKind::kInternal);
}

Output Variables::Declare(const tensorflow::Scope& scope, const std::string& name,
                          const InitialValue& initial, VariableKind kind) {
  for (const SavedVariable& saved : saved_) {
    if (saved.name == name) {
      scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
          "`name` must be new. Received: name=", name, ", which is already declared")));
    }
  }
  if (!scope.ok()) return Output();
  const Output handle = tf_ops::VarHandleOp(scope, initial.dtype, initial.shape,
                                            tf_ops::VarHandleOp::SharedName(name));
  if (initial.make == nullptr) {
    zeros_.push_back(
        tf_ops::AssignVariableOp(scope, handle, ZerosInGraph(scope, initial.dtype, initial.shape))
            .operation);
  }
  const auto read = tf_ops::ReadVariableOp(scope, handle, initial.dtype);
  const auto placeholder =
      tf_ops::Placeholder(scope, initial.dtype, tf_ops::Placeholder::Shape(initial.shape));
  const auto restore = tf_ops::AssignVariableOp(scope, handle, placeholder);
  if (!scope.ok()) return Output();
  saved_.push_back({name, read.value.name(), placeholder.output.name(),
                    restore.operation.node()->name(), initial.dtype, initial.shape, kind,
                    initial.make, initial.shape});
  return handle;
}

}  // namespace late_phase

#include "kernels/op_kernel/variables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::Tensor;

// The lock of a variable. The class is deprecated in TensorFlow, which has no replacement.
using MutexPointer = decltype(std::declval<tensorflow::Var&>().mu());

absl::StatusOr<LockedVariables::Variable> LockedVariables::Find(const char* name) const {
  const Tensor* input = nullptr;
  TF_RETURN_IF_ERROR(ctx_->input(name, &input));
  if (input->NumElements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        op_, ": `", name,
        "` must be the handle of one variable. Received: shape=", input->shape().DebugString()));
  }
  const tensorflow::ResourceHandle& handle = input->flat<tensorflow::ResourceHandle>()(0);
  Variable variable{name, nullptr};
  // Also refuses a handle of another device.
  const absl::Status status = tensorflow::LookupResource(ctx_, handle, &variable.var);
  if (status.ok()) return variable;
  const std::string text = absl::StrCat(
      op_, ": `", name, "` must be an initialised variable of this device. Received: variable ",
      handle.name(), " of device ", handle.device(), " (", status.message(), ")");
  return absl::IsInvalidArgument(status) ? absl::InvalidArgumentError(text)
                                         : absl::FailedPreconditionError(text);
}

absl::Status LockedVariables::Lock(absl::Span<const char* const> names, Access access) {
  std::vector<MutexPointer> order;
  for (const char* name : names) {
    TF_ASSIGN_OR_RETURN(Variable variable, Find(name));
    order.push_back(variable.var->mu());
    variables_.push_back(std::move(variable));
  }
  std::sort(order.begin(), order.end());
  const auto repeated = std::unique(order.begin(), order.end());
  if (repeated != order.end() && access == Access::kWrite) {
    return absl::InvalidArgumentError(
        absl::StrCat(op_, ": variables must differ. Received: one variable for two inputs"));
  }
  order.erase(repeated, order.end());
  for (MutexPointer mutex : order) {
    if (access == Access::kWrite) {
      exclusive_.emplace_back(*mutex);
    } else {
      shared_.emplace_back(*mutex);
    }
  }
  for (const Variable& variable : variables_) {
    if (!variable.var->tensor()->IsInitialized()) {
      return absl::FailedPreconditionError(
          absl::StrCat(op_, ": `", variable.name,
                       "` must be an initialised variable. Received: one without a value"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor*> LockedVariables::Get(const char* name, tensorflow::DataType dtype) {
  for (const Variable& variable : variables_) {
    if (variable.name != name) continue;
    Tensor* value = variable.var->tensor();
    if (dtype == tensorflow::DT_INVALID || value->dtype() == dtype) return value;
    return absl::InvalidArgumentError(
        absl::StrCat(op_, ": `", name, "` must be of type ", tensorflow::DataTypeString(dtype),
                     ". Received: type=", tensorflow::DataTypeString(value->dtype())));
  }
  return absl::InternalError(absl::StrCat(op_, ": no variable `", name, "` was locked"));
}

absl::Status LockedVariables::MakeWritable(absl::Span<const char* const> names, const Copy& copy) {
  for (const Variable& variable : variables_) {
    if (std::find(names.begin(), names.end(), variable.name) == names.end()) continue;
    Tensor* tensor = variable.var->tensor();
    // In copy-on-read mode readers copy while they hold the lock, so no one else has the buffer.
    if (variable.var->copy_on_read_mode.load() || tensor->RefCountIsOne()) continue;
    Tensor own;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    TF_RETURN_IF_ERROR(ctx_->allocate_temp(tensor->dtype(), tensor->shape(), &own, attributes));
    TF_RETURN_IF_ERROR(copy(tensor->TotalBytes(), tensor->data(), own.data()));
    *tensor = own;
  }
  return absl::OkStatus();
}

absl::Status CheckStack(const std::string& op, const Tensor& var) {
  if (var.dims() > 0 && var.dim_size(0) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": `var` must be [K>=1, ...], one row per member. Received: shape=",
                   var.shape().DebugString()));
}

}  // namespace late_phase

#include "kernels/op_kernel/variables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace late_phase {

using tensorflow::Tensor;

// The lock of a variable. Its class is deprecated in TensorFlow, which still has no other.
using MutexPointer = decltype(std::declval<tensorflow::Var&>().mu());

absl::Status LockedVariables::Lock(const std::vector<const char*>& names, Access access) {
  std::vector<MutexPointer> order;
  for (const char* name : names) {
    tensorflow::ResourceHandle handle;
    const Tensor* input = nullptr;
    if (absl::Status status = ctx_->input(name, &input); !status.ok()) return status;
    if (input->NumElements() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          op_, ": `", name,
          "` must be the handle of one variable. Received: shape=", input->shape().DebugString()));
    }
    handle = input->flat<tensorflow::ResourceHandle>()(0);
    Variable variable;
    variable.name = name;
    // Refuses a handle of another device, too.
    if (absl::Status status = tensorflow::LookupResource(ctx_, handle, &variable.var);
        !status.ok()) {
      const std::string text = absl::StrCat(
          op_, ": `", name, "` must be an initialised variable of this device. Received: variable ",
          handle.name(), " of device ", handle.device(), " (", status.message(), ")");
      return absl::IsInvalidArgument(status) ? absl::InvalidArgumentError(text)
                                             : absl::FailedPreconditionError(text);
    }
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

absl::Status LockedVariables::Get(const char* name, tensorflow::DataType dtype, Tensor** value) {
  for (Variable& variable : variables_) {
    if (variable.name != name) continue;
    *value = variable.var->tensor();
    if (dtype == tensorflow::DT_INVALID || (*value)->dtype() == dtype) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(op_, ": `", name, "` must be of type ", tensorflow::DataTypeString(dtype),
                     ". Received: type=", tensorflow::DataTypeString((*value)->dtype())));
  }
  return absl::InternalError(absl::StrCat(op_, ": no variable `", name, "` was locked"));
}

absl::Status LockedVariables::MakeWritable(const std::vector<const char*>& names,
                                           const Copy& copy) {
  for (Variable& variable : variables_) {
    if (std::find(names.begin(), names.end(), variable.name) == names.end()) continue;
    Tensor* tensor = variable.var->tensor();
    // In copy-on-read mode readers copy while they hold the lock, so nobody else has the buffer.
    if (variable.var->copy_on_read_mode.load() || tensor->RefCountIsOne()) continue;
    Tensor own;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    if (absl::Status status =
            ctx_->allocate_temp(tensor->dtype(), tensor->shape(), &own, attributes);
        !status.ok()) {
      return status;
    }
    if (absl::Status status = copy(tensor->TotalBytes(), tensor->data(), own.data());
        !status.ok()) {
      return status;
    }
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

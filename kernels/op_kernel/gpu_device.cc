#include "kernels/op_kernel/gpu_device.h"

#include "absl/strings/str_cat.h"

namespace late_phase {

absl::Status Gpu::ToStatus(const std::string& error) const {
  if (error.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(ctx_->op_kernel().type_string(), ": ", error));
}

}  // namespace late_phase

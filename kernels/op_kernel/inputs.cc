#include "kernels/op_kernel/inputs.h"

namespace late_phase {

absl::Status GetScalar(tensorflow::OpKernelContext* ctx, const std::string& op, const char* name,
                       const tensorflow::Tensor** tensor) {
  if (absl::Status status = ctx->input(name, tensor); !status.ok()) return status;
  if ((*tensor)->dims() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": `", name, "` must be a scalar. Received: shape=", (*tensor)->shape().DebugString()));
}

absl::Status GetMember(tensorflow::OpKernelContext* ctx, const std::string& op, const char* stack,
                       int64_t K, int32_t* member) {
  const tensorflow::Tensor* tensor = nullptr;
  if (absl::Status status = GetScalar(ctx, op, "member", &tensor); !status.ok()) return status;
  *member = tensor->scalar<int32_t>()();
  if (*member >= 0 && *member < K) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": `member` must be in [0, ", K,
                                                 "), the rows of `", stack,
                                                 "`. Received: member=", *member));
}

}  // namespace late_phase

#include "kernels/op_kernel/inputs.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::StatusOr<ShapeMatcher> CheckInputs(OpKernelContext* ctx, const std::string& op,
                                         absl::Span<const ShapeRule> rules) {
  ShapeMatcher sizes(op);
  for (size_t i = 0; i < rules.size(); ++i) {
    const auto dims = ctx->input(i).shape().dim_sizes();
    const std::string complaint =
        sizes.Match(rules[i], std::vector<int64_t>(dims.begin(), dims.end()));
    if (!complaint.empty()) return absl::InvalidArgumentError(complaint);
  }
  return sizes;
}

absl::StatusOr<const Tensor*> GetScalar(OpKernelContext* ctx, const std::string& op,
                                        const char* name) {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(ctx->input(name, &tensor));
  if (tensor->dims() == 0) return tensor;
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": `", name, "` must be a scalar. Received: shape=", tensor->shape().DebugString()));
}

absl::StatusOr<int32_t> GetMember(OpKernelContext* ctx, const std::string& op, const char* stack,
                                  int64_t K) {
  TF_ASSIGN_OR_RETURN(const Tensor* tensor, GetScalar(ctx, op, "member"));
  const int32_t member = tensor->scalar<int32_t>()();
  if (member >= 0 && member < K) return member;
  return absl::InvalidArgumentError(absl::StrCat(op, ": `member` must be in [0, ", K,
                                                 "), the rows of `", stack,
                                                 "`. Received: member=", member));
}

}  // namespace late_phase

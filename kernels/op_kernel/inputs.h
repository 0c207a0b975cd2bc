// The inputs of an OpKernel, checked against what it expects. Scalars are in host memory on every
// device.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/shape_rules.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// Checks all inputs against their rules, which are in the order of the signature. Returns the
// sizes.
[[nodiscard]] absl::StatusOr<ShapeMatcher> CheckInputs(tensorflow::OpKernelContext* ctx,
                                                       const std::string& op,
                                                       absl::Span<const ShapeRule> rules);

// The input of this name, which must be a scalar.
[[nodiscard]] absl::StatusOr<const tensorflow::Tensor*> GetScalar(tensorflow::OpKernelContext* ctx,
                                                                  const std::string& op,
                                                                  const char* name);

// The scalar input `member`, which must be one of the K rows of `stack`.
[[nodiscard]] absl::StatusOr<int32_t> GetMember(tensorflow::OpKernelContext* ctx,
                                                const std::string& op, const char* stack,
                                                int64_t K);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_

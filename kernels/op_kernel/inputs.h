// The inputs of an OpKernel, held against what it expects. Scalars are in host memory on every
// device.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_

#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/shape_rules.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// Holds all inputs against their rules, which are in the order of the signature.
template <typename Rules>
absl::Status CheckInputs(tensorflow::OpKernelContext* ctx, const Rules& rules,
                         ShapeMatcher* sizes) {
  for (size_t i = 0; i < std::size(rules); ++i) {
    const auto dims = ctx->input(i).shape().dim_sizes();
    const std::string complaint =
        sizes->Match(rules[i], std::vector<int64_t>(dims.begin(), dims.end()));
    if (!complaint.empty()) return absl::InvalidArgumentError(complaint);
  }
  return absl::OkStatus();
}

// The input of this name, which must be a scalar.
absl::Status GetScalar(tensorflow::OpKernelContext* ctx, const std::string& op, const char* name,
                       const tensorflow::Tensor** tensor);

// The scalar input `member`, which must be one of the K rows of `stack`.
absl::Status GetMember(tensorflow::OpKernelContext* ctx, const std::string& op, const char* stack,
                       int64_t K, int32_t* member);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_INPUTS_H_

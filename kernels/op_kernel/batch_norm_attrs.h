// Attributes of the batch normalisation ops: read and checked the same way when a graph is built
// and when a kernel is made. `Context` is a shape function's InferenceContext or an
// OpKernelConstruction.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/op_kernel/check_range.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

// Of both directions.
struct BatchNormAttrs {
  bool is_training = true;
  bool relu = false;
  bool channels_first = false;  // data_format NCHW
};

// Of the forward direction only.
struct BatchNormStatisticsAttrs {
  double epsilon = 0, momentum = 0;
};

// Whether a string attribute, which must be one of two, is the `other`.
template <typename Context>
[[nodiscard]] absl::StatusOr<bool> GetChoice(Context* ctx, const std::string& op, const char* name,
                                             const char* usual, const char* other) {
  std::string value;
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, &value));
  if (value == usual || value == other) return value == other;
  return absl::InvalidArgumentError(absl::StrCat(op, ": `", name, "` must be ", usual, " or ",
                                                 other, ". Received: ", name, "=", value));
}

// Also checks the types against each other: U, that of all arrays without rows, is float for half
// types and T itself otherwise.
template <typename Context>
[[nodiscard]] absl::StatusOr<BatchNormAttrs> GetBatchNormAttrs(Context* ctx,
                                                               const std::string& op) {
  tensorflow::DataType rows, statistics;
  BatchNormAttrs attrs;
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &rows));
  TF_RETURN_IF_ERROR(ctx->GetAttr("U", &statistics));
  TF_RETURN_IF_ERROR(ctx->GetAttr("is_training", &attrs.is_training));
  TF_ASSIGN_OR_RETURN(attrs.relu, GetChoice(ctx, op, "activation", "Identity", "Relu"));
  TF_ASSIGN_OR_RETURN(attrs.channels_first, GetChoice(ctx, op, "data_format", "NHWC", "NCHW"));
  const auto wanted = rows == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  if (statistics == wanted) return attrs;
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": `scale` and all other arrays without rows must be of type ",
                   tensorflow::DataTypeString(wanted), ", because `x` is of type ",
                   tensorflow::DataTypeString(rows),
                   ". Received: type=", tensorflow::DataTypeString(statistics)));
}

template <typename Context>
[[nodiscard]] absl::StatusOr<BatchNormStatisticsAttrs> GetBatchNormStatisticsAttrs(
    Context* ctx, const std::string& op) {
  float epsilon = 0, momentum = 0;
  TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon));
  TF_RETURN_IF_ERROR(ctx->GetAttr("momentum", &momentum));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  TF_RETURN_IF_ERROR(CheckRange(op, "epsilon", epsilon, {0, kInfinity, true, true}));
  TF_RETURN_IF_ERROR(CheckRange(op, "momentum", momentum, {0, 1}));
  return BatchNormStatisticsAttrs{epsilon, momentum};
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_

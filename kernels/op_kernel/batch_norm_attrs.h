// Attributes of the batch normalisation ops: read and checked the same way when a graph is built
// and when a kernel is made. `Context` is a shape function's InferenceContext or an
// OpKernelConstruction.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/op_kernel/check_range.h"
#include "tensorflow/core/framework/types.h"

namespace late_phase {

// Of both directions.
struct BatchNormAttrs {
  bool is_training = true;
  bool relu = false;
  bool channels_first = false;  // data_format NCHW
};

// Of the forward direction alone.
struct BatchNormStatisticsAttrs {
  double epsilon = 0, momentum = 0;
};

// A string attribute that must be one of two.
template <typename Context>
absl::Status GetChoice(Context* ctx, const std::string& op, const char* name, const char* usual,
                       const char* other, bool* is_other) {
  std::string value;
  if (absl::Status status = ctx->GetAttr(name, &value); !status.ok()) return status;
  *is_other = value == other;
  if (*is_other || value == usual) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": `", name, "` must be ", usual, " or ",
                                                 other, ". Received: ", name, "=", value));
}

// Also holds the types against each other: U, of all arrays without rows, is float for half types
// and else T itself.
template <typename Context>
absl::Status GetBatchNormAttrs(Context* ctx, const std::string& op, BatchNormAttrs* attrs) {
  tensorflow::DataType rows, statistics;
  absl::Status status = ctx->GetAttr("T", &rows);
  status.Update(ctx->GetAttr("U", &statistics));
  status.Update(ctx->GetAttr("is_training", &attrs->is_training));
  status.Update(GetChoice(ctx, op, "activation", "Identity", "Relu", &attrs->relu));
  status.Update(GetChoice(ctx, op, "data_format", "NHWC", "NCHW", &attrs->channels_first));
  if (!status.ok()) return status;
  const auto wanted = rows == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  if (statistics == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": `scale` and all other arrays without rows must be of type ",
                   tensorflow::DataTypeString(wanted), ", because `x` is of type ",
                   tensorflow::DataTypeString(rows),
                   ". Received: type=", tensorflow::DataTypeString(statistics)));
}

template <typename Context>
absl::Status GetBatchNormStatisticsAttrs(Context* ctx, const std::string& op,
                                         BatchNormStatisticsAttrs* attrs) {
  float epsilon = 0, momentum = 0;
  absl::Status status = ctx->GetAttr("epsilon", &epsilon);
  status.Update(ctx->GetAttr("momentum", &momentum));
  attrs->epsilon = epsilon;
  attrs->momentum = momentum;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  status.Update(CheckRange(op, "epsilon", attrs->epsilon, {0, kInfinity, true, true}));
  status.Update(CheckRange(op, "momentum", attrs->momentum, {0, 1}));
  return status;
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_BATCH_NORM_ATTRS_H_

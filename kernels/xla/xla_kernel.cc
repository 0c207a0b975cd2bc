#include "kernels/xla/xla_kernel.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tsl/platform/tensor_float_32_utils.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/loops.h"
#include "xla/shape_util.h"

namespace late_phase {

using tensorflow::DataType;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

xla::PrimitiveType WideType(xla::PrimitiveType type) {
  return type == xla::F64 ? xla::F64 : xla::F32;
}

DataType WideType(DataType type) {
  return type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
}

xla::PrimitiveType XlaType(DataType type) {
  xla::PrimitiveType converted = xla::PRIMITIVE_TYPE_INVALID;
  if (!tensorflow::DataTypeToPrimitiveType(type, &converted).ok()) {
    return xla::PRIMITIVE_TYPE_INVALID;
  }
  return converted;
}

absl::Status CheckFloating(const std::string& op, const char* name, DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          op, ": `", name, "` must be of type half, bfloat16, float or double. Received: type=",
          tensorflow::DataTypeString(type)));
  }
}

absl::StatusOr<ShapeMatcher> CheckInputs(XlaOpKernelContext* ctx, const std::string& op,
                                         absl::Span<const ShapeRule> rules) {
  ShapeMatcher sizes(op);
  for (size_t i = 0; i < rules.size(); ++i) {
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, ctx->InputXlaShape(static_cast<int>(i)));
    const auto dims = shape.dimensions();
    const std::string complaint =
        sizes.Match(rules[i], std::vector<int64_t>(dims.begin(), dims.end()));
    if (!complaint.empty()) return absl::InvalidArgumentError(complaint);
  }
  return sizes;
}

absl::Status CheckScalar(XlaOpKernelContext* ctx, const std::string& op, const char* name) {
  TF_ASSIGN_OR_RETURN(const xla::Shape shape, ctx->InputXlaShape(name));
  if (shape.dimensions().empty()) return absl::OkStatus();
  const auto dims = shape.dimensions();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": `", name, "` must be a scalar. Received: shape=",
                   ShapeText(std::vector<int64_t>(dims.begin(), dims.end()))));
}

Checks::Checks(XlaOpKernelContext* ctx, std::string op)
    : ctx_(ctx), op_(std::move(op)), hold_(xla::ConstantR0<bool>(ctx->builder(), true)) {}

XlaOp Checks::NanUnlessHold(XlaOp x) const {
  const xla::Shape shape = ShapeOf(x);
  const XlaOp nan = xla::NanValue(x.builder(), shape.element_type());
  return xla::Select(xla::Broadcast(hold_, shape.dimensions()), x,
                     xla::Broadcast(nan, shape.dimensions()));
}

absl::StatusOr<XlaOp> Checks::Member(const char* stack, int64_t K) {
  TF_RETURN_IF_ERROR(CheckScalar(ctx_, op_, "member"));
  if (const auto known = ctx_->InputExpression("member").constant_value()) {
    const int32_t member = known->scalar<int32_t>()();
    if (member < 0 || member >= K) {
      return absl::InvalidArgumentError(absl::StrCat(op_, ": `member` must be in [0, ", K,
                                                     "), the rows of `", stack,
                                                     "`. Received: member=", member));
    }
  }
  const XlaOp member = ctx_->Input("member");
  Require(xla::And(xla::Ge(member, Integer(ctx_->builder(), 0)),
                   xla::Lt(member, Integer(ctx_->builder(), static_cast<int32_t>(K)))));
  return member;
}

absl::StatusOr<XlaOp> Checks::InRange(const char* name, const Range& range,
                                      xla::PrimitiveType wide) {
  TF_RETURN_IF_ERROR(CheckScalar(ctx_, op_, name));
  if (const auto known = ctx_->InputExpression(name).constant_value()) {
    double value = 0;
    switch (known->dtype()) {
      case tensorflow::DT_FLOAT:
        value = known->scalar<float>()();
        break;
      case tensorflow::DT_DOUBLE:
        value = known->scalar<double>()();
        break;
      case tensorflow::DT_HALF:
        value = static_cast<double>(known->scalar<Eigen::half>()());
        break;
      default:
        value = static_cast<double>(known->scalar<Eigen::bfloat16>()());
    }
    TF_RETURN_IF_ERROR(CheckRange(op_, name, value, range));
  }
  const XlaOp value = xla::ConvertElementType(ctx_->Input(name), wide);
  const XlaOp low = Number(ctx_->builder(), wide, range.low);
  const XlaOp high = Number(ctx_->builder(), wide, range.high);
  Require(range.low_open ? xla::Gt(value, low) : xla::Ge(value, low));
  Require(range.high_open ? xla::Lt(value, high) : xla::Le(value, high));
  return value;
}

absl::StatusOr<XlaVariable> ReadVariable(XlaOpKernelContext* ctx, const std::string& op,
                                         const char* name, DataType dtype) {
  int index = 0, end = 0;
  TF_RETURN_IF_ERROR(ctx->op_kernel().InputRange(name, &index, &end));
  tensorflow::XlaResource* resource = nullptr;
  TF_RETURN_IF_ERROR(ctx->GetResourceInput(index, &resource));
  if (!resource->initialized()) {
    return absl::FailedPreconditionError(absl::StrCat(
        op, ": `", name, "` must be an initialised variable. Received: one without a value"));
  }
  XlaVariable variable;
  TF_RETURN_IF_ERROR(ctx->GetVariableTypeAndShape(index, &variable.dtype, &variable.shape));
  if (dtype != tensorflow::DT_INVALID && variable.dtype != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": `", name, "` must be of type ", tensorflow::DataTypeString(dtype),
                     ". Received: type=", tensorflow::DataTypeString(variable.dtype)));
  }
  TF_RETURN_IF_ERROR(ctx->ReadVariableInput(index, variable.dtype, nullptr, &variable.value));
  return variable;
}

absl::Status CheckDistinct(XlaOpKernelContext* ctx, const std::string& op,
                           absl::Span<const char* const> names) {
  std::vector<tensorflow::XlaResource*> resources;
  for (const char* name : names) {
    int index = 0, end = 0;
    TF_RETURN_IF_ERROR(ctx->op_kernel().InputRange(name, &index, &end));
    tensorflow::XlaResource* resource = nullptr;
    TF_RETURN_IF_ERROR(ctx->GetResourceInput(index, &resource));
    if (std::find(resources.begin(), resources.end(), resource) != resources.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, ": variables must differ. Received: one variable for two inputs"));
    }
    resources.push_back(resource);
  }
  return absl::OkStatus();
}

absl::StatusOr<tensorflow::TensorShape> RowShape(const std::string& op, const XlaVariable& var) {
  if (var.shape.dims() == 0 || var.shape.dim_size(0) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": `var` must be [K>=1, ...], one row per member. Received: shape=",
                     var.shape.DebugString()));
  }
  tensorflow::TensorShape row = var.shape;
  row.RemoveDim(0);
  return row;
}

namespace {

std::vector<XlaOp> RowStart(XlaOp index, size_t rank) {
  std::vector<XlaOp> start(rank, Integer(index.builder(), 0));
  start[0] = index;
  return start;
}

}  // namespace

XlaOp Row(XlaOp stack, XlaOp index) {
  const xla::Shape shape = ShapeOf(stack);
  std::vector<int64_t> sizes(shape.dimensions().begin(), shape.dimensions().end());
  sizes[0] = 1;
  const XlaOp row = xla::DynamicSlice(stack, RowStart(index, sizes.size()), sizes);
  return xla::Reshape(row, absl::MakeConstSpan(sizes).subspan(1));
}

XlaOp WithRow(XlaOp stack, XlaOp index, XlaOp row) {
  const xla::Shape shape = ShapeOf(stack);
  std::vector<int64_t> sizes(shape.dimensions().begin(), shape.dimensions().end());
  sizes[0] = 1;
  return xla::DynamicUpdateSlice(stack, xla::Reshape(row, sizes), RowStart(index, sizes.size()));
}

XlaOp StackOfZeros(int64_t K, XlaOp index, XlaOp row) {
  const xla::Shape shape = ShapeOf(row);
  std::vector<int64_t> sizes(shape.dimensions().begin(), shape.dimensions().end());
  sizes.insert(sizes.begin(), K);
  return WithRow(ZerosOf(row.builder(), shape.element_type(), sizes), index, row);
}

xla::Shape ShapeOf(XlaOp x) {
  // An operation that is not valid has left its error in the builder, which reports it at the end.
  return x.builder()->GetShape(x).value_or(xla::ShapeUtil::MakeShape(xla::F32, {}));
}

XlaOp Number(xla::XlaBuilder* builder, xla::PrimitiveType type, double value) {
  return xla::ConstantR0WithType(builder, type, value);
}

XlaOp Integer(xla::XlaBuilder* builder, int32_t value) {
  return xla::ConstantR0<int32_t>(builder, value);
}

XlaOp ZerosOf(xla::XlaBuilder* builder, xla::PrimitiveType type, absl::Span<const int64_t> dims) {
  return xla::Broadcast(xla::Zero(builder, type), dims);
}

XlaOp AlongAxis(XlaOp vector, const xla::Shape& shape, int64_t axis) {
  return xla::BroadcastInDim(vector, shape.dimensions(), {axis});
}

XlaOp Sum(XlaOp x, absl::Span<const int64_t> axes) {
  const xla::PrimitiveType type = ShapeOf(x).element_type();
  return xla::Reduce(x, xla::Zero(x.builder(), type),
                     xla::CreateScalarAddComputation(type, x.builder()), axes);
}

XlaOp MatrixProduct(XlaOp a, int64_t a_axis, XlaOp b, int64_t b_axis) {
  xla::DotDimensionNumbers dimensions;
  dimensions.add_lhs_contracting_dimensions(a_axis);
  dimensions.add_rhs_contracting_dimensions(b_axis);
  xla::PrecisionConfig precision;
  const auto wanted = tsl::tensor_float_32_execution_enabled() ? xla::PrecisionConfig::DEFAULT
                                                               : xla::PrecisionConfig::HIGHEST;
  precision.add_operand_precision(wanted);
  precision.add_operand_precision(wanted);
  return xla::DotGeneral(a, b, dimensions, &precision, WideType(ShapeOf(a).element_type()));
}

absl::StatusOr<std::vector<XlaOp>> Loop(xla::XlaBuilder* builder, int64_t steps,
                                        absl::Span<const XlaOp> state, const LoopStep& step) {
  if (steps == 0) return std::vector<XlaOp>(state.begin(), state.end());
  return xla::ForEachIndex(
      steps, xla::S32,
      [&step](XlaOp i, absl::Span<const XlaOp> values,
              xla::XlaBuilder*) -> absl::StatusOr<std::vector<XlaOp>> { return step(i, values); },
      state, "late_phase_loop", builder);
}

}  // namespace late_phase

#include "optimizers/weight_transfer.h"

#include <algorithm>

#include "optimizers/tensors.h"

namespace late_phase {

using tensorflow::Tensor;

namespace {

bool IsFloating(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
}

}  // namespace

std::optional<Tensor> FirstRowEverywhere(const Tensor& value, const SavedVariable& variable) {
  if (value.dtype() != variable.dtype) return std::nullopt;
  if (value.shape() == variable.shape) return value;
  auto is_row_of = [](tensorflow::TensorShape row, const tensorflow::TensorShape& stack) {
    row.InsertDim(0, 1);
    return row == stack;
  };
  if (is_row_of(value.shape(), variable.shape) || is_row_of(variable.shape, value.shape())) {
    Tensor same(value.dtype());
    return same.CopyFrom(value, variable.shape) ? std::optional<Tensor>(same) : std::nullopt;
  }
  tensorflow::TensorShape row = variable.shape, saved_row = value.shape();
  if (row.dims() > 0) row.RemoveDim(0);
  if (saved_row.dims() > 0) saved_row.RemoveDim(0);
  if (row != saved_row || value.dims() == 0 || value.dim_size(0) == 0 ||
      !tensorflow::DataTypeCanUseMemcpy(value.dtype())) {
    return std::nullopt;
  }
  return RepeatedRow(value.dtype(), value.data(), variable.shape);
}

std::optional<Tensor> ModelValue(const Tensor& value, int64_t members,
                                 const SavedVariable& variable) {
  if (!IsFloating(value.dtype()) || !IsFloating(variable.dtype)) {
    const bool same = value.dtype() == variable.dtype && value.shape() == variable.shape;
    return same ? std::optional<Tensor>(value) : std::nullopt;
  }
  // Without members, BatchNorm's stacks have one row.
  auto without_one = [](tensorflow::TensorShape shape) {
    if (shape.dims() > 0 && shape.dim_size(0) == 1) shape.RemoveDim(0);
    return shape;
  };
  auto first_row = [](tensorflow::TensorShape stack) {
    if (stack.dims() > 0) stack.RemoveDim(0);
    return stack;
  };
  const bool stacked = variable.kind == VariableKind::kMembers;
  const tensorflow::TensorShape row =
      without_one(stacked ? first_row(variable.shape) : variable.shape);
  const bool one = without_one(value.shape()) == row;
  if (!one && (value.dims() == 0 || without_one(first_row(value.shape())) != row)) {
    return std::nullopt;
  }
  const int64_t size = row.num_elements(), rows = one ? 1 : std::min(value.dim_size(0), members);
  Tensor model(variable.dtype, variable.shape);
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < rows; ++k) sum += GetElement(value, k * size + i);
    for (int64_t j = i; j < model.NumElements(); j += size) SetElement(&model, j, sum / rows);
  }
  return model;
}

}  // namespace late_phase

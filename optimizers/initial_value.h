// The initial value of a variable, kept outside the graph.
//
// A graph that holds its initial values holds them forever, beside the variables, and cannot exceed
// 2 GB. So a value is made when a run is initialised and becomes the variable's own memory.
#ifndef LATE_PHASE_OPTIMIZERS_INITIAL_VALUE_H_
#define LATE_PHASE_OPTIMIZERS_INITIAL_VALUE_H_

#include <functional>
#include <utility>

#include "optimizers/tensors.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

struct InitialValue {
  using Make = std::function<tensorflow::Tensor()>;

  // A tensor, which stays in memory as long as the graph and its runs: for small ones.
  InitialValue(const tensorflow::Tensor& value)  // NOLINT: a tensor is an initial value
      : dtype(value.dtype()), shape(value.shape()), make([value] { return value; }) {}
  // What `make` returns, of this type and shape, whenever a run is initialised.
  InitialValue(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, Make make)
      : dtype(dtype), shape(shape), make(std::move(make)) {}
  // Zeros, which the graph makes itself.
  static InitialValue Zero(tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
    return InitialValue(dtype, shape, nullptr);
  }

  // [K, …] with this value in every row.
  InitialValue Stacked(int64_t K) const {
    tensorflow::TensorShape stack = shape;
    stack.InsertDim(0, K);
    if (make == nullptr) return Zero(dtype, stack);
    return InitialValue(dtype, stack, [make = make, stack] {
      const tensorflow::Tensor row = make();
      return RepeatedRow(row.dtype(), row.data(), stack);
    });
  }

  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  Make make;  // empty: zeros
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_INITIAL_VALUE_H_

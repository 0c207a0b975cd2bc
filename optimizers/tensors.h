// Small helpers for tensors on the host.
#ifndef LATE_PHASE_OPTIMIZERS_TENSORS_H_
#define LATE_PHASE_OPTIMIZERS_TENSORS_H_

#include <cstring>

#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

inline tensorflow::Tensor Zeros(tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  tensorflow::Tensor zeros(dtype, shape);
  std::memset(zeros.data(), 0, zeros.TotalBytes());
  return zeros;
}

// Of float or double.
inline tensorflow::Tensor Filled(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                                 double value) {
  tensorflow::Tensor tensor(dtype, shape);
  if (dtype == tensorflow::DT_DOUBLE) {
    tensor.flat<double>().setConstant(value);
  } else {
    tensor.flat<float>().setConstant(static_cast<float>(value));
  }
  return tensor;
}

// A stack [K, …] of `shape` whose every row is the one at `row`.
inline tensorflow::Tensor RepeatedRow(tensorflow::DataType dtype, const void* row,
                                      const tensorflow::TensorShape& shape) {
  tensorflow::Tensor stack(dtype, shape);
  const int64_t K = shape.dim_size(0);
  const size_t bytes = K > 0 ? stack.TotalBytes() / K : 0;
  for (int64_t k = 0; k < K; ++k) {
    std::memcpy(static_cast<char*>(stack.data()) + k * bytes, row, bytes);
  }
  return stack;
}

// One element of a float or double tensor.
inline double GetElement(const tensorflow::Tensor& tensor, int64_t i) {
  return tensor.dtype() == tensorflow::DT_DOUBLE ? tensor.flat<double>()(i)
                                                 : tensor.flat<float>()(i);
}
inline void SetElement(tensorflow::Tensor* tensor, int64_t i, double value) {
  if (tensor->dtype() == tensorflow::DT_DOUBLE) {
    tensor->flat<double>()(i) = value;
  } else {
    tensor->flat<float>()(i) = static_cast<float>(value);
  }
}

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_TENSORS_H_

// Images as tensors.
#ifndef LATE_PHASE_MODELS_IMAGES_IMAGE_TENSORS_H_
#define LATE_PHASE_MODELS_IMAGES_IMAGE_TENSORS_H_

#include <cstdint>
#include <utility>

#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// Calls fill(pixels, labels) with the arrays of new tensors, [count, side, side, 3] of the type and
// int32 [count].
template <class Fill>
std::pair<tensorflow::Tensor, tensorflow::Tensor> FilledTensors(tensorflow::DataType dtype,
                                                                int64_t count, int64_t side,
                                                                const Fill& fill) {
  tensorflow::Tensor pixels(dtype, tensorflow::TensorShape({count, side, side, 3})),
      labels(tensorflow::DT_INT32, tensorflow::TensorShape({count}));
  if (dtype == tensorflow::DT_DOUBLE) {
    fill(pixels.flat<double>().data(), labels.flat<int32_t>().data());
  } else {
    fill(pixels.flat<float>().data(), labels.flat<int32_t>().data());
  }
  return {pixels, labels};
}

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_IMAGE_TENSORS_H_

// The arrays of one call of an OpKernel, as its core takes them. An OpKernel is written once for
// every Device, which is Cpu (kernels/op_kernel/cpu_device.h) or Gpu
// (kernels/op_kernel/gpu_device.h):
//
//   const Device device(ctx);
//   WideArrays<Device, T> a(ctx, device);
//   args.x = a.Input("x");  // in float if T is half or bfloat16
//   args.y = a.Output("y", {n});
//   OP_REQUIRES_OK(ctx, a.status());
//   OP_REQUIRES_OK(ctx, Forward(device, args));  // an overload per device calls the core
//   OP_REQUIRES_OK(ctx, a.Finish());
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_ARRAYS_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_ARRAYS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/half_types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {

// Tensors of type T as arrays of Element, which is T as stored, in which case nothing is
// copied, or float for half types. After an error every method returns null and `status` says why.
template <class Device, typename T, typename Element>
class OpArrays {
 public:
  OpArrays(tensorflow::OpKernelContext* ctx, const Device& device) : ctx_(ctx), device_(device) {}

  const Element* Input(const char* name) {
    const tensorflow::Tensor* tensor = nullptr;
    if (!Keep(ctx_->input(name, &tensor))) return nullptr;
    return Part(*tensor, 0, tensor->NumElements());
  }

  // `size` elements of a tensor from `offset` on.
  const Element* Part(const tensorflow::Tensor& tensor, int64_t offset, int64_t size) {
    if constexpr (kWidened) {
      return Widened(tensor, offset, size);
    } else {
      return Data(tensor) + offset;
    }
  }

  // The input's values in an array that may be overwritten: its own buffer if nothing else reads
  // it, else a copy.
  Element* Consumed(const char* name) {
    const tensorflow::Tensor* tensor = nullptr;
    if (!Keep(ctx_->input(name, &tensor))) return nullptr;
    if constexpr (kWidened) {
      return Widened(*tensor, 0, tensor->NumElements());
    } else {
      int index = 0, end = 0;
      tensorflow::Tensor own;
      if (!Keep(ctx_->op_kernel().InputRange(name, &index, &end)) ||
          !Keep(ctx_->forward_input_or_allocate_temp({index}, tensor->dtype(), tensor->shape(),
                                                     &own))) {
        return nullptr;
      }
      if (!own.SharesBufferWith(*tensor) &&
          !Keep(device_.Copy(tensor->TotalBytes(), tensor->data(), own.data()))) {
        return nullptr;
      }
      scratch_.push_back(own);
      return Data(own);
    }
  }

  // The same, for updating: what a core writes there reaches the tensor no later than in Finish.
  Element* Updated(tensorflow::Tensor* tensor, int64_t offset, int64_t size) {
    if constexpr (kWidened) {
      Element* wide = Widened(*tensor, offset, size);
      if (wide != nullptr) {
        rounded_later_.push_back({size, wide, static_cast<T*>(tensor->data()) + offset});
      }
      return wide;
    } else {
      return Data(*tensor) + offset;
    }
  }

  Element* Output(const char* name, absl::Span<const int64_t> dims) {
    tensorflow::Tensor* tensor = nullptr;
    tensorflow::TensorShape shape;  // built with a status: sizes of empty inputs may overflow here
    if (!Keep(tensorflow::TensorShape::BuildTensorShape(dims, &shape)) ||
        !Keep(ctx_->allocate_output(name, shape, &tensor))) {
      return nullptr;
    }
    return Written(tensor);
  }

  // An output of an input's shape, in the input's own buffer if nothing else reads it: the core
  // must allow the two to be one array.
  Element* OutputOver(const char* input, const char* output) {
    const tensorflow::Tensor* given = nullptr;
    tensorflow::Tensor* tensor = nullptr;
    if (!Keep(ctx_->input(input, &given)) ||
        !Keep(ctx_->forward_input_or_allocate_output({absl::string_view(input)}, output,
                                                     given->shape(), &tensor))) {
      return nullptr;
    }
    return Written(tensor);
  }

  ComputeType<T>* Scratch(int64_t size) {
    tensorflow::Tensor tensor;
    tensorflow::TensorShape shape;
    if (!Keep(tensorflow::TensorShape::BuildTensorShape({size}, &shape)) ||
        !Keep(ctx_->allocate_temp(tensorflow::DataTypeToEnum<ComputeType<T>>::value, shape,
                                  &tensor))) {
      return nullptr;
    }
    device_.BeforeWriting(tensor.data(), tensor.TotalBytes());
    scratch_.push_back(tensor);
    return static_cast<ComputeType<T>*>(tensor.data());
  }

  // Rounds the results into the tensors. To be called once, after the core has run.
  [[nodiscard]] absl::Status Finish() {
    if constexpr (kWidened) {
      for (const Rounded& later : rounded_later_) {
        Keep(device_.template Round<T>(later.size, later.wide, later.to));
      }
    }
    return status_;
  }

  [[nodiscard]] const absl::Status& status() const { return status_; }

 private:
  static constexpr bool kWidened = sizeof(Element) != sizeof(T);

  static Element* Data(const tensorflow::Tensor& tensor) {
    return static_cast<Element*>(tensor.data());
  }

  bool Keep(const absl::Status& status) {
    status_.Update(status);
    return status_.ok();
  }

  Element* Widened(const tensorflow::Tensor& tensor, int64_t offset, int64_t size) {
    Element* wide = Scratch(size);
    if (wide != nullptr) {
      Keep(device_.template Widen<T>(size, static_cast<const T*>(tensor.data()) + offset, wide));
    }
    return wide;
  }

  Element* Written(tensorflow::Tensor* tensor) {
    device_.BeforeWriting(tensor->data(), tensor->TotalBytes());
    if constexpr (kWidened) {
      Element* wide = Scratch(tensor->NumElements());
      if (wide != nullptr) {
        rounded_later_.push_back({tensor->NumElements(), wide, static_cast<T*>(tensor->data())});
      }
      return wide;
    } else {
      return Data(*tensor);
    }
  }

  struct Rounded {
    int64_t size;
    const Element* wide;
    T* to;
  };

  tensorflow::OpKernelContext* ctx_;
  const Device& device_;
  absl::Status status_;
  std::vector<tensorflow::Tensor> scratch_;  // kept alive until the call ends
  std::vector<Rounded> rounded_later_;
};

// Arrays of the type that is computed in.
template <class Device, typename T>
using WideArrays = OpArrays<Device, T, ComputeType<T>>;
// Arrays as stored, where the device's cores can read that.
template <class Device, typename T>
using StoredArrays = OpArrays<Device, T, typename Device::template Stored<T>>;

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_ARRAYS_H_

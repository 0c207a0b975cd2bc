// What every CPU OpKernel of this folder does around its core: check inputs, find the arrays, lend
// TensorFlow's threads.
#ifndef LATE_PHASE_KERNELS_CPU_OP_H_
#define LATE_PHASE_KERNELS_CPU_OP_H_

#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/parallel.h"
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

// The values of the int32 input of this name, each of which must be in [0, limit); `of_what` says
// what `limit` counts: "the rows of `table`".
absl::Status GetIndices(tensorflow::OpKernelContext* ctx, const std::string& op, const char* name,
                        int64_t limit, const char* of_what, const int32_t** indices);

// TensorFlow's intra-op threads.
Parallel IntraOpThreads(tensorflow::OpKernelContext* ctx);

// Asks the system for huge pages under a large array that is about to be written as a whole. The
// memory of arrays beyond 32 MiB comes from the system anew for every call (mallopt(3),
// M_MMAP_THRESHOLD), and to be given it by 4 KiB takes longer than to write it.
void AdviseHugePages(void* data, size_t bytes);

// The arrays of one call, in the type the core computes in: float for half and bfloat16, else T
// itself, in which case nothing is copied. After an error every method returns null and `status`
// says why.
template <typename T>
class ComputeArrays {
 public:
  using Scalar = std::conditional_t<std::is_same_v<T, double>, double, float>;

  explicit ComputeArrays(tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}

  const Scalar* Input(const char* name) {
    const tensorflow::Tensor* tensor = nullptr;
    if (!Keep(ctx_->input(name, &tensor))) return nullptr;
    if constexpr (kSame) {
      return tensor->flat<T>().data();
    } else {
      return Widened(*tensor);
    }
  }

  // The input's values in an array that may be overwritten: its own buffer if nobody else reads it,
  // else a copy.
  Scalar* Consumed(const char* name) {
    const tensorflow::Tensor* tensor = nullptr;
    if (!Keep(ctx_->input(name, &tensor))) return nullptr;
    if constexpr (kSame) {
      int index = 0, end = 0;
      tensorflow::Tensor own;
      if (!Keep(ctx_->op_kernel().InputRange(name, &index, &end)) ||
          !Keep(ctx_->forward_input_or_allocate_temp({index}, tensor->dtype(), tensor->shape(),
                                                     &own))) {
        return nullptr;
      }
      if (!own.SharesBufferWith(*tensor)) {
        own.flat<T>().device(ctx_->eigen_cpu_device()) = tensor->flat<T>();
      }
      scratch_.push_back(own);
      return own.flat<T>().data();
    } else {
      return Widened(*tensor);
    }
  }

  Scalar* Output(const char* name, const std::vector<int64_t>& dims) {
    tensorflow::Tensor* tensor = nullptr;
    tensorflow::TensorShape shape;  // built with a status: sizes of empty inputs may overflow here
    if (!Keep(tensorflow::TensorShape::BuildTensorShape(dims, &shape)) ||
        !Keep(ctx_->allocate_output(name, shape, &tensor))) {
      return nullptr;
    }
    AdviseHugePages(tensor->data(), tensor->TotalBytes());
    if constexpr (kSame) {
      return tensor->flat<T>().data();
    } else {
      Scalar* wide = Scratch(tensor->NumElements());
      if (wide != nullptr) rounded_later_.push_back({tensor, scratch_.back()});
      return wide;
    }
  }

  // An output of an input's shape, in its very buffer if nobody else reads that: the core must
  // allow the two to be one array.
  Scalar* OutputOver(const char* input, const char* output) {
    const tensorflow::Tensor* given = nullptr;
    if (!Keep(ctx_->input(input, &given))) return nullptr;
    if constexpr (kSame) {
      tensorflow::Tensor* tensor = nullptr;
      if (!Keep(ctx_->forward_input_or_allocate_output({absl::string_view(input)}, output,
                                                       given->shape(), &tensor))) {
        return nullptr;
      }
      AdviseHugePages(tensor->data(), tensor->TotalBytes());
      return tensor->flat<T>().data();
    } else {
      const auto dims = given->shape().dim_sizes();
      return Output(output, {dims.begin(), dims.end()});
    }
  }

  Scalar* Scratch(int64_t size) {
    tensorflow::Tensor tensor;
    if (!Keep(ctx_->allocate_temp(tensorflow::DataTypeToEnum<Scalar>::value,
                                  tensorflow::TensorShape({size}), &tensor))) {
      return nullptr;
    }
    AdviseHugePages(tensor.data(), tensor.TotalBytes());
    scratch_.push_back(tensor);
    return tensor.flat<Scalar>().data();
  }

  // Rounds the results into the outputs. To be called once, after the core has run.
  void Finish() {
    for (const Rounded& pair : rounded_later_) {
      const tensorflow::Tensor& wide = pair.wide;
      pair.output->template flat<T>().device(ctx_->eigen_cpu_device()) =
          wide.template flat<Scalar>().template cast<T>();
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  static constexpr bool kSame = std::is_same_v<T, Scalar>;

  bool Keep(const absl::Status& status) {
    status_.Update(status);
    return status_.ok();
  }

  Scalar* Widened(const tensorflow::Tensor& tensor) {
    Scalar* wide = Scratch(tensor.NumElements());
    if (wide != nullptr) {
      scratch_.back().template flat<Scalar>().device(ctx_->eigen_cpu_device()) =
          tensor.template flat<T>().template cast<Scalar>();
    }
    return wide;
  }

  struct Rounded {
    tensorflow::Tensor* output;
    tensorflow::Tensor wide;
  };

  tensorflow::OpKernelContext* ctx_;
  absl::Status status_;
  std::vector<tensorflow::Tensor> scratch_;  // kept alive until the call ends
  std::vector<Rounded> rounded_later_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_OP_H_

#include "kernels/op_kernel/cpu_device.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/errors.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace late_phase {
namespace {

template <typename T>
using Array = Eigen::TensorMap<Eigen::Tensor<T, 1, Eigen::RowMajor, Eigen::Index>>;

using Scheduling = tensorflow::thread::ThreadPool::SchedulingParams;

// to[i] = from[i], on TensorFlow's threads. Eigen's own way to use them waits on a condition
// variable, which needs a libstdc++ newer than RHEL 9's.
template <typename From, typename To>
void Convert(tensorflow::OpKernelContext* ctx, int64_t size, const From* from, To* to) {
  constexpr int64_t kBlock = 1 << 15;  // values; some microseconds
  ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
      size, Scheduling::Fixed(kBlock), [=](int64_t begin, int64_t end) {
        Array<To>(to + begin, end - begin) =
            Array<const From>(from + begin, end - begin).template cast<To>();
      });
}

}  // namespace

Parallel Cpu::threads() const {
  auto* pool = ctx_->device()->tensorflow_cpu_worker_threads()->workers;
  return {pool->NumThreads(), [pool](int64_t tasks, const std::function<void(int64_t)>& task) {
            pool->ParallelFor(tasks, Scheduling::Fixed(1), [&task](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) task(i);
            });
          }};
}

absl::Status Cpu::CheckIndices(const std::string& op, const char* name, int64_t limit,
                               const char* of_what) const {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(ctx_->input(name, &tensor));
  const auto indices = tensor->flat<int32_t>();
  for (int64_t i = 0; i < tensor->NumElements(); ++i) {
    const int32_t index = indices(i);
    if (index >= 0 && index < limit) continue;
    std::string place;  // "3,17"
    int64_t rest = i;
    for (int axis = tensor->dims() - 1; axis >= 0; --axis) {
      place = absl::StrCat(rest % tensor->dim_size(axis), place.empty() ? "" : ",", place);
      rest /= tensor->dim_size(axis);
    }
    return absl::InvalidArgumentError(absl::StrCat(op, ": `", name, "` must be in [0, ", limit,
                                                   "), ", of_what, ". Received: ", name, "[", place,
                                                   "]=", index));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Cpu::Widen(int64_t size, const T* from, float* to) const {
  Convert(ctx_, size, from, to);
  return absl::OkStatus();
}

template <typename T>
absl::Status Cpu::Round(int64_t size, const float* from, T* to) const {
  Convert(ctx_, size, from, to);
  return absl::OkStatus();
}

template absl::Status Cpu::Widen(int64_t, const Eigen::half*, float*) const;
template absl::Status Cpu::Widen(int64_t, const Eigen::bfloat16*, float*) const;
template absl::Status Cpu::Round(int64_t, const float*, Eigen::half*) const;
template absl::Status Cpu::Round(int64_t, const float*, Eigen::bfloat16*) const;

void Cpu::BeforeWriting([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) const {
#if defined(__linux__)
  constexpr uintptr_t kLarge = 32 << 20, kHugePage = 2 << 20;
  if (bytes < kLarge) return;
  // The huge pages that lie within the array. The system may decline.
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  madvise(static_cast<char*>(data) + (begin - address), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace late_phase

#include "kernels/cpu_op.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>

#include "tensorflow/core/framework/device_base.h"

namespace late_phase {

absl::Status GetScalar(tensorflow::OpKernelContext* ctx, const std::string& op, const char* name,
                       const tensorflow::Tensor** tensor) {
  if (absl::Status status = ctx->input(name, tensor); !status.ok()) return status;
  if ((*tensor)->dims() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": `", name, "` must be a scalar. Received: shape=", (*tensor)->shape().DebugString()));
}

absl::Status GetMember(tensorflow::OpKernelContext* ctx, const std::string& op, const char* stack,
                       int64_t K, int32_t* member) {
  const tensorflow::Tensor* tensor = nullptr;
  if (absl::Status status = GetScalar(ctx, op, "member", &tensor); !status.ok()) return status;
  *member = tensor->scalar<int32_t>()();
  if (*member >= 0 && *member < K) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": `member` must be in [0, ", K,
                                                 "), the rows of `", stack,
                                                 "`. Received: member=", *member));
}

absl::Status GetIndices(tensorflow::OpKernelContext* ctx, const std::string& op, const char* name,
                        int64_t limit, const char* of_what, const int32_t** indices) {
  const tensorflow::Tensor* tensor = nullptr;
  if (absl::Status status = ctx->input(name, &tensor); !status.ok()) return status;
  *indices = tensor->flat<int32_t>().data();
  for (int64_t i = 0; i < tensor->NumElements(); ++i) {
    const int32_t index = (*indices)[i];
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

Parallel IntraOpThreads(tensorflow::OpKernelContext* ctx) {
  using Scheduling = tensorflow::thread::ThreadPool::SchedulingParams;
  auto* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return {pool->NumThreads(), [pool](int64_t tasks, const std::function<void(int64_t)>& task) {
            pool->ParallelFor(tasks, Scheduling::Fixed(1), [&task](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) task(i);
            });
          }};
}

void AdviseHugePages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kLarge = 32 << 20, kHugePage = 2 << 20;
  if (bytes < kLarge) return;
  // The huge pages that lie within the array. The system may decline.
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace late_phase

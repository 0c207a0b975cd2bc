// The CPU as a device of OpKernels (kernels/op_kernel/arrays.h): TensorFlow's threads, and arrays
// in memory.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_CPU_DEVICE_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_CPU_DEVICE_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "kernels/cpu/parallel.h"
#include "kernels/half_types.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace late_phase {

class Cpu {
 public:
  static constexpr char kType[] = "CPU";
  // The type in which its cores take arrays of type T that they could read as stored.
  template <typename T>
  using Stored = ComputeType<T>;

  explicit Cpu(tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}

  // TensorFlow's intra-op threads.
  Parallel threads() const;

  // Every value of the int32 input of this name must be in [0, limit); `of_what` says what `limit`
  // counts: "the rows of `table`".
  [[nodiscard]] absl::Status CheckIndices(const std::string& op, const char* name, int64_t limit,
                                          const char* of_what) const;

  // T: Eigen::half, Eigen::bfloat16.
  template <typename T>
  [[nodiscard]] absl::Status Widen(int64_t size, const T* from, float* to) const;
  template <typename T>
  [[nodiscard]] absl::Status Round(int64_t size, const float* from, T* to) const;
  [[nodiscard]] absl::Status Copy(size_t bytes, const void* from, void* to) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  [[nodiscard]] absl::Status Zero(size_t bytes, void* to) const {
    if (bytes > 0) std::memset(to, 0, bytes);
    return absl::OkStatus();
  }

  // Asks the system for huge pages for a large array that is about to be written as a whole. Arrays
  // beyond 32 MiB get fresh memory from the system in every call (mallopt(3), M_MMAP_THRESHOLD),
  // and getting it in pages of 4 KiB takes longer than writing it.
  void BeforeWriting(void* data, size_t bytes) const;

 private:
  tensorflow::OpKernelContext* ctx_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_CPU_DEVICE_H_

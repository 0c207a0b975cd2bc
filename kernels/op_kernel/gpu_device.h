// The GPU as a device of OpKernels (kernels/op_kernel/arrays.h): everything runs on TensorFlow's
// stream, without waiting.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_GPU_DEVICE_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_GPU_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/stream.h"
#include "kernels/half_types.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace late_phase {

// Where a kernel's work goes. Made by gpu_stream.cc, or by a stand-in for it in the CUDA harness.
struct GpuStream {
  CudaStream stream;
  std::unique_ptr<CudaMatmul> matmul;
};
GpuStream GetGpuStream(tensorflow::OpKernelContext* ctx);

class Gpu {
 public:
  static constexpr char kType[] = "GPU";
  // The type in which its cores take arrays of type T that they could read as stored.
  template <typename T>
  using Stored =
      std::conditional_t<std::is_same_v<T, Eigen::half>, Half,
                         std::conditional_t<std::is_same_v<T, Eigen::bfloat16>, BFloat16, T>>;

  explicit Gpu(tensorflow::OpKernelContext* ctx) : ctx_(ctx), on_(GetGpuStream(ctx)) {}

  CudaStream stream() const { return on_.stream; }
  const CudaMatmul& matmul() const { return *on_.matmul; }

  // The status for what a core returned.
  [[nodiscard]] absl::Status ToStatus(const std::string& error) const;

  // Values in device memory cannot be refused without waiting: the cores turn what they affect into
  // NaN.
  [[nodiscard]] absl::Status CheckIndices(const std::string&, const char*, int64_t,
                                          const char*) const {
    return absl::OkStatus();
  }

  template <typename T>
  [[nodiscard]] absl::Status Widen(int64_t size, const T* from, float* to) const {
    return ToStatus(WidenGpu(size, reinterpret_cast<const Stored<T>*>(from), to, stream()));
  }
  template <typename T>
  [[nodiscard]] absl::Status Round(int64_t size, const float* from, T* to) const {
    return ToStatus(RoundGpu(size, from, reinterpret_cast<Stored<T>*>(to), stream()));
  }
  [[nodiscard]] absl::Status Copy(size_t bytes, const void* from, void* to) const {
    return ToStatus(CopyGpu(bytes, from, to, stream()));
  }
  [[nodiscard]] absl::Status Zero(size_t bytes, void* to) const {
    return ToStatus(ZeroGpu(bytes, to, stream()));
  }
  void BeforeWriting(void*, size_t) const {}

 private:
  tensorflow::OpKernelContext* ctx_;
  GpuStream on_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_GPU_DEVICE_H_

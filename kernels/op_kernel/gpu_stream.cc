// TensorFlow's stream and its BLAS: virtual calls of its stream executor, so that no second CUDA
// library is linked.
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/blas_product.h"
#include "kernels/op_kernel/gpu_device.h"
#include "kernels/op_kernel/tensorflow_release.h"
#include "tensorflow/core/kernels/numeric_options_utils.h"
#include "xla/stream_executor/blas.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace late_phase {
namespace {

namespace se = stream_executor;

class BlasMatmul : public CudaMatmul {
 public:
  explicit BlasMatmul(se::Stream* stream) : stream_(stream) {}

  std::string Run(const CudaProduct& product, const float* a, const float* b,
                  float* c) const override {
    return Multiply(product, a, b, c);
  }
  std::string Run(const CudaProduct& product, const double* a, const double* b,
                  double* c) const override {
    return Multiply(product, a, b, c);
  }

 private:
  template <typename T>
  [[nodiscard]] std::string Multiply(const CudaProduct& p, const T* a, const T* b, T* c) const {
    if (p.m == 0 || p.n == 0) return "";
    if (p.k == 0) {
      return p.add ? ""
                   : ZeroGpu(p.m * p.n * sizeof(T), c,
                             static_cast<CudaStream>(stream_->platform_specific_handle().stream));
    }
    constexpr int64_t kLargest = std::numeric_limits<int>::max();
    if (p.m > kLargest || p.k > kLargest || p.n > kLargest) {
      return absl::StrCat("BLAS takes rows and columns up to ", kLargest, ". Received: m=", p.m,
                          ", k=", p.k, ", n=", p.n);
    }
    se::blas::BlasSupport* blas = stream_->parent()->AsBlas();
    if (blas == nullptr) return "TensorFlow has no BLAS for this GPU";
    const BlasProduct by_columns(p);
    const auto transpose = [](bool transposed) {
      return transposed ? se::blas::Transpose::kTranspose : se::blas::Transpose::kNoTranspose;
    };
    const T alpha = 1, beta = p.add ? 1 : 0;
    const DeviceAddress left(const_cast<T*>(b), p.k * p.n * sizeof(T));
    const DeviceAddress right(const_cast<T*>(a), p.m * p.k * sizeof(T));
    DeviceAddress result(c, p.m * p.n * sizeof(T));
    const absl::Status status = blas->DoBlasGemm(
        stream_, transpose(by_columns.transpose_left), transpose(by_columns.transpose_right),
        by_columns.m, by_columns.n, by_columns.k, se::blas::ToDataType<T>::value, &alpha, left,
        by_columns.left_stride, right, by_columns.right_stride, &beta, &result,
        by_columns.result_stride, tensorflow::GetNumericOptions(), se::blas::CallContext::kNone);
    return status.ok() ? "" : std::string(status.message());
  }

  se::Stream* stream_;
};

}  // namespace

GpuStream GetGpuStream(tensorflow::OpKernelContext* ctx) {
  se::Stream* stream = ctx->op_device_context()->stream();
  return {static_cast<CudaStream>(stream->platform_specific_handle().stream),
          std::make_unique<BlasMatmul>(stream)};
}

}  // namespace late_phase

// Runs one OpKernel outside of any session, as registered for the CPU or for the GPU. The GPU is
// the CUDA harness, on memory that the host cannot reach while the OpKernel runs: whatever an
// OpKernel reads itself must have been registered as host memory, and it may not touch an output.
#ifndef LATE_PHASE_TESTS_KERNELS_KERNEL_RUNNER_H_
#define LATE_PHASE_TESTS_KERNELS_KERNEL_RUNNER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace late_phase {
namespace test_util {

struct KernelInput {
  // A tensor is an input: NOLINTNEXTLINE(google-explicit-constructor)
  KernelInput(tensorflow::Tensor value) : value(std::move(value)) {}
  tensorflow::Tensor value;
  bool is_variable = false;  // the kernel gets the handle of a variable of this value
};
KernelInput Variable(const tensorflow::Tensor& value);

struct KernelCall {
  std::string op;
  std::vector<KernelInput> inputs;  // in the order of the signature
  std::map<std::string, tensorflow::AttrValue> attrs = {};
  bool with_readers = false;  // somebody has read each variable and still holds its value
};

struct KernelResult {
  absl::Status status;
  std::vector<tensorflow::Tensor> outputs;
  std::vector<tensorflow::Tensor> variables;  // their values after the call, in order
  std::vector<tensorflow::Tensor> readers;    // what the readers hold then
};

// `device` is "CPU" or "GPU". All tensors given and returned are in host memory.
KernelResult RunKernel(const std::string& device, const KernelCall& call);

// After so many matrix products in a call, the GPU refuses further ones (HostMatmul::kRefused).
extern int64_t gpu_products;

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_KERNELS_KERNEL_RUNNER_H_

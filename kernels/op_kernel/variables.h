// Resource variables inside an OpKernel: looked up, checked, and locked as in TensorFlow's own
// training ops.
//
// All variables of an op are locked at once, in the order of their addresses, so that two ops never
// wait for each other. A variable whose value a reader still holds gets a new buffer before it is
// written, so the reader keeps what it read.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_VARIABLES_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_VARIABLES_H_

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace late_phase {

class LockedVariables {
 public:
  enum class Access { kRead, kWrite };

  LockedVariables(tensorflow::OpKernelContext* ctx, std::string op)
      : ctx_(ctx), op_(std::move(op)) {}

  // Looks up the resource inputs of these names and locks them, shared for reading or exclusively
  // for writing, until this object is destroyed. Call once. Fails if one has no value yet.
  [[nodiscard]] absl::Status Lock(absl::Span<const char* const> names, Access access);

  // The value of a locked variable, which must be of this type; DT_INVALID accepts any.
  [[nodiscard]] absl::StatusOr<tensorflow::Tensor*> Get(const char* name,
                                                        tensorflow::DataType dtype);

  // Gives these variables buffers of their own, on a device of kernels/op_kernel/arrays.h. Call
  // after all checks: the last step before writing.
  template <class Device>
  [[nodiscard]] absl::Status MakeWritable(const Device& device,
                                          absl::Span<const char* const> names) {
    return MakeWritable(names, [&device](size_t bytes, const void* from, void* to) {
      return device.Copy(bytes, from, to);
    });
  }

 private:
  using Copy = std::function<absl::Status(size_t bytes, const void* from, void* to)>;
  [[nodiscard]] absl::Status MakeWritable(absl::Span<const char* const> names, const Copy& copy);

  struct Variable {
    std::string name;  // of the input
    tensorflow::core::RefCountPtr<tensorflow::Var> var;
  };
  [[nodiscard]] absl::StatusOr<Variable> Find(const char* name) const;

  tensorflow::OpKernelContext* ctx_;
  std::string op_;
  std::vector<Variable> variables_;
  // Declared after the variables, so that locks are released before the mutexes can be destroyed.
  std::deque<tensorflow::mutex_lock> exclusive_;
  std::deque<tensorflow::tf_shared_lock> shared_;
};

// A late-phase variable must be [K >= 1, …], one row per member.
[[nodiscard]] absl::Status CheckStack(const std::string& op, const tensorflow::Tensor& var);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_VARIABLES_H_

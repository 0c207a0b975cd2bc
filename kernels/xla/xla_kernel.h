// What the kernels for XLA share. Such a kernel computes nothing: when TensorFlow compiles a graph
// (jit_compile=True), Build adds the op's equations to the program as XLA's own operations (HLO).
//
// Shapes and types are known then, and are refused with the messages of the other kernels. Values
// are not, unless they are constants of the graph: one that is out of range when the program runs
// makes what the op writes NaN (`Checks`), since a compiled program cannot report an error, and
// since XLA would quietly move an index into its range.
#ifndef LATE_PHASE_KERNELS_XLA_XLA_KERNEL_H_
#define LATE_PHASE_KERNELS_XLA_XLA_KERNEL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/op_kernel/check_range.h"
#include "kernels/shape_rules.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/xla_data.pb.h"

namespace late_phase {

class XlaKernel : public tensorflow::XlaOpKernel {
 public:
  using tensorflow::XlaOpKernel::XlaOpKernel;
  void Compile(tensorflow::XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Build(ctx)); }

 protected:
  [[nodiscard]] virtual absl::Status Build(tensorflow::XlaOpKernelContext* ctx) = 0;
};

// On both of XLA's devices. REGISTER_XLA_OP would not do: TensorFlow reads its registry once, at
// the first compilation of a process, which may be before this library is loaded.
#define LATE_PHASE_REGISTER_XLA(OP, ...)                                             \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>" OP).Device("XLA_CPU_JIT"), __VA_ARGS__); \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>" OP).Device("XLA_GPU_JIT"), __VA_ARGS__)

// The type that is computed in where arrays hold `type`, as ComputeType in kernels/half_types.h.
xla::PrimitiveType WideType(xla::PrimitiveType type);
tensorflow::DataType WideType(tensorflow::DataType type);
xla::PrimitiveType XlaType(tensorflow::DataType type);
// One of the four types of all ops, or an error about the variable `name`.
[[nodiscard]] absl::Status CheckFloating(const std::string& op, const char* name,
                                         tensorflow::DataType type);

// Checks all inputs against their rules, which are in the order of the signature. Returns the
// sizes.
[[nodiscard]] absl::StatusOr<ShapeMatcher> CheckInputs(tensorflow::XlaOpKernelContext* ctx,
                                                       const std::string& op,
                                                       absl::Span<const ShapeRule> rules);
[[nodiscard]] absl::Status CheckScalar(tensorflow::XlaOpKernelContext* ctx, const std::string& op,
                                       const char* name);

// What must hold of the values of one call.
class Checks {
 public:
  Checks(tensorflow::XlaOpKernelContext* ctx, std::string op);

  void Require(xla::XlaOp condition) { hold_ = xla::And(hold_, condition); }
  xla::XlaOp hold() const { return hold_; }
  // x, or NaN if a check does not hold; of any floating type and shape.
  xla::XlaOp NanUnlessHold(xla::XlaOp x) const;

  // The scalar int32 input `member`, which must be one of the K rows of `stack`.
  [[nodiscard]] absl::StatusOr<xla::XlaOp> Member(const char* stack, int64_t K);
  // A scalar input in a range, as a number of type `wide`.
  [[nodiscard]] absl::StatusOr<xla::XlaOp> InRange(const char* name, const Range& range,
                                                   xla::PrimitiveType wide);

 private:
  tensorflow::XlaOpKernelContext* ctx_;
  std::string op_;
  xla::XlaOp hold_;
};

// A variable that is an input of the op.
struct XlaVariable {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  xla::XlaOp value;
};

// Its value now; `dtype` is the type it must have, DT_INVALID for any.
[[nodiscard]] absl::StatusOr<XlaVariable> ReadVariable(tensorflow::XlaOpKernelContext* ctx,
                                                       const std::string& op, const char* name,
                                                       tensorflow::DataType dtype);
// Refuses one variable for two of these inputs.
[[nodiscard]] absl::Status CheckDistinct(tensorflow::XlaOpKernelContext* ctx, const std::string& op,
                                         absl::Span<const char* const> names);
// A late-phase variable must be [K >= 1, …]. Returns the shape of a row.
[[nodiscard]] absl::StatusOr<tensorflow::TensorShape> RowShape(const std::string& op,
                                                               const XlaVariable& var);

// Row `index` of [K, …], as […], and the array with that row replaced. XLA does the latter in place
// where the array is a variable, or not read afterwards.
xla::XlaOp Row(xla::XlaOp stack, xla::XlaOp index);
xla::XlaOp WithRow(xla::XlaOp stack, xla::XlaOp index, xla::XlaOp row);
// Zeros but for one row.
xla::XlaOp StackOfZeros(int64_t K, xla::XlaOp index, xla::XlaOp row);

xla::Shape ShapeOf(xla::XlaOp x);
xla::XlaOp Number(xla::XlaBuilder* builder, xla::PrimitiveType type, double value);
xla::XlaOp Integer(xla::XlaBuilder* builder, int32_t value);
xla::XlaOp ZerosOf(xla::XlaBuilder* builder, xla::PrimitiveType type,
                   absl::Span<const int64_t> dims);
// [C] as […, C, …] of the given shape, C being its dimension `axis`.
xla::XlaOp AlongAxis(xla::XlaOp vector, const xla::Shape& shape, int64_t axis);
xla::XlaOp Sum(xla::XlaOp x, absl::Span<const int64_t> axes);

// a·b with dimension `a_axis` of a, [·, ·], summed against `b_axis` of b. Products of half types
// are summed in float; floats use TensorFloat-32 where TensorFlow is allowed to.
xla::XlaOp MatrixProduct(xla::XlaOp a, int64_t a_axis, xla::XlaOp b, int64_t b_axis);

// step(i, state) -> state, `steps` times, from i = 0 on.
using LoopStep = std::function<std::vector<xla::XlaOp>(xla::XlaOp i, absl::Span<const xla::XlaOp>)>;
[[nodiscard]] absl::StatusOr<std::vector<xla::XlaOp>> Loop(xla::XlaBuilder* builder, int64_t steps,
                                                           absl::Span<const xla::XlaOp> state,
                                                           const LoopStep& step);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_XLA_XLA_KERNEL_H_

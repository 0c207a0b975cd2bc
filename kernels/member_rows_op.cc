// OpKernels on all members of a variable [K, …]: ReadMember, Spawn, SwaUpdate, Collapse. Contracts:
// docs/ops.md.
#include "kernels/member_rows.h"
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/check_range.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/op_kernel/variables.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A locked `var` [K >= 1, …].
struct Stack {
  Tensor* var;
  TensorShape row;  // of one member
};

// `var` must be of the given type (DT_INVALID: any type).
[[nodiscard]] absl::StatusOr<Stack> LockStack(LockedVariables* variables, const std::string& op,
                                              LockedVariables::Access access,
                                              tensorflow::DataType dtype) {
  TF_RETURN_IF_ERROR(variables->Lock({"var"}, access));
  TF_ASSIGN_OR_RETURN(Tensor* const var, variables->Get("var", dtype));
  TF_RETURN_IF_ERROR(CheckStack(op, *var));
  Stack stack{var, var->shape()};
  stack.row.RemoveDim(0);
  return stack;
}

template <typename T>
absl::Status Spawn(const Cpu& cpu, const SpawnArgs<T>& args) {
  SpawnCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Spawn(const Gpu& gpu, const SpawnArgs<T>& args) {
  return gpu.ToStatus(SpawnGpu(args, gpu.stream()));
}
template <typename T>
absl::Status SwaUpdate(const Cpu& cpu, int64_t D, const T* source, int64_t count, T* average) {
  SwaUpdateCpu(D, source, count, average, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status SwaUpdate(const Gpu& gpu, int64_t D, const T* source, int64_t count,
                       ComputeType<T>* average) {
  return gpu.ToStatus(SwaUpdateGpu(D, source, count, average, gpu.stream()));
}
template <typename T>
absl::Status Collapse(const Cpu& cpu, int64_t K, int64_t D, const T* rows, T* mean) {
  CollapseCpu(K, D, rows, mean, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Collapse(const Gpu& gpu, int64_t K, int64_t D, const T* rows, T* mean) {
  return gpu.ToStatus(CollapseGpu(K, D, rows, mean, gpu.stream()));
}

// Calls body(T()) for the type of a tensor.
template <typename Body>
[[nodiscard]] absl::Status ForType(const std::string& op, const char* name,
                                   tensorflow::DataType dtype, Body body) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:  // NOLINT(bugprone-branch-clone): the types of the zeros differ
      return body(float());
    case tensorflow::DT_DOUBLE:
      return body(double());
    case tensorflow::DT_HALF:
      return body(Eigen::half());
    case tensorflow::DT_BFLOAT16:
      return body(Eigen::bfloat16());
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          op, ": `", name, "` must be of type half, bfloat16, float or double. Received: type=",
          tensorflow::DataTypeString(dtype)));
  }
}

// Ops without a type attribute use the variable's.
class StateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 protected:
  [[nodiscard]] virtual absl::Status Run(OpKernelContext* ctx) = 0;
};

// Attribute dtype: the type of the variable and of the output.
class ReadingOp : public StateOp {
 public:
  explicit ReadingOp(OpKernelConstruction* ctx) : StateOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

 protected:
  tensorflow::DataType dtype_;
};

template <class Device>
class ReadMemberOp : public ReadingOp {
 public:
  using ReadingOp::ReadingOp;

 private:
  [[nodiscard]] absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    TF_ASSIGN_OR_RETURN(const Stack stack, LockStack(&variables, type_string(),
                                                     LockedVariables::Access::kRead, dtype_));
    TF_ASSIGN_OR_RETURN(const int32_t member,
                        GetMember(ctx, type_string(), "var", stack.var->dim_size(0)));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, stack.row, &output));
    const size_t bytes = output->TotalBytes();
    return Device(ctx).Copy(bytes, static_cast<const char*>(stack.var->data()) + member * bytes,
                            output->data());
  }
};

template <class Device>
class CollapseOp : public ReadingOp {
 public:
  using ReadingOp::ReadingOp;

 private:
  [[nodiscard]] absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    TF_ASSIGN_OR_RETURN(const Stack stack, LockStack(&variables, type_string(),
                                                     LockedVariables::Access::kRead, dtype_));
    return ForType(type_string(), "var", dtype_, [&](auto zero) -> absl::Status {
      using T = decltype(zero);
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      auto* mean = arrays.Output("mean", stack.row.dim_sizes());
      const auto* rows = arrays.Part(*stack.var, 0, stack.var->NumElements());
      TF_RETURN_IF_ERROR(arrays.status());
      TF_RETURN_IF_ERROR(
          Collapse(device, stack.var->dim_size(0), stack.row.num_elements(), rows, mean));
      return arrays.Finish();
    });
  }
};

template <class Device>
class SpawnOp : public StateOp {
 public:
  explicit SpawnOp(OpKernelConstruction* ctx) : StateOp(ctx) {}

 private:
  [[nodiscard]] absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    TF_ASSIGN_OR_RETURN(const Stack stack,
                        LockStack(&variables, type_string(), LockedVariables::Access::kWrite,
                                  tensorflow::DT_INVALID));
    TF_ASSIGN_OR_RETURN(const Tensor* const sigma, GetScalar(ctx, type_string(), "sigma"));
    const Tensor& seed = ctx->input(2);
    if (seed.shape() != TensorShape({2})) {
      return absl::InvalidArgumentError(absl::StrCat(
          type_string(), ": `seed` must be [2]. Received: shape=", seed.shape().DebugString()));
    }
    TF_ASSIGN_OR_RETURN(const double scale, ReadSigma(*sigma));
    return ForType(type_string(), "var", stack.var->dtype(), [&](auto zero) -> absl::Status {
      using T = decltype(zero);
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      WideArrays<Device, double> sums(ctx, device);
      TF_RETURN_IF_ERROR(variables.MakeWritable(device, {"var"}));
      const SpawnArgs<typename Device::template Stored<T>> args = {
          stack.var->dim_size(0),
          stack.row.num_elements(),
          arrays.Updated(stack.var, 0, stack.var->NumElements()),
          static_cast<ComputeType<T>>(scale),
          {seed.flat<int64_t>()(0), seed.flat<int64_t>()(1)},
          sums.Scratch(SpawnSums(stack.row.num_elements()))};
      TF_RETURN_IF_ERROR(arrays.status());
      TF_RETURN_IF_ERROR(sums.status());
      TF_RETURN_IF_ERROR(Spawn(device, args));
      return arrays.Finish();
    });
  }

  [[nodiscard]] absl::StatusOr<double> ReadSigma(const Tensor& tensor) const {
    double sigma = 0;
    TF_RETURN_IF_ERROR(ForType(type_string(), "sigma", tensor.dtype(), [&](auto zero) {
      sigma = static_cast<double>(tensor.scalar<decltype(zero)>()());
      return absl::OkStatus();
    }));
    TF_RETURN_IF_ERROR(CheckRange(type_string(), "sigma", sigma, kNotNegative));
    return sigma;
  }
};

template <class Device>
class SwaUpdateOp : public StateOp {
 public:
  explicit SwaUpdateOp(OpKernelConstruction* ctx) : StateOp(ctx) {}

 private:
  [[nodiscard]] absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    TF_RETURN_IF_ERROR(variables.Lock({"average", "source"}, LockedVariables::Access::kWrite));
    TF_ASSIGN_OR_RETURN(Tensor* const source, variables.Get("source", tensorflow::DT_INVALID));
    return ForType(type_string(), "source", source->dtype(), [&](auto zero) -> absl::Status {
      using T = decltype(zero);
      using Scalar = ComputeType<T>;
      TF_ASSIGN_OR_RETURN(Tensor* const average,
                          variables.Get("average", tensorflow::DataTypeToEnum<Scalar>::value));
      const Tensor& count = ctx->input(2);
      TF_RETURN_IF_ERROR(Check(*average, *source, count));
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      TF_RETURN_IF_ERROR(variables.MakeWritable(device, {"average"}));
      const auto* samples = arrays.Part(*source, 0, source->NumElements());
      TF_RETURN_IF_ERROR(arrays.status());
      return SwaUpdate(device, average->NumElements(), samples, count.scalar<int64_t>()(),
                       average->flat<Scalar>().data());
    });
  }

  [[nodiscard]] absl::Status Check(const Tensor& average, const Tensor& source,
                                   const Tensor& count) const {
    if (average.shape() != source.shape()) {
      return absl::InvalidArgumentError(absl::StrCat(
          type_string(), ": `average` must have the shape of `source`, ",
          source.shape().DebugString(), ". Received: shape=", average.shape().DebugString()));
    }
    if (count.dims() != 0 || count.scalar<int64_t>()() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(type_string(), ": `count` must be a scalar >= 0. Received: ",
                       count.dims() != 0 ? absl::StrCat("shape=", count.shape().DebugString())
                                         : absl::StrCat("count=", count.scalar<int64_t>()())));
    }
    return absl::OkStatus();
  }
};

// Handles and scalars are in host memory.
#define REGISTER(DEVICE)                                                                         \
  REGISTER_KERNEL_BUILDER(                                                                       \
      Name("LatePhase>ReadMember").Device(DEVICE::kType).HostMemory("var").HostMemory("member"), \
      ReadMemberOp<DEVICE>);                                                                     \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>Collapse").Device(DEVICE::kType).HostMemory("var"),    \
                          CollapseOp<DEVICE>);                                                   \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>Spawn")                                                \
                              .Device(DEVICE::kType)                                             \
                              .HostMemory("var")                                                 \
                              .HostMemory("sigma")                                               \
                              .HostMemory("seed"),                                               \
                          SpawnOp<DEVICE>);                                                      \
  REGISTER_KERNEL_BUILDER(Name("LatePhase>SwaUpdate")                                            \
                              .Device(DEVICE::kType)                                             \
                              .HostMemory("average")                                             \
                              .HostMemory("source")                                              \
                              .HostMemory("count"),                                              \
                          SwaUpdateOp<DEVICE>)
REGISTER(Cpu);
REGISTER(Gpu);
#undef REGISTER

}  // namespace
}  // namespace late_phase

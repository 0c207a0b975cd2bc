// OpKernels on all members of a variable [K, …]: ReadMember, Spawn, SwaUpdate, Collapse. Contracts:
// docs/ops.md.
#include <limits>

#include "kernels/member_rows.h"
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/check_range.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/op_kernel/variables.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Locks `var`, which must be [K >= 1, …] of the given type (DT_INVALID: of any). Returns it and the
// shape of a row.
absl::Status LockStack(LockedVariables* variables, const std::string& op,
                       LockedVariables::Access access, tensorflow::DataType dtype, Tensor** var,
                       TensorShape* row) {
  absl::Status status = variables->Lock({"var"}, access);
  if (status.ok()) status = variables->Get("var", dtype, var);
  if (status.ok()) status = CheckStack(op, **var);
  if (!status.ok()) return status;
  *row = (*var)->shape();
  row->RemoveDim(0);
  return absl::OkStatus();
}

template <typename T>
absl::Status Spawn(const Cpu& cpu, const SpawnArgs<T>& args) {
  SpawnCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Spawn(const Gpu& gpu, const SpawnArgs<T>& args) {
  return gpu.StatusOf(SpawnGpu(args, gpu.stream()));
}
template <typename T>
absl::Status SwaUpdate(const Cpu& cpu, int64_t D, const T* source, int64_t count, T* average) {
  SwaUpdateCpu(D, source, count, average, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status SwaUpdate(const Gpu& gpu, int64_t D, const T* source, int64_t count,
                       ComputeType<T>* average) {
  return gpu.StatusOf(SwaUpdateGpu(D, source, count, average, gpu.stream()));
}
template <typename T>
absl::Status Collapse(const Cpu& cpu, int64_t K, int64_t D, const T* rows, T* mean) {
  CollapseCpu(K, D, rows, mean, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Collapse(const Gpu& gpu, int64_t K, int64_t D, const T* rows, T* mean) {
  return gpu.StatusOf(CollapseGpu(K, D, rows, mean, gpu.stream()));
}

// Calls body(T()) for the type of a tensor.
template <typename Body>
absl::Status ForType(const std::string& op, const char* name, tensorflow::DataType dtype,
                     Body body) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
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

// Ops without a type of their own ask the variable for it.
class StateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 protected:
  virtual absl::Status Run(OpKernelContext* ctx) = 0;
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
  absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    Tensor* var = nullptr;
    TensorShape row;
    absl::Status status =
        LockStack(&variables, type_string(), LockedVariables::Access::kRead, dtype_, &var, &row);
    if (!status.ok()) return status;
    int32_t member = 0;
    if (status = GetMember(ctx, type_string(), "var", var->dim_size(0), &member); !status.ok()) {
      return status;
    }
    Tensor* output = nullptr;
    if (status = ctx->allocate_output(0, row, &output); !status.ok()) return status;
    const size_t bytes = output->TotalBytes();
    return Device(ctx).Copy(bytes, static_cast<const char*>(var->data()) + member * bytes,
                            output->data());
  }
};

template <class Device>
class CollapseOp : public ReadingOp {
 public:
  using ReadingOp::ReadingOp;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    Tensor* var = nullptr;
    TensorShape row;
    absl::Status status =
        LockStack(&variables, type_string(), LockedVariables::Access::kRead, dtype_, &var, &row);
    if (!status.ok()) return status;
    return ForType(type_string(), "var", dtype_, [&](auto zero) {
      using T = decltype(zero);
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      const auto sizes = row.dim_sizes();
      auto* mean = arrays.Output("mean", {sizes.begin(), sizes.end()});
      const auto* rows = arrays.Part(*var, 0, var->NumElements());
      absl::Status done = arrays.status();
      if (done.ok()) done = Collapse(device, var->dim_size(0), row.num_elements(), rows, mean);
      done.Update(arrays.Finish());
      return done;
    });
  }
};

template <class Device>
class SpawnOp : public StateOp {
 public:
  explicit SpawnOp(OpKernelConstruction* ctx) : StateOp(ctx) {}

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    Tensor* var = nullptr;
    TensorShape row;
    absl::Status status = LockStack(&variables, type_string(), LockedVariables::Access::kWrite,
                                    tensorflow::DT_INVALID, &var, &row);
    if (!status.ok()) return status;
    const Tensor *sigma_input = nullptr, &seed = ctx->input(2);
    if (status = GetScalar(ctx, type_string(), "sigma", &sigma_input); !status.ok()) return status;
    if (seed.shape() != TensorShape({2})) {
      return absl::InvalidArgumentError(absl::StrCat(
          type_string(), ": `seed` must be [2]. Received: shape=", seed.shape().DebugString()));
    }
    double sigma = 0;
    status = ForType(type_string(), "sigma", sigma_input->dtype(), [&](auto zero) {
      sigma = static_cast<double>(sigma_input->scalar<decltype(zero)>()());
      return absl::OkStatus();
    });
    status.Update(CheckRange(type_string(), "sigma", sigma,
                             {0, std::numeric_limits<double>::infinity(), false, true}));
    if (!status.ok()) return status;
    return ForType(type_string(), "var", var->dtype(), [&](auto zero) {
      using T = decltype(zero);
      using Stored = typename Device::template Stored<T>;
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      WideArrays<Device, double> sums(ctx, device);
      absl::Status done = variables.MakeWritable(device, {"var"});
      if (!done.ok()) return done;
      SpawnArgs<Stored> args = {var->dim_size(0),
                                row.num_elements(),
                                arrays.Updated(var, 0, var->NumElements()),
                                static_cast<ComputeType<T>>(sigma),
                                {seed.flat<int64_t>()(0), seed.flat<int64_t>()(1)},
                                sums.Scratch(SpawnSums(row.num_elements()))};
      done = arrays.status();
      done.Update(sums.status());
      if (done.ok()) done = Spawn(device, args);
      done.Update(arrays.Finish());
      return done;
    });
  }
};

template <class Device>
class SwaUpdateOp : public StateOp {
 public:
  explicit SwaUpdateOp(OpKernelConstruction* ctx) : StateOp(ctx) {}

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedVariables variables(ctx, type_string());
    Tensor *average = nullptr, *source = nullptr;
    absl::Status status = variables.Lock({"average", "source"}, LockedVariables::Access::kWrite);
    if (status.ok()) status = variables.Get("source", tensorflow::DT_INVALID, &source);
    if (!status.ok()) return status;
    return ForType(type_string(), "source", source->dtype(), [&](auto zero) {
      using T = decltype(zero);
      using Scalar = ComputeType<T>;
      absl::Status ready =
          variables.Get("average", tensorflow::DataTypeToEnum<Scalar>::value, &average);
      if (!ready.ok()) return ready;
      const Tensor& count = ctx->input(2);
      if (average->shape() != source->shape()) {
        return absl::InvalidArgumentError(absl::StrCat(
            type_string(), ": `average` must have the shape of `source`, ",
            source->shape().DebugString(), ". Received: shape=", average->shape().DebugString()));
      }
      if (count.dims() != 0 || count.scalar<int64_t>()() < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(type_string(), ": `count` must be a scalar >= 0. Received: ",
                         count.dims() != 0 ? absl::StrCat("shape=", count.shape().DebugString())
                                           : absl::StrCat("count=", count.scalar<int64_t>()())));
      }
      const Device device(ctx);
      StoredArrays<Device, T> arrays(ctx, device);
      ready = variables.MakeWritable(device, {"average"});
      const auto* samples = arrays.Part(*source, 0, source->NumElements());
      ready.Update(arrays.status());
      if (!ready.ok()) return ready;
      return SwaUpdate(device, average->NumElements(), samples, count.scalar<int64_t>()(),
                       average->flat<Scalar>().data());
    });
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

// CPU OpKernels on all members of a variable [K, …]: ReadMember, Spawn, SwaUpdate, Collapse.
// Contracts: docs/ops.md.
#define EIGEN_USE_THREADS
#include <limits>

#include "kernels/check_range.h"
#include "kernels/cpu_op.h"
#include "kernels/member_rows.h"
#include "kernels/variables_op.h"

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

// The values of a tensor in the type the cores compute in: the tensor itself, or a wider copy of
// half types.
template <typename T>
absl::Status Widen(OpKernelContext* ctx, const Tensor& tensor, Tensor* wide) {
  using Scalar = typename ComputeArrays<T>::Scalar;
  if constexpr (std::is_same_v<T, Scalar>) {
    *wide = tensor;
  } else {
    absl::Status status =
        ctx->allocate_temp(tensorflow::DataTypeToEnum<Scalar>::value, tensor.shape(), wide);
    if (!status.ok()) return status;
    wide->flat<Scalar>().device(ctx->eigen_cpu_device()) = tensor.flat<T>().template cast<Scalar>();
  }
  return absl::OkStatus();
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
    std::memcpy(output->data(),
                static_cast<const char*>(var->data()) + member * output->TotalBytes(),
                output->TotalBytes());
    return absl::OkStatus();
  }
};

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
      using Scalar = typename ComputeArrays<T>::Scalar;
      ComputeArrays<T> arrays(ctx);
      const auto sizes = row.dim_sizes();
      Scalar* mean = arrays.Output("mean", {sizes.begin(), sizes.end()});
      Tensor wide;
      absl::Status widened = arrays.status();
      if (widened.ok()) widened = Widen<T>(ctx, *var, &wide);
      if (!widened.ok()) return widened;
      CollapseCpu<Scalar>(var->dim_size(0), row.num_elements(), wide.flat<Scalar>().data(), mean,
                          IntraOpThreads(ctx));
      arrays.Finish();
      return absl::OkStatus();
    });
  }
};

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
      using Scalar = typename ComputeArrays<T>::Scalar;
      absl::Status ready = variables.MakeWritable({"var"});
      Tensor wide, sums;
      if (ready.ok()) ready = Widen<T>(ctx, *var, &wide);
      if (ready.ok()) {
        ready = ctx->allocate_temp(tensorflow::DT_DOUBLE,
                                   TensorShape({SpawnSums(row.num_elements())}), &sums);
      }
      if (!ready.ok()) return ready;
      SpawnCpu<Scalar>({var->dim_size(0),
                        row.num_elements(),
                        wide.flat<Scalar>().data(),
                        static_cast<Scalar>(sigma),
                        {seed.flat<int64_t>()(0), seed.flat<int64_t>()(1)},
                        sums.flat<double>().data()},
                       IntraOpThreads(ctx));
      if constexpr (!std::is_same_v<T, Scalar>) {
        var->flat<T>().device(ctx->eigen_cpu_device()) = wide.flat<Scalar>().template cast<T>();
      }
      return absl::OkStatus();
    });
  }
};

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
      using Scalar = typename ComputeArrays<T>::Scalar;
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
      Tensor wide;
      ready = variables.MakeWritable({"average"});
      if (ready.ok()) ready = Widen<T>(ctx, *source, &wide);
      if (!ready.ok()) return ready;
      SwaUpdateCpu<Scalar>(average->NumElements(), wide.flat<Scalar>().data(),
                           count.scalar<int64_t>()(), average->flat<Scalar>().data(),
                           IntraOpThreads(ctx));
      return absl::OkStatus();
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("LatePhase>ReadMember").Device(tensorflow::DEVICE_CPU), ReadMemberOp);
REGISTER_KERNEL_BUILDER(Name("LatePhase>Collapse").Device(tensorflow::DEVICE_CPU), CollapseOp);
REGISTER_KERNEL_BUILDER(Name("LatePhase>Spawn").Device(tensorflow::DEVICE_CPU), SpawnOp);
REGISTER_KERNEL_BUILDER(Name("LatePhase>SwaUpdate").Device(tensorflow::DEVICE_CPU), SwaUpdateOp);

}  // namespace
}  // namespace late_phase

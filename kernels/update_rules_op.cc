// OpKernels of the member and base updates: check, lock, call the core. Contracts: docs/ops.md.
#include <limits>

#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/check_range.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/op_kernel/variables.h"
#include "kernels/update_rules.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

enum class Rule { kSgd, kMomentum, kAdam };
// A member update works on row `member` of [K, …] at once; a base update gathers gradients and acts
// on the last of a cycle.
enum class Target { kMember, kBase };

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Range kNotNegative{0, kInfinity, false, true};
constexpr Range kFraction{0, 1, false, true};

// The variables of one call. Slots and sum have the shape of var.
struct State {
  Tensor* var = nullptr;
  Tensor* sum = nullptr;    // base only, and null if the cycle is 1
  Tensor* accum = nullptr;  // momentum only
  Tensor* m = nullptr;      // Adam only
  Tensor* v = nullptr;
  Tensor* count = nullptr;  // int64, [K] for members and [] for the base
};

template <typename T>
absl::Status Apply(const Cpu& cpu, const SgdArgs<T>& args) {
  ApplySgdCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const SgdArgs<T>& args) {
  return gpu.StatusOf(ApplySgdGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Apply(const Cpu& cpu, const MomentumArgs<T>& args) {
  ApplyMomentumCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const MomentumArgs<T>& args) {
  return gpu.StatusOf(ApplyMomentumGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Apply(const Cpu& cpu, const AdamArgs<T>& args) {
  ApplyAdamCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const AdamArgs<T>& args) {
  return gpu.StatusOf(ApplyAdamGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Accumulate(const Cpu& cpu, int64_t D, const T* grad, T* sum) {
  AccumulateCpu(D, grad, sum, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Accumulate(const Gpu& gpu, int64_t D, const T* grad, ComputeType<T>* sum) {
  return gpu.StatusOf(AccumulateGpu(D, grad, sum, gpu.stream()));
}

template <class Device, typename T, Rule kRule, Target kTarget>
class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    if constexpr (kRule == Rule::kMomentum) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
      OP_REQUIRES_OK(ctx, ctx->GetAttr("lr_in_accum", &lr_in_accum_));
    }
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Update(ctx)); }

 private:
  using Scalar = ComputeType<T>;
  using Stored = typename Device::template Stored<T>;

  absl::Status Hyper(OpKernelContext* ctx, const char* name, const Range& range, Scalar* value) {
    const Tensor* tensor = nullptr;
    if (absl::Status status = GetScalar(ctx, type_string(), name, &tensor); !status.ok())
      return status;
    *value = static_cast<Scalar>(tensor->scalar<T>()());
    return CheckRange(type_string(), name, static_cast<double>(*value), range);
  }

  absl::Status Index(OpKernelContext* ctx, const char* name, int32_t* value) {
    const Tensor* tensor = nullptr;
    if (absl::Status status = GetScalar(ctx, type_string(), name, &tensor); !status.ok())
      return status;
    *value = tensor->scalar<int32_t>()();
    return absl::OkStatus();
  }

  absl::Status SameShape(const char* name, const Tensor& tensor,
                         const tensorflow::TensorShape& shape) {
    if (tensor.shape() == shape) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `", name, "` must have the shape ", shape.DebugString(),
                     ", as `var` demands. Received: shape=", tensor.shape().DebugString()));
  }

  absl::Status Find(LockedVariables* variables, bool sums, State* s) {
    const auto wide = tensorflow::DataTypeToEnum<Scalar>::value;
    auto get = [&](const char* name, tensorflow::DataType dtype, Tensor** tensor) {
      return variables->Get(name, dtype, tensor);
    };
    absl::Status status = get("var", tensorflow::DataTypeToEnum<T>::value, &s->var);
    if (sums) status.Update(get("sum", wide, &s->sum));
    if (kRule == Rule::kMomentum) status.Update(get("accum", wide, &s->accum));
    if (kRule == Rule::kAdam) {
      status.Update(get("m", wide, &s->m));
      status.Update(get("v", wide, &s->v));
      status.Update(get("count", tensorflow::DT_INT64, &s->count));
    }
    if (!status.ok()) return status;
    if (kTarget == Target::kMember) status = CheckStack(type_string(), *s->var);
    if (!status.ok()) return status;
    for (auto [name, tensor] : {std::pair("sum", s->sum), std::pair("accum", s->accum),
                                std::pair("m", s->m), std::pair("v", s->v)}) {
      if (tensor != nullptr) status.Update(SameShape(name, *tensor, s->var->shape()));
    }
    if (s->count != nullptr) {
      tensorflow::TensorShape counts;
      if (kTarget == Target::kMember) counts.AddDim(s->var->dim_size(0));
      status.Update(SameShape("count", *s->count, counts));
    }
    return status;
  }

  absl::Status Update(OpKernelContext* ctx) {
    std::vector<const char*> names = {"var"};
    if (kRule == Rule::kMomentum) names.push_back("accum");
    if (kRule == Rule::kAdam) names.insert(names.end(), {"m", "v", "count"});
    int32_t cycle = 0;
    if (kTarget == Target::kBase) {
      if (absl::Status status = Index(ctx, "cycle", &cycle); !status.ok()) return status;
    }
    // A sum of one gradient is not worth keeping: with a cycle of 1 there need be none.
    const bool sums = kTarget == Target::kBase && cycle != 1;
    if (sums) names.push_back("sum");
    LockedVariables variables(ctx, type_string());
    absl::Status status = variables.Lock(names, LockedVariables::Access::kWrite);
    State s;
    if (status.ok()) status = Find(&variables, sums, &s);
    if (!status.ok()) return status;

    Scalar lr = 0, weight_decay = 0, scale = 1, momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0;
    status.Update(Hyper(ctx, "lr", kNotNegative, &lr));
    status.Update(Hyper(ctx, "weight_decay", kNotNegative, &weight_decay));
    if (kRule == Rule::kMomentum) status.Update(Hyper(ctx, "momentum", kFraction, &momentum));
    if (kRule == Rule::kAdam) {
      status.Update(Hyper(ctx, "beta1", kFraction, &beta1));
      status.Update(Hyper(ctx, "beta2", kFraction, &beta2));
      status.Update(Hyper(ctx, "epsilon", kNotNegative, &epsilon));
    }
    int32_t member = 0;
    status.Update(Index(ctx, "member", &member));
    if (kTarget == Target::kBase) {
      status.Update(Hyper(ctx, "scale", {0, 1, true, false}, &scale));
      if (status.ok() && cycle < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(type_string(), ": `cycle` must be at least 1. Received: cycle=", cycle));
      }
    }
    if (!status.ok()) return status;
    const int64_t rows = kTarget == Target::kMember ? s.var->dim_size(0) : cycle;
    if (member < 0 || member >= rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(type_string(), ": `member` must be in [0, ", rows, "), ",
                       kTarget == Target::kMember ? "the rows of `var`" : "the length of `cycle`",
                       ". Received: member=", member));
    }

    // The gradient: of one row or of the stack for a member, of the whole for the base.
    const Tensor* grad = nullptr;
    if (status = ctx->input("grad", &grad); !status.ok()) return status;
    int64_t D = s.var->NumElements(), offset = 0, grad_offset = 0;
    if (kTarget == Target::kMember) {
      D /= rows;
      offset = member * D;
      tensorflow::TensorShape row = s.var->shape();
      row.RemoveDim(0);
      if (grad->shape() == s.var->shape()) {
        grad_offset = offset;
      } else if (grad->shape() != row) {
        return absl::InvalidArgumentError(
            absl::StrCat(type_string(), ": `grad` must have the shape of a row of `var`, ",
                         row.DebugString(), ", or of all of it, ", s.var->shape().DebugString(),
                         ". Received: shape=", grad->shape().DebugString()));
      }
    } else if (status = SameShape("grad", *grad, s.var->shape()); !status.ok()) {
      return status;
    }

    const Device device(ctx);
    StoredArrays<Device, T> arrays(ctx, device);
    const Stored* g = arrays.Part(*grad, grad_offset, D);
    if (!arrays.status().ok()) return arrays.status();
    if (kTarget == Target::kBase && member < cycle - 1) {
      if (status = variables.MakeWritable(device, {"sum"}); !status.ok()) return status;
      return Accumulate(device, D, g, s.sum->flat<Scalar>().data());
    }
    if (status = variables.MakeWritable(device, names); !status.ok()) return status;
    Stored* w = arrays.Updated(s.var, offset, D);
    auto row = [&](Tensor* slot) { return slot->flat<Scalar>().data() + offset; };
    const UpdateGradient<Stored> gradient = {g, sums ? row(s.sum) : nullptr, scale, weight_decay};
    Scalar* rate = kRule == Rule::kAdam ? arrays.Scratch(1) : nullptr;
    if (!arrays.status().ok()) return arrays.status();
    if constexpr (kRule == Rule::kSgd) {
      status = Apply(device, SgdArgs<Stored>{D, w, gradient, lr});
    } else if constexpr (kRule == Rule::kMomentum) {
      status = Apply(device, MomentumArgs<Stored>{D, w, row(s.accum), gradient, lr, momentum,
                                                  use_nesterov_, lr_in_accum_});
    } else {
      int64_t* count = s.count->flat<int64_t>().data() + (kTarget == Target::kMember ? member : 0);
      status = Apply(device, AdamArgs<Stored>{D, w, row(s.m), row(s.v), gradient, lr, beta1, beta2,
                                              epsilon, count, rate});
    }
    status.Update(arrays.Finish());
    return status;
  }

  bool use_nesterov_ = false;  // of momentum, as the next
  bool lr_in_accum_ = false;
};

// All inputs but the gradient are in host memory: handles and scalars.
#define MEMBER_INPUTS \
  .HostMemory("var").HostMemory("member").HostMemory("lr").HostMemory("weight_decay")
#define BASE_INPUTS MEMBER_INPUTS.HostMemory("sum").HostMemory("cycle").HostMemory("scale")
#define MOMENTUM_INPUTS .HostMemory("accum").HostMemory("momentum")
#define ADAM_INPUTS        \
  .HostMemory("m")         \
      .HostMemory("v")     \
      .HostMemory("count") \
      .HostMemory("beta1") \
      .HostMemory("beta2") \
      .HostMemory("epsilon")
#define REGISTER_UPDATE(DEVICE, T, OP, RULE, TARGET, INPUTS)                     \
  REGISTER_KERNEL_BUILDER(                                                       \
      Name("LatePhase>" OP).Device(DEVICE::kType).TypeConstraint<T>("T") INPUTS, \
      ApplyOp<DEVICE, T, Rule::RULE, Target::TARGET>)
#define REGISTER_TYPE(DEVICE, T)                                                                  \
  REGISTER_UPDATE(DEVICE, T, "MemberApplySgd", kSgd, kMember, MEMBER_INPUTS);                     \
  REGISTER_UPDATE(DEVICE, T, "MemberApplyMomentum", kMomentum, kMember,                           \
                  MEMBER_INPUTS MOMENTUM_INPUTS);                                                 \
  REGISTER_UPDATE(DEVICE, T, "MemberApplyAdam", kAdam, kMember, MEMBER_INPUTS ADAM_INPUTS);       \
  REGISTER_UPDATE(DEVICE, T, "BaseApplySgd", kSgd, kBase, BASE_INPUTS);                           \
  REGISTER_UPDATE(DEVICE, T, "BaseApplyMomentum", kMomentum, kBase, BASE_INPUTS MOMENTUM_INPUTS); \
  REGISTER_UPDATE(DEVICE, T, "BaseApplyAdam", kAdam, kBase, BASE_INPUTS ADAM_INPUTS)
LATE_PHASE_FOR_ALL_TYPES(REGISTER_TYPE);
#undef REGISTER_TYPE
#undef REGISTER_UPDATE
#undef ADAM_INPUTS
#undef MOMENTUM_INPUTS
#undef BASE_INPUTS
#undef MEMBER_INPUTS

}  // namespace
}  // namespace late_phase

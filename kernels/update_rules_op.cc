// OpKernels of the member and base updates: check, lock, call the core. Contracts: docs/ops.md.
#include "kernels/op_kernel/arrays.h"
#include "kernels/op_kernel/check_range.h"
#include "kernels/op_kernel/devices.h"
#include "kernels/op_kernel/inputs.h"
#include "kernels/op_kernel/variables.h"
#include "kernels/update_rules.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

enum class Rule { kSgd, kMomentum, kAdam };
// A member update works on row `member` of [K, …] at once; a base update accumulates gradients and
// acts on the last of a cycle.
enum class Target { kMember, kBase };

// The variables of one call. Slots and sum have the shape of var.
struct State {
  Tensor* var = nullptr;
  Tensor* sum = nullptr;    // base only, and null if the cycle is 1
  Tensor* accum = nullptr;  // momentum only
  Tensor* m = nullptr;      // Adam only
  Tensor* v = nullptr;
  Tensor* count = nullptr;  // int64, [K] for members and [] for the base
};

// A rule leaves alone what it does not have.
template <typename Scalar>
struct HyperParameters {
  Scalar lr = 0, weight_decay = 0;
  Scalar momentum = 0;                       // momentum only
  Scalar beta1 = 0, beta2 = 0, epsilon = 0;  // Adam only
  Scalar scale = 1;                          // of the summed gradients; base only
};

// The elements of one call: `size` of var, slots and sum from `offset` on.
struct Elements {
  int64_t size, offset;
  const Tensor* grad;
  int64_t grad_offset;  // as `offset` if grad is of all of var, else 0
};

template <typename T>
absl::Status Apply(const Cpu& cpu, const SgdArgs<T>& args) {
  ApplySgdCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const SgdArgs<T>& args) {
  return gpu.ToStatus(ApplySgdGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Apply(const Cpu& cpu, const MomentumArgs<T>& args) {
  ApplyMomentumCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const MomentumArgs<T>& args) {
  return gpu.ToStatus(ApplyMomentumGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Apply(const Cpu& cpu, const AdamArgs<T>& args) {
  ApplyAdamCpu(args, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Apply(const Gpu& gpu, const AdamArgs<T>& args) {
  return gpu.ToStatus(ApplyAdamGpu(args, gpu.stream()));
}
template <typename T>
absl::Status Accumulate(const Cpu& cpu, int64_t D, const T* grad, T* sum) {
  AccumulateCpu(D, grad, sum, cpu.threads());
  return absl::OkStatus();
}
template <typename T>
absl::Status Accumulate(const Gpu& gpu, int64_t D, const T* grad, ComputeType<T>* sum) {
  return gpu.ToStatus(AccumulateGpu(D, grad, sum, gpu.stream()));
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
  using Hyper = HyperParameters<Scalar>;
  using Stored = typename Device::template Stored<T>;

  [[nodiscard]] absl::Status Update(OpKernelContext* ctx) {
    int32_t cycle = 0;
    if (kTarget == Target::kBase) {
      TF_ASSIGN_OR_RETURN(cycle, GetIndex(ctx, "cycle"));
    }
    // A sum of one gradient is not worth keeping: with a cycle of 1 no sum is needed.
    const bool sums = kTarget == Target::kBase && cycle != 1;
    const std::vector<const char*> names = VariableNames(sums);
    LockedVariables variables(ctx, type_string());
    TF_RETURN_IF_ERROR(variables.Lock(names, LockedVariables::Access::kWrite));
    TF_ASSIGN_OR_RETURN(const State state, FindState(&variables, sums));
    TF_ASSIGN_OR_RETURN(Hyper hyper, GetHyperParameters(ctx));
    TF_ASSIGN_OR_RETURN(const int32_t member, GetIndex(ctx, "member"));
    if (kTarget == Target::kBase) {
      TF_ASSIGN_OR_RETURN(hyper.scale, GetHyperParameter(ctx, "scale", {0, 1, true, false}));
    }
    TF_RETURN_IF_ERROR(CheckPosition(member, cycle, *state.var));
    TF_ASSIGN_OR_RETURN(const Elements elements, FindElements(ctx, *state.var, member));

    const Device device(ctx);
    StoredArrays<Device, T> arrays(ctx, device);
    const Stored* grad = arrays.Part(*elements.grad, elements.grad_offset, elements.size);
    TF_RETURN_IF_ERROR(arrays.status());
    if (kTarget == Target::kBase && member < cycle - 1) {
      TF_RETURN_IF_ERROR(variables.MakeWritable(device, {"sum"}));
      return Accumulate(device, elements.size, grad, state.sum->flat<Scalar>().data());
    }
    TF_RETURN_IF_ERROR(variables.MakeWritable(device, names));
    TF_RETURN_IF_ERROR(TakeStep(device, state, elements, hyper, member, grad, &arrays));
    return arrays.Finish();
  }

  static std::vector<const char*> VariableNames(bool sums) {
    std::vector<const char*> names = {"var"};
    if (kRule == Rule::kMomentum) names.push_back("accum");
    if (kRule == Rule::kAdam) names.insert(names.end(), {"m", "v", "count"});
    if (sums) names.push_back("sum");
    return names;
  }

  [[nodiscard]] absl::StatusOr<State> FindState(LockedVariables* variables, bool sums) const {
    const auto wide = tensorflow::DataTypeToEnum<Scalar>::value;
    State state;
    TF_ASSIGN_OR_RETURN(state.var, variables->Get("var", tensorflow::DataTypeToEnum<T>::value));
    if (sums) {
      TF_ASSIGN_OR_RETURN(state.sum, variables->Get("sum", wide));
    }
    if (kRule == Rule::kMomentum) {
      TF_ASSIGN_OR_RETURN(state.accum, variables->Get("accum", wide));
    }
    if (kRule == Rule::kAdam) {
      TF_ASSIGN_OR_RETURN(state.m, variables->Get("m", wide));
      TF_ASSIGN_OR_RETURN(state.v, variables->Get("v", wide));
      TF_ASSIGN_OR_RETURN(state.count, variables->Get("count", tensorflow::DT_INT64));
    }
    TF_RETURN_IF_ERROR(CheckShapes(state));
    return state;
  }

  [[nodiscard]] absl::Status CheckShapes(const State& state) const {
    if (kTarget == Target::kMember) TF_RETURN_IF_ERROR(CheckStack(type_string(), *state.var));
    for (auto [name, tensor] : {std::pair("sum", state.sum), std::pair("accum", state.accum),
                                std::pair("m", state.m), std::pair("v", state.v)}) {
      if (tensor != nullptr) TF_RETURN_IF_ERROR(CheckShape(name, *tensor, state.var->shape()));
    }
    if (state.count == nullptr) return absl::OkStatus();
    tensorflow::TensorShape counts;
    if (kTarget == Target::kMember) counts.AddDim(state.var->dim_size(0));
    return CheckShape("count", *state.count, counts);
  }

  [[nodiscard]] absl::Status CheckShape(const char* name, const Tensor& tensor,
                                        const tensorflow::TensorShape& shape) const {
    if (tensor.shape() == shape) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `", name, "` must have the shape ", shape.DebugString(),
                     ", to match `var`. Received: shape=", tensor.shape().DebugString()));
  }

  // All but `scale`.
  [[nodiscard]] absl::StatusOr<Hyper> GetHyperParameters(OpKernelContext* ctx) const {
    Hyper hyper;
    TF_ASSIGN_OR_RETURN(hyper.lr, GetHyperParameter(ctx, "lr", kNotNegative));
    TF_ASSIGN_OR_RETURN(hyper.weight_decay, GetHyperParameter(ctx, "weight_decay", kNotNegative));
    if (kRule == Rule::kMomentum) {
      TF_ASSIGN_OR_RETURN(hyper.momentum, GetHyperParameter(ctx, "momentum", kFraction));
    }
    if (kRule == Rule::kAdam) {
      TF_ASSIGN_OR_RETURN(hyper.beta1, GetHyperParameter(ctx, "beta1", kFraction));
      TF_ASSIGN_OR_RETURN(hyper.beta2, GetHyperParameter(ctx, "beta2", kFraction));
      TF_ASSIGN_OR_RETURN(hyper.epsilon, GetHyperParameter(ctx, "epsilon", kNotNegative));
    }
    return hyper;
  }

  [[nodiscard]] absl::StatusOr<Scalar> GetHyperParameter(OpKernelContext* ctx, const char* name,
                                                         const Range& range) const {
    TF_ASSIGN_OR_RETURN(const Tensor* const tensor, GetScalar(ctx, type_string(), name));
    const Scalar value = static_cast<Scalar>(tensor->scalar<T>()());
    TF_RETURN_IF_ERROR(CheckRange(type_string(), name, static_cast<double>(value), range));
    return value;
  }

  [[nodiscard]] absl::StatusOr<int32_t> GetIndex(OpKernelContext* ctx, const char* name) const {
    TF_ASSIGN_OR_RETURN(const Tensor* const tensor, GetScalar(ctx, type_string(), name));
    return tensor->scalar<int32_t>()();
  }

  [[nodiscard]] absl::Status CheckPosition(int32_t member, int32_t cycle, const Tensor& var) const {
    if (kTarget == Target::kBase && cycle < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(type_string(), ": `cycle` must be at least 1. Received: cycle=", cycle));
    }
    const int64_t end = kTarget == Target::kMember ? var.dim_size(0) : cycle;
    if (member >= 0 && member < end) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `member` must be in [0, ", end, "), ",
                     kTarget == Target::kMember ? "the rows of `var`" : "the length of `cycle`",
                     ". Received: member=", member));
  }

  // For a member, one row, and the gradient of that row or of all; for the base, the whole.
  [[nodiscard]] absl::StatusOr<Elements> FindElements(OpKernelContext* ctx, const Tensor& var,
                                                      int32_t member) const {
    const Tensor* grad = nullptr;
    TF_RETURN_IF_ERROR(ctx->input("grad", &grad));
    if (kTarget == Target::kBase) {
      TF_RETURN_IF_ERROR(CheckShape("grad", *grad, var.shape()));
      return Elements{var.NumElements(), 0, grad, 0};
    }
    const int64_t size = var.NumElements() / var.dim_size(0), offset = member * size;
    tensorflow::TensorShape row = var.shape();
    row.RemoveDim(0);
    if (grad->shape() == var.shape()) return Elements{size, offset, grad, offset};
    if (grad->shape() == row) return Elements{size, offset, grad, 0};
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `grad` must have the shape of a row of `var`, ",
                     row.DebugString(), ", or of all of it, ", var.shape().DebugString(),
                     ". Received: shape=", grad->shape().DebugString()));
  }

  [[nodiscard]] absl::Status TakeStep(const Device& device, const State& state,
                                      const Elements& elements, const Hyper& hyper, int32_t member,
                                      const Stored* grad, StoredArrays<Device, T>* arrays) const {
    const int64_t D = elements.size;
    auto row = [&](Tensor* slot) { return slot->flat<Scalar>().data() + elements.offset; };
    const UpdateGradient<Stored> gradient = {grad, state.sum != nullptr ? row(state.sum) : nullptr,
                                             hyper.scale, hyper.weight_decay};
    Stored* w = arrays->Updated(state.var, elements.offset, D);
    Scalar* rate = kRule == Rule::kAdam ? arrays->Scratch(1) : nullptr;
    TF_RETURN_IF_ERROR(arrays->status());
    if constexpr (kRule == Rule::kSgd) {
      return Apply(device, SgdArgs<Stored>{D, w, gradient, hyper.lr});
    } else if constexpr (kRule == Rule::kMomentum) {
      return Apply(device, MomentumArgs<Stored>{D, w, row(state.accum), gradient, hyper.lr,
                                                hyper.momentum, use_nesterov_, lr_in_accum_});
    } else {
      int64_t* count =
          state.count->flat<int64_t>().data() + (kTarget == Target::kMember ? member : 0);
      return Apply(device, AdamArgs<Stored>{D, w, row(state.m), row(state.v), gradient, hyper.lr,
                                            hyper.beta1, hyper.beta2, hyper.epsilon, count, rate});
    }
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

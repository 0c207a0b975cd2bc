// CPU OpKernels of the member and base updates: check, lock, call the core. Contracts: docs/ops.md.
#define EIGEN_USE_THREADS
#include <limits>

#include "kernels/check_range.h"
#include "kernels/cpu_op.h"
#include "kernels/update_rules.h"
#include "kernels/variables_op.h"

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
  Tensor* sum = nullptr;    // base only
  Tensor* accum = nullptr;  // momentum only
  Tensor* m = nullptr;      // Adam only
  Tensor* v = nullptr;
  Tensor* count = nullptr;  // int64, [K] for members and [] for the base
};

template <typename T, Rule kRule, Target kTarget>
class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    if constexpr (kRule == Rule::kMomentum) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
    }
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Update(ctx)); }

 private:
  using Scalar = typename ComputeArrays<T>::Scalar;

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

  absl::Status Find(LockedVariables* variables, State* s) {
    const auto wide = tensorflow::DataTypeToEnum<Scalar>::value;
    auto get = [&](const char* name, tensorflow::DataType dtype, Tensor** tensor) {
      return variables->Get(name, dtype, tensor);
    };
    absl::Status status = get("var", tensorflow::DataTypeToEnum<T>::value, &s->var);
    if (kTarget == Target::kBase) status.Update(get("sum", wide, &s->sum));
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
    if (kTarget == Target::kBase) names.push_back("sum");
    LockedVariables variables(ctx, type_string());
    absl::Status status = variables.Lock(names, LockedVariables::Access::kWrite);
    State s;
    if (status.ok()) status = Find(&variables, &s);
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
    int32_t member = 0, cycle = 0;
    status.Update(Index(ctx, "member", &member));
    if (kTarget == Target::kBase) {
      status.Update(Hyper(ctx, "scale", {0, 1, true, false}, &scale));
      status.Update(Index(ctx, "cycle", &cycle));
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

    const Parallel threads = IntraOpThreads(ctx);
    Widened wide_grad(ctx, *grad, grad_offset, D);
    if (!wide_grad.status.ok()) return wide_grad.status;
    if (kTarget == Target::kBase && member < cycle - 1) {
      if (status = variables.MakeWritable({"sum"}); !status.ok()) return status;
      AccumulateCpu<Scalar>(D, wide_grad.data, s.sum->flat<Scalar>().data(), threads);
      return absl::OkStatus();
    }
    if (cycle == 1) names.pop_back();  // a sum of one gradient is not worth keeping
    if (status = variables.MakeWritable(names); !status.ok()) return status;
    Widened w(ctx, *s.var, offset, D);
    if (!w.status.ok()) return w.status;
    auto row = [&](Tensor* slot) { return slot->flat<Scalar>().data() + offset; };
    const UpdateGradient<Scalar> gradient = {
        wide_grad.data, kTarget == Target::kBase && cycle > 1 ? row(s.sum) : nullptr, scale,
        weight_decay};
    if constexpr (kRule == Rule::kSgd) {
      ApplySgdCpu<Scalar>({D, w.data, gradient, lr}, threads);
    } else if constexpr (kRule == Rule::kMomentum) {
      ApplyMomentumCpu<Scalar>({D, w.data, row(s.accum), gradient, lr, momentum, use_nesterov_},
                               threads);
    } else {
      int64_t& count = s.count->flat<int64_t>()(kTarget == Target::kMember ? member : 0);
      ApplyAdamCpu<Scalar>(
          {D, w.data, row(s.m), row(s.v), gradient, lr, beta1, beta2, epsilon, &count}, threads);
    }
    w.RoundInto(s.var, offset, D);
    return absl::OkStatus();
  }

  // D elements of a tensor from `offset` on, in the type the core computes in: in place, or a wider
  // copy of half types.
  struct Widened {
    Widened(OpKernelContext* ctx, const Tensor& tensor, int64_t offset, int64_t D) : ctx(ctx) {
      if constexpr (std::is_same_v<T, Scalar>) {
        data = const_cast<Scalar*>(tensor.flat<T>().data()) + offset;
      } else {
        status = ctx->allocate_temp(tensorflow::DataTypeToEnum<Scalar>::value,
                                    tensorflow::TensorShape({D}), &copy);
        if (!status.ok()) return;
        data = copy.flat<Scalar>().data();
        Slice(copy.flat<Scalar>(), 0, D).device(ctx->eigen_cpu_device()) =
            Slice(tensor.flat<T>(), offset, D).template cast<Scalar>();
      }
    }
    void RoundInto(Tensor* tensor, int64_t offset, int64_t D) {
      if constexpr (!std::is_same_v<T, Scalar>) {
        Slice(tensor->flat<T>(), offset, D).device(ctx->eigen_cpu_device()) =
            Slice(copy.flat<Scalar>(), 0, D).template cast<T>();
      }
    }
    template <typename Flat>
    static auto Slice(Flat flat, int64_t offset, int64_t D) {
      return flat.slice(Eigen::array<Eigen::Index, 1>{offset}, Eigen::array<Eigen::Index, 1>{D});
    }
    OpKernelContext* ctx;
    Tensor copy;
    Scalar* data = nullptr;
    absl::Status status;
  };

  bool use_nesterov_ = false;
};

#define REGISTER_UPDATE(T, OP, RULE, TARGET)                                       \
  REGISTER_KERNEL_BUILDER(                                                         \
      Name("LatePhase>" OP).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      ApplyOp<T, Rule::RULE, Target::TARGET>)
#define REGISTER_CPU(T)                                          \
  REGISTER_UPDATE(T, "MemberApplySgd", kSgd, kMember);           \
  REGISTER_UPDATE(T, "MemberApplyMomentum", kMomentum, kMember); \
  REGISTER_UPDATE(T, "MemberApplyAdam", kAdam, kMember);         \
  REGISTER_UPDATE(T, "BaseApplySgd", kSgd, kBase);               \
  REGISTER_UPDATE(T, "BaseApplyMomentum", kMomentum, kBase);     \
  REGISTER_UPDATE(T, "BaseApplyAdam", kAdam, kBase)
REGISTER_CPU(float);
REGISTER_CPU(double);
REGISTER_CPU(Eigen::half);
REGISTER_CPU(Eigen::bfloat16);
#undef REGISTER_CPU
#undef REGISTER_UPDATE

}  // namespace
}  // namespace late_phase

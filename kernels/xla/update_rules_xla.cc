// The member and base updates for XLA, with the equations of kernels/update_rules.h.
//
// `member` and `cycle` are values of the running program, and so is whether a base update closes
// its cycle: both outcomes are one pass with a selection. A branch would spare the passes over the
// weights in the other minibatches, but on a GPU the host would have to wait for its condition.
//
// Variables are overwritten in place if XLA finds an order in which each is written after its last
// reader. For a GPU it makes one pass of all. For the CPU it makes one pass for each variable, and
// copies a variable that another pass reads unless that pass must come first: so the slots come
// first, then the weights, from what is in the slots by then, then the sum.
#include "absl/strings/str_cat.h"
#include "kernels/xla/xla_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "xla/hlo/builder/lib/constants.h"

namespace late_phase {
namespace {

using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

enum class Rule { kSgd, kMomentum, kAdam };
enum class Target { kMember, kBase };

template <Rule kRule, Target kTarget>
class ApplyXla : public XlaKernel {
 public:
  explicit ApplyXla(tensorflow::OpKernelConstruction* ctx) : XlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    in_order_ = ctx->device_type() == "XLA_CPU_JIT";
    if constexpr (kRule == Rule::kMomentum) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
      OP_REQUIRES_OK(ctx, ctx->GetAttr("lr_in_accum", &lr_in_accum_));
    }
  }

 private:
  static constexpr bool kMember = kTarget == Target::kMember;

  // All of a variable, and the part that is updated: the member's row, or the whole.
  struct Part {
    const char* name;
    XlaVariable variable = {};
    XlaOp before = {}, after = {};
  };

  struct Position {
    XlaOp member;
    XlaOp apply;   // base: whether this call updates the weights
    XlaOp single;  // base: whether the cycle is 1, in which case nothing is summed
  };

  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    Checks checks(ctx, type_string());
    const bool sums = !kMember && !CycleIsOne(ctx);
    TF_RETURN_IF_ERROR(CheckDistinct(ctx, type_string(), VariableNames(sums)));
    Part var{"var"};
    TF_ASSIGN_OR_RETURN(var.variable, ReadVariable(ctx, type_string(), "var", dtype_));
    TensorShape row = var.variable.shape;
    if (kMember) {
      TF_ASSIGN_OR_RETURN(row, RowShape(type_string(), var.variable));
    }
    TF_ASSIGN_OR_RETURN(std::vector<Part> parts, ReadSlots(ctx, var, sums));
    TF_ASSIGN_OR_RETURN(const Hyper hyper, GetHyper(ctx, &checks));
    TF_ASSIGN_OR_RETURN(const Position position, GetPosition(ctx, var.variable.shape, &checks));
    TF_ASSIGN_OR_RETURN(XlaOp grad, Gradient(ctx, var.variable.shape, row, position));

    var.before = PartOf(var.variable.value, position.member);
    for (Part& slot : parts) slot.before = PartOf(slot.variable.value, position.member);
    grad = checks.NanUnlessHold(xla::ConvertElementType(grad, WideType(XlaType(dtype_))));
    XlaOp g = grad;
    if (sums) g = g + Choose(position.single, xla::ZerosLike(g), parts.back().before);
    if (!kMember) g = hyper.scale * g;
    Step(hyper, g, position, &var, &parts);
    if (sums) parts.back().after = SumAfter(grad, position, var.after, parts.back().before);

    TF_RETURN_IF_ERROR(ctx->AssignVariable("var", dtype_, var.after));
    for (const Part& slot : parts) {
      TF_RETURN_IF_ERROR(ctx->AssignVariable(slot.name, slot.variable.dtype, slot.after));
    }
    return absl::OkStatus();
  }

  // On the CPU, a number that is 0 unless the result is NaN anyway, which the compiler cannot know:
  // with its help a value depends on another without changing.
  XlaOp HiddenZero(XlaOp member) const {
    const XlaOp zero = Integer(member.builder(), 0);
    return in_order_ ? xla::ConvertElementType(xla::Lt(member, zero), xla::S32) : zero;
  }

  // Whether the graph says so; a cycle of 1 needs no sum.
  bool CycleIsOne(XlaOpKernelContext* ctx) const {
    const auto known = ctx->InputExpression("cycle").constant_value();
    return known && known->dims() == 0 && known->template scalar<int32_t>()() == 1;
  }

  static std::vector<const char*> SlotNames() {
    if (kRule == Rule::kMomentum) return {"accum"};
    if (kRule == Rule::kAdam) return {"m", "v", "count"};
    return {};
  }

  static std::vector<const char*> VariableNames(bool sums) {
    std::vector<const char*> names = SlotNames();
    names.push_back("var");
    if (sums) names.push_back("sum");
    return names;
  }

  // In the order of SlotNames, then the sum.
  [[nodiscard]] absl::StatusOr<std::vector<Part>> ReadSlots(XlaOpKernelContext* ctx,
                                                            const Part& var, bool sums) const {
    std::vector<const char*> names = SlotNames();
    if (sums) names.push_back("sum");
    std::vector<Part> parts;
    for (const char* name : names) {
      const bool count = absl::string_view(name) == "count";
      Part slot{name};
      TF_ASSIGN_OR_RETURN(
          slot.variable,
          ReadVariable(ctx, type_string(), name, count ? tensorflow::DT_INT64 : WideType(dtype_)));
      TensorShape shape = var.variable.shape;
      if (count) shape = kMember ? TensorShape({shape.dim_size(0)}) : TensorShape();
      TF_RETURN_IF_ERROR(CheckShape(name, slot.variable.shape, shape));
      parts.push_back(slot);
    }
    return parts;
  }

  [[nodiscard]] absl::Status CheckShape(const char* name, const TensorShape& received,
                                        const TensorShape& shape) const {
    if (received == shape) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `", name, "` must have the shape ", shape.DebugString(),
                     ", to match `var`. Received: shape=", received.DebugString()));
  }

  // A rule leaves alone what it does not have.
  struct Hyper {
    XlaOp lr, weight_decay, momentum, beta1, beta2, epsilon, scale;
  };

  [[nodiscard]] absl::StatusOr<Hyper> GetHyper(XlaOpKernelContext* ctx, Checks* checks) const {
    const xla::PrimitiveType wide = WideType(XlaType(dtype_));
    Hyper hyper;
    TF_ASSIGN_OR_RETURN(hyper.lr, checks->InRange("lr", kNotNegative, wide));
    TF_ASSIGN_OR_RETURN(hyper.weight_decay, checks->InRange("weight_decay", kNotNegative, wide));
    if (kRule == Rule::kMomentum) {
      TF_ASSIGN_OR_RETURN(hyper.momentum, checks->InRange("momentum", kFraction, wide));
    }
    if (kRule == Rule::kAdam) {
      TF_ASSIGN_OR_RETURN(hyper.beta1, checks->InRange("beta1", kFraction, wide));
      TF_ASSIGN_OR_RETURN(hyper.beta2, checks->InRange("beta2", kFraction, wide));
      TF_ASSIGN_OR_RETURN(hyper.epsilon, checks->InRange("epsilon", kNotNegative, wide));
    }
    if (!kMember) {
      TF_ASSIGN_OR_RETURN(hyper.scale, checks->InRange("scale", {0, 1, true, false}, wide));
    }
    return hyper;
  }

  [[nodiscard]] absl::StatusOr<Position> GetPosition(XlaOpKernelContext* ctx,
                                                     const TensorShape& var, Checks* checks) const {
    Position position;
    if (kMember) {
      TF_ASSIGN_OR_RETURN(position.member, checks->Member("var", var.dim_size(0)));
      return position;
    }
    TF_RETURN_IF_ERROR(CheckScalar(ctx, type_string(), "member"));
    TF_RETURN_IF_ERROR(CheckScalar(ctx, type_string(), "cycle"));
    TF_RETURN_IF_ERROR(CheckKnownPosition(ctx));
    const XlaOp cycle = ctx->Input("cycle"), one = Integer(ctx->builder(), 1);
    position.member = ctx->Input("member");
    checks->Require(xla::Ge(position.member, Integer(ctx->builder(), 0)));
    checks->Require(xla::Lt(position.member, cycle));
    position.single = xla::Eq(cycle, one);
    // What is out of range shows in the weights at once.
    position.apply = xla::Or(xla::Eq(position.member, cycle - one), xla::Not(checks->hold()));
    return position;
  }

  [[nodiscard]] absl::Status CheckKnownPosition(XlaOpKernelContext* ctx) const {
    const auto known_cycle = ctx->InputExpression("cycle").constant_value();
    if (!known_cycle) return absl::OkStatus();
    const int32_t cycle = known_cycle->template scalar<int32_t>()();
    if (cycle < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(type_string(), ": `cycle` must be at least 1. Received: cycle=", cycle));
    }
    const auto known_member = ctx->InputExpression("member").constant_value();
    if (!known_member) return absl::OkStatus();
    const int32_t member = known_member->template scalar<int32_t>()();
    if (member >= 0 && member < cycle) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(type_string(), ": `member` must be in [0, ", cycle,
                     "), the length of `cycle`. Received: ", "member=", member));
  }

  // For a member, the gradient of its row, given as such or as that of all rows.
  [[nodiscard]] absl::StatusOr<XlaOp> Gradient(XlaOpKernelContext* ctx, const TensorShape& var,
                                               const TensorShape& row,
                                               const Position& position) const {
    TF_ASSIGN_OR_RETURN(const xla::Shape given, ctx->InputXlaShape("grad"));
    const TensorShape shape(given.dimensions());
    if (!kMember) {
      TF_RETURN_IF_ERROR(CheckShape("grad", shape, var));
      return ctx->Input("grad");
    }
    if (shape == var) return Row(ctx->Input("grad"), position.member);
    if (shape == row) return ctx->Input("grad");
    return absl::InvalidArgumentError(absl::StrCat(
        type_string(), ": `grad` must have the shape of a row of `var`, ", row.DebugString(),
        ", or of all of it, ", var.DebugString(), ". Received: shape=", shape.DebugString()));
  }

  // sum + grad, or zero where the sum is used up. With a cycle of 1 it stays as it is.
  XlaOp SumAfter(XlaOp grad, const Position& position, XlaOp weights, XlaOp sum) const {
    XlaOp zeros = xla::ZerosLike(sum);
    if (in_order_) {
      const xla::PrimitiveType type = ShapeOf(sum).element_type();
      const xla::PrimitiveType bits = type == xla::F64 ? xla::S64 : xla::S32;
      const XlaOp words = xla::BitcastConvertType(xla::ConvertElementType(weights, type), bits);
      const XlaOp hidden = xla::ConvertElementType(HiddenZero(position.member), bits);
      zeros = xla::BitcastConvertType(words & hidden, type);
    }
    const XlaOp summed = Choose(position.apply, zeros, sum + grad);
    return Choose(position.single, sum, summed);
  }

  // A selection by a scalar.
  static XlaOp Choose(XlaOp condition, XlaOp yes, XlaOp no) {
    return xla::Select(xla::Broadcast(condition, ShapeOf(yes).dimensions()), yes, no);
  }

  // The rule itself, on the elements of the part, with g the gradient without weight decay. First
  // the slots, then the weights from what is in the slots.
  void Step(const Hyper& hyper, XlaOp g, const Position& position, Part* var,
            std::vector<Part>* slots) const {
    const XlaOp w = xla::ConvertElementType(var->before, ShapeOf(g).element_type());
    g = g + hyper.weight_decay * w;
    XlaOp step;
    if constexpr (kRule == Rule::kSgd) {
      step = hyper.lr * g;
    } else if constexpr (kRule == Rule::kMomentum) {
      Part& accum = (*slots)[0];
      if (lr_in_accum_) g = hyper.lr * g;
      Update(hyper.momentum * accum.before + g, position, &accum);
      const XlaOp written = Written(accum, position);
      step = use_nesterov_ ? g + hyper.momentum * written : written;
      if (!lr_in_accum_) step = hyper.lr * step;
    } else {
      Part &m = (*slots)[0], &v = (*slots)[1], &count = (*slots)[2];
      const XlaOp one = Number(g.builder(), ShapeOf(g).element_type(), 1);
      const XlaOp n = count.before + xla::ConstantR0<int64_t>(g.builder(), 1);
      Update(hyper.beta1 * m.before + (one - hyper.beta1) * g, position, &m);
      Update(hyper.beta2 * v.before + (one - hyper.beta2) * g * g, position, &v);
      Update(n, position, &count);
      const XlaOp rate = CorrectedRate(hyper, n, ShapeOf(g).element_type());
      step = rate * Written(m, position) / (xla::Sqrt(Written(v, position)) + hyper.epsilon);
    }
    Update(xla::ConvertElementType(w - step, ShapeOf(var->before).element_type()), position, var);
  }

  // The member's row, or the whole.
  static XlaOp PartOf(XlaOp variable, XlaOp member) {
    return kMember ? Row(variable, member) : variable;
  }

  // The variable with `value` for the part; if the base is not updated now, as it was.
  static void Update(XlaOp value, const Position& position, Part* part) {
    part->after = kMember ? WithRow(part->variable.value, position.member, value)
                          : Choose(position.apply, value, part->before);
  }
  // The part of what is in a slot after the update.
  XlaOp Written(const Part& slot, const Position& position) const {
    return PartOf(slot.after, position.member + HiddenZero(position.member));
  }

  // lr · √(1 − beta2ⁿ) / (1 − beta1ⁿ), in double.
  static XlaOp CorrectedRate(const Hyper& hyper, XlaOp n, xla::PrimitiveType type) {
    auto wide = [](XlaOp x) { return xla::ConvertElementType(x, xla::F64); };
    const XlaOp one = Number(n.builder(), xla::F64, 1);
    auto rest = [&](XlaOp beta) { return one - xla::Pow(wide(beta), wide(n)); };
    return xla::ConvertElementType(
        wide(hyper.lr) * xla::Sqrt(rest(hyper.beta2)) / rest(hyper.beta1), type);
  }

  tensorflow::DataType dtype_;
  bool in_order_;              // whether passes must be put in order
  bool use_nesterov_ = false;  // of momentum, as the next
  bool lr_in_accum_ = false;
};

LATE_PHASE_REGISTER_XLA("MemberApplySgd", ApplyXla<Rule::kSgd, Target::kMember>);
LATE_PHASE_REGISTER_XLA("MemberApplyMomentum", ApplyXla<Rule::kMomentum, Target::kMember>);
LATE_PHASE_REGISTER_XLA("MemberApplyAdam", ApplyXla<Rule::kAdam, Target::kMember>);
LATE_PHASE_REGISTER_XLA("BaseApplySgd", ApplyXla<Rule::kSgd, Target::kBase>);
LATE_PHASE_REGISTER_XLA("BaseApplyMomentum", ApplyXla<Rule::kMomentum, Target::kBase>);
LATE_PHASE_REGISTER_XLA("BaseApplyAdam", ApplyXla<Rule::kAdam, Target::kBase>);

}  // namespace
}  // namespace late_phase

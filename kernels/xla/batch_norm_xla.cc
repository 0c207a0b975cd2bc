// Batch normalisation for XLA, with the equations of kernels/batch_norm.h.
//
// The statistics are sums of double, in one pass over x, of differences to the channel's first
// value: since that value is one of the channel's, Σ(x − x₀)² is at most n times Σ(x − μ)², so what
// is lost when the latter is derived from it is n roundings of a double, whatever the mean and
// outliers.
#include <algorithm>

#include "kernels/batch_norm_shapes.h"
#include "kernels/op_kernel/batch_norm_attrs.h"
#include "kernels/xla/xla_kernel.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// What the two kernels have in common.
class BatchNormXlaBase : public XlaKernel {
 public:
  explicit BatchNormXlaBase(tensorflow::OpKernelConstruction* ctx) : XlaKernel(ctx) {
    OP_REQUIRES_VALUE(attrs_, ctx, GetBatchNormAttrs(ctx, type_string()));
  }

 protected:
  // One call: its sizes, its member and the layout of its images.
  struct Call {
    XlaOpKernelContext* ctx;
    Checks checks;
    xla::Shape image;
    int64_t axis;  // of the channels
    std::vector<int64_t> others;
    int64_t n, K;
    XlaOp member;
    xla::PrimitiveType wide;

    XlaOp Wide(XlaOp x) const { return xla::ConvertElementType(x, wide); }
    XlaOp Image(const char* name) const { return Wide(ctx->Input(name)); }
    // The member's row of [K,C], and an output that is zero in the others.
    XlaOp MemberRow(const char* name) const {
      return checks.NanUnlessHold(Row(ctx->Input(name), member));
    }
    XlaOp MemberStack(XlaOp row) const {
      return StackOfZeros(K, member, checks.NanUnlessHold(Wide(row)));
    }
    XlaOp OverImage(XlaOp channels) const { return AlongAxis(channels, image, axis); }
    // Σ over the rows of a channel, in double.
    XlaOp ChannelSum(XlaOp x) const { return Sum(Double(x), others); }
    static XlaOp Double(XlaOp x) { return xla::ConvertElementType(x, xla::F64); }
    XlaOp Constant(double value) const { return Number(ctx->builder(), xla::F64, value); }
  };

  [[nodiscard]] absl::StatusOr<Call> Prepare(XlaOpKernelContext* ctx,
                                             absl::Span<const ShapeRule> rules) const {
    TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, CheckInputs(ctx, type_string(), rules));
    Call call{ctx, Checks(ctx, type_string()), {}, 0, {}, 1, sizes["K"], {}, {}};
    TF_ASSIGN_OR_RETURN(call.image, ctx->InputXlaShape("x"));
    const int64_t rank = call.image.dimensions().size();
    call.axis = attrs_.channels_first ? 1 : rank - 1;
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (axis == call.axis) continue;
      call.others.push_back(axis);
      call.n *= call.image.dimensions(axis);
    }
    call.wide = WideType(call.image.element_type());
    TF_ASSIGN_OR_RETURN(call.member, call.checks.Member("scale", call.K));
    return call;
  }

  // z = (x − mean) · factor + constant, the same in both directions.
  struct Affine {
    XlaOp difference, factor, z;
  };
  static Affine SetAffine(const Call& call, XlaOp x, XlaOp scale, XlaOp offset, XlaOp mean,
                          XlaOp mean_rest, XlaOp inv_std) {
    Affine affine;
    affine.difference = x - call.OverImage(mean);
    const XlaOp factor = scale * inv_std;
    const XlaOp constant =
        call.Wide(Call::Double(offset) - Call::Double(mean_rest) * Call::Double(factor));
    affine.factor = call.OverImage(factor);
    affine.z = affine.difference * affine.factor + call.OverImage(constant);
    return affine;
  }

  // `x` where the activation lets it through, else 0. NaN passes, so that a diverged channel shows.
  XlaOp Activated(XlaOp z, XlaOp x) const {
    if (!attrs_.relu) return x;
    const XlaOp zero = ZerosOf(x.builder(), ShapeOf(x).element_type(), ShapeOf(x).dimensions());
    return xla::Select(xla::Le(z, zero), zero, x);
  }

  BatchNormAttrs attrs_;
};

class BatchNormXla : public BatchNormXlaBase {
 public:
  explicit BatchNormXla(tensorflow::OpKernelConstruction* ctx) : BatchNormXlaBase(ctx) {
    if (!ctx->status().ok()) return;
    OP_REQUIRES_VALUE(statistics_, ctx, GetBatchNormStatisticsAttrs(ctx, type_string()));
  }

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const Call call, Prepare(ctx, BatchNormInputs(attrs_.channels_first)));
    const XlaOp old_mean = call.MemberRow("mean"), old_variance = call.MemberRow("variance");
    const bool of_batch = attrs_.is_training && call.n > 0;
    XlaOp mean = Call::Double(old_mean), variance = Call::Double(old_variance);
    XlaOp running_mean = old_mean, running_variance = old_variance;
    if (of_batch) {
      const Moments batch = BatchMoments(call);
      mean = batch.mean;
      variance = batch.squares / call.Constant(static_cast<double>(call.n));
      const double less = std::max<double>(static_cast<double>(call.n) - 1, 1);
      running_mean = Follow(call, old_mean, mean);
      running_variance = Follow(call, old_variance, batch.squares / call.Constant(less));
    }
    // The mean in two numbers of the wide type. Said as a rounding, not as a conversion there and
    // back, which XLA may leave out.
    const XlaOp rounded = call.wide == xla::F64 ? mean : xla::ReducePrecision(mean, 8, 23);
    const XlaOp saved_mean = call.Wide(rounded), mean_rest = call.Wide(mean - rounded);
    const XlaOp inv_std = call.Wide(xla::Rsqrt(variance + call.Constant(statistics_.epsilon)));
    const Affine affine = SetAffine(call, call.Image("x"), call.MemberRow("scale"),
                                    call.MemberRow("offset"), saved_mean, mean_rest, inv_std);
    ctx->SetOutput(
        0, xla::ConvertElementType(Activated(affine.z, affine.z), call.image.element_type()));
    ctx->SetOutput(1, running_mean);
    ctx->SetOutput(2, running_variance);
    ctx->SetOutput(3, saved_mean);
    ctx->SetOutput(4, mean_rest);
    ctx->SetOutput(5, inv_std);
    return absl::OkStatus();
  }

  struct Moments {
    XlaOp mean, squares;  // squares: Σ(x − μ)²
  };
  static Moments BatchMoments(const Call& call) {
    const XlaOp x = call.ctx->Input("x");
    std::vector<int64_t> start(call.image.dimensions().size()), limit(start.size(), 1);
    limit[call.axis] = call.image.dimensions(call.axis);
    const std::vector<int64_t> strides(start.size(), 1);
    const XlaOp first =
        Call::Double(xla::Reshape(xla::Slice(x, start, limit, strides), {limit[call.axis]}));
    const XlaOp difference = Call::Double(x) - call.OverImage(first);
    const XlaOp sum = call.ChannelSum(difference), n = call.Constant(static_cast<double>(call.n));
    const XlaOp squares = call.ChannelSum(difference * difference);
    return {first + sum / n, squares - sum * (sum / n)};
  }

  XlaOp Follow(const Call& call, XlaOp old, XlaOp batch) const {
    return call.Wide(call.Constant(1 - statistics_.momentum) * Call::Double(old) +
                     call.Constant(statistics_.momentum) * batch);
  }

  BatchNormStatisticsAttrs statistics_;
};

class BatchNormGradXla : public BatchNormXlaBase {
 public:
  using BatchNormXlaBase::BatchNormXlaBase;

 private:
  [[nodiscard]] absl::Status Build(XlaOpKernelContext* ctx) override {
    TF_ASSIGN_OR_RETURN(const xla::Shape x, ctx->InputXlaShape("x"));
    const int rank = static_cast<int>(x.dimensions().size());
    TF_ASSIGN_OR_RETURN(const Call call,
                        Prepare(ctx, BatchNormGradInputs(rank, attrs_.channels_first)));
    const XlaOp mean_rest = ctx->Input("saved_mean_rest"), inv_std = ctx->Input("saved_inv_std");
    const Affine affine =
        SetAffine(call, call.Image("x"), call.MemberRow("scale"), call.MemberRow("offset"),
                  ctx->Input("saved_mean"), mean_rest, inv_std);
    const XlaOp dz = Activated(affine.z, call.Image("dy"));
    const XlaOp doffset = call.ChannelSum(dz);
    // Σ dz · (x − mean − mean_rest) / √(σ² + epsilon)
    const XlaOp rest = Call::Double(mean_rest), inverse = Call::Double(inv_std);
    const XlaOp dscale = (call.ChannelSum(dz * affine.difference) - rest * doffset) * inverse;

    XlaOp dx = dz;
    if (attrs_.is_training) {
      // dz − doffset/n − x̂ · dscale/n, with x̂ = (x − mean − mean_rest) · inv_std
      const XlaOp share = call.Constant(1 / static_cast<double>(std::max<int64_t>(call.n, 1)));
      const XlaOp slope = dscale * share * inverse;
      const XlaOp constant = call.Wide(doffset * share - rest * slope);
      dx = dx - call.OverImage(constant) - affine.difference * call.OverImage(call.Wide(slope));
    }
    ctx->SetOutput(0, xla::ConvertElementType(dx * affine.factor, call.image.element_type()));
    ctx->SetOutput(1, call.MemberStack(dscale));
    ctx->SetOutput(2, call.MemberStack(doffset));
    return absl::OkStatus();
  }
};

LATE_PHASE_REGISTER_XLA("BatchNorm", BatchNormXla);
LATE_PHASE_REGISTER_XLA("BatchNormGrad", BatchNormGradXla);

}  // namespace
}  // namespace late_phase

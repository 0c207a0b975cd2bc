// Signatures and shape functions of the batch normalisation family. What the ops compute:
// kernels/batch_norm.h and docs/ops.md.
#include "kernels/batch_norm_shapes.h"
#include "kernels/op_kernel/batch_norm_attrs.h"
#include "ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"

namespace late_phase {
namespace {

using tensorflow::shape_inference::InferenceContext;

// The rank of x, or 0 if it is not known.
int Rank(InferenceContext* c) { return c->RankKnown(c->input(0)) ? c->Rank(c->input(0)) : 0; }

// Output 0 has the shape of x, refined by the other inputs; then come the `further` outputs.
[[nodiscard]] absl::Status InferShapes(InferenceContext* c, const std::string& op,
                                       absl::Span<const ShapeRule> rules, bool channels_first,
                                       absl::Span<const char* const> further) {
  TF_ASSIGN_OR_RETURN(const ShapeMatcher sizes, MatchInputs(c, op, rules));
  if (const int rank = Rank(c); rank > 0) {
    SetOutput(c, 0, sizes.Resolve(BatchNormImageShape(rank, channels_first)));
  } else {
    c->set_output(0, c->UnknownShape());
  }
  for (size_t i = 0; i < further.size(); ++i) SetOutput(c, 1 + i, sizes.Resolve(further[i]));
  return absl::OkStatus();
}

absl::Status ForwardShapes(InferenceContext* c) {
  const std::string op = "LatePhase>BatchNorm";
  TF_ASSIGN_OR_RETURN(const BatchNormAttrs attrs, GetBatchNormAttrs(c, op));
  TF_RETURN_IF_ERROR(GetBatchNormStatisticsAttrs(c, op).status());
  return InferShapes(c, op, BatchNormInputs(attrs.channels_first), attrs.channels_first,
                     kBatchNormFurtherOutputs);
}

absl::Status GradShapes(InferenceContext* c) {
  const std::string op = "LatePhase>BatchNormGrad";
  TF_ASSIGN_OR_RETURN(const BatchNormAttrs attrs, GetBatchNormAttrs(c, op));
  return InferShapes(c, op, BatchNormGradInputs(Rank(c), attrs.channels_first),
                     attrs.channels_first, kBatchNormGradFurtherOutputs);
}

// U is float when T is half or bfloat16, else T. Attributes are checked in the kernels and the
// shape functions, which say more about a wrong one than TensorFlow does.
#define LATE_PHASE_BATCH_NORM(NAME)               \
  REGISTER_OP("LatePhase>" NAME)                  \
      .Attr("T: {half, bfloat16, float, double}") \
      .Attr("U: {float, double}")                 \
      .Attr("is_training: bool = true")           \
      .Attr("activation: string = 'Identity'")    \
      .Attr("data_format: string = 'NHWC'")

LATE_PHASE_BATCH_NORM("BatchNorm")
    .Attr("epsilon: float = 1e-5")
    .Attr("momentum: float = 0.1")
    .Input("x: T")                  // [batch, channels] or [batch, height, width, channels]
    .Input("scale: U")              // [K, channels]
    .Input("offset: U")             // [K, channels]
    .Input("mean: U")               // [K, channels]
    .Input("variance: U")           // [K, channels]
    .Input("member: int32")         // []
    .Output("y: T")                 // of the shape of x
    .Output("running_mean: U")      // [channels]
    .Output("running_variance: U")  // [channels]
    .Output("saved_mean: U")        // [channels], for the gradient, as the following
    .Output("saved_mean_rest: U")   // [channels]
    .Output("saved_inv_std: U")     // [channels]
    .SetShapeFn(ForwardShapes);

LATE_PHASE_BATCH_NORM("BatchNormGrad")
    .Input("x: T")                // [batch, channels] or [batch, height, width, channels]
    .Input("scale: U")            // [K, channels]
    .Input("offset: U")           // [K, channels]
    .Input("member: int32")       // []
    .Input("saved_mean: U")       // [channels], an output of the forward op, as the following
    .Input("saved_mean_rest: U")  // [channels]
    .Input("saved_inv_std: U")    // [channels]
    .Input("dy: T")               // of the shape of x
    .Output("dx: T")              // of the shape of x
    .Output("dscale: U")          // [K, channels], zero outside row `member`
    .Output("doffset: U")         // [K, channels], zero outside row `member`
    .SetShapeFn(GradShapes);

#undef LATE_PHASE_BATCH_NORM

}  // namespace
}  // namespace late_phase

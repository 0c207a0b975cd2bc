// Signatures of the ops on all members of a variable. What they compute: kernels/member_rows.h and
// docs/ops.md.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace late_phase {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The shape of a row of the variable, as far as its handle knows it.
absl::Status InferRow(InferenceContext* c) {
  c->set_output(0, c->UnknownShape());
  const auto* handle = c->input_handle_shapes_and_types(0);
  if (handle == nullptr || handle->empty() || !c->RankKnown((*handle)[0].shape)) {
    return absl::OkStatus();
  }
  ShapeHandle row;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast((*handle)[0].shape, 1, &row));
  TF_RETURN_IF_ERROR(c->Subshape((*handle)[0].shape, 1, &row));
  c->set_output(0, row);
  return absl::OkStatus();
}

REGISTER_OP("LatePhase>ReadMember")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Input("var: resource")  // [K, ...]
    .Input("member: int32")  // []
    .Output("row: dtype")    // [...]
    .SetIsStateful()
    .SetShapeFn(InferRow);

REGISTER_OP("LatePhase>Collapse")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Input("var: resource")  // [K, ...]
    .Output("mean: dtype")   // [...]
    .SetIsStateful()
    .SetShapeFn(InferRow);

REGISTER_OP("LatePhase>Spawn")
    .Attr("S: {half, bfloat16, float, double}")
    .Attr("use_locking: bool = true")
    .Input("var: resource")  // [K, ...]
    .Input("sigma: S")       // []
    .Input("seed: int64")    // [2]
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("LatePhase>SwaUpdate")
    .Attr("use_locking: bool = true")
    .Input("average: resource")  // of the shape of source; float for half types
    .Input("source: resource")
    .Input("count: int64")  // []
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

}  // namespace
}  // namespace late_phase

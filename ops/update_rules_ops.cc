// Signatures of the member and base updates. What they compute: kernels/update_rules.h and
// docs/ops.md.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace late_phase {
namespace {

// Inputs that all updates share. `var`, slots and `sum` are variables; a slot has the shape of var.
#define LATE_PHASE_UPDATE(NAME)                           \
  REGISTER_OP("LatePhase>" NAME)                          \
      .Attr("T: {half, bfloat16, float, double}")         \
      .Attr("use_locking: bool = true")                   \
      .SetIsStateful()                                    \
      .SetShapeFn(tensorflow::shape_inference::NoOutputs) \
      .Input("var: resource")

LATE_PHASE_UPDATE("MemberApplySgd")  // [K, ...]
    .Input("member: int32")
    .Input("lr: T")
    .Input("weight_decay: T")
    .Input("grad: T");  // [...] or [K, ...]

LATE_PHASE_UPDATE("MemberApplyMomentum")  // [K, ...]
    .Attr("use_nesterov: bool = false")
    .Attr("lr_in_accum: bool = false")
    .Input("accum: resource")
    .Input("member: int32")
    .Input("lr: T")
    .Input("momentum: T")
    .Input("weight_decay: T")
    .Input("grad: T");  // [...] or [K, ...]

LATE_PHASE_UPDATE("MemberApplyAdam")  // [K, ...]
    .Input("m: resource")
    .Input("v: resource")
    .Input("count: resource")  // int64 [K]
    .Input("member: int32")
    .Input("lr: T")
    .Input("beta1: T")
    .Input("beta2: T")
    .Input("epsilon: T")
    .Input("weight_decay: T")
    .Input("grad: T");  // [...] or [K, ...]

LATE_PHASE_UPDATE("BaseApplySgd")
    .Input("sum: resource")
    .Input("member: int32")
    .Input("cycle: int32")
    .Input("scale: T")
    .Input("lr: T")
    .Input("weight_decay: T")
    .Input("grad: T");

LATE_PHASE_UPDATE("BaseApplyMomentum")
    .Attr("use_nesterov: bool = false")
    .Attr("lr_in_accum: bool = false")
    .Input("accum: resource")
    .Input("sum: resource")
    .Input("member: int32")
    .Input("cycle: int32")
    .Input("scale: T")
    .Input("lr: T")
    .Input("momentum: T")
    .Input("weight_decay: T")
    .Input("grad: T");

LATE_PHASE_UPDATE("BaseApplyAdam")
    .Input("m: resource")
    .Input("v: resource")
    .Input("count: resource")  // int64 []
    .Input("sum: resource")
    .Input("member: int32")
    .Input("cycle: int32")
    .Input("scale: T")
    .Input("lr: T")
    .Input("beta1: T")
    .Input("beta2: T")
    .Input("epsilon: T")
    .Input("weight_decay: T")
    .Input("grad: T");

#undef LATE_PHASE_UPDATE

}  // namespace
}  // namespace late_phase

// Signatures and shape functions of the rank-1 LSTM family. What the ops compute:
// kernels/rank1_lstm.h and docs/ops.md.
#include "kernels/rank1_lstm_shapes.h"
#include "ops/shape_inference.h"
#include "tensorflow/core/framework/op.h"

namespace late_phase {
namespace {

using tensorflow::shape_inference::InferenceContext;

[[nodiscard]] absl::Status ForwardShapes(InferenceContext* c, const char* op,
                                         absl::Span<const ShapeRule> inputs) {
  bool is_training = true;
  TF_RETURN_IF_ERROR(c->GetAttr("is_training", &is_training));
  TF_RETURN_IF_ERROR(InferFromRules(c, op, inputs, kRank1LstmOutputs));
  if (!is_training) {
    SetOutput(c, 3, {0, 0, 0});
    SetOutput(c, 4, {0, 0, 0});
  }
  return absl::OkStatus();
}

REGISTER_OP("LatePhase>Rank1Lstm")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("is_training: bool = true")
    .Input("x: T")                 // [time, batch, input]
    .Input("initial_h: T")         // [batch, units]
    .Input("initial_c: T")         // [batch, units]
    .Input("kernel: T")            // [input, 4*units]
    .Input("recurrent_kernel: T")  // [units, 4*units]
    .Input("bias: T")              // [4*units]
    .Input("u: T")                 // [K, units]
    .Input("v: T")                 // [K, 4*units]
    .Input("member: int32")        // []
    .Output("h: T")                // [time, batch, units]
    .Output("final_h: T")          // [batch, units]
    .Output("final_c: T")          // [batch, units]
    .Output("gates: T")            // [time, batch, 4*units], for the gradient
    .Output("cells: T")            // [time, batch, units], for the gradient
    .SetShapeFn([](InferenceContext* c) {
      return ForwardShapes(c, "LatePhase>Rank1Lstm", kRank1LstmInputs);
    });

REGISTER_OP("LatePhase>Rank1LstmTokens")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("is_training: bool = true")
    .Input("tokens: int32")        // [time, batch]
    .Input("table: T")             // [vocab, 4*units]
    .Input("initial_h: T")         // [batch, units]
    .Input("initial_c: T")         // [batch, units]
    .Input("recurrent_kernel: T")  // [units, 4*units]
    .Input("u: T")                 // [K, units]
    .Input("v: T")                 // [K, 4*units]
    .Input("member: int32")        // []
    .Output("h: T")                // [time, batch, units]
    .Output("final_h: T")          // [batch, units]
    .Output("final_c: T")          // [batch, units]
    .Output("gates: T")            // [time, batch, 4*units], for the gradient
    .Output("cells: T")            // [time, batch, units], for the gradient
    .SetShapeFn([](InferenceContext* c) {
      return ForwardShapes(c, "LatePhase>Rank1LstmTokens", kRank1LstmTokensInputs);
    });

REGISTER_OP("LatePhase>Rank1LstmGrad")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("x: T")                   // [time, batch, input]
    .Input("initial_h: T")           // [batch, units]
    .Input("initial_c: T")           // [batch, units]
    .Input("kernel: T")              // [input, 4*units]
    .Input("recurrent_kernel: T")    // [units, 4*units]
    .Input("u: T")                   // [K, units]
    .Input("v: T")                   // [K, 4*units]
    .Input("member: int32")          // []
    .Input("h: T")                   // [time, batch, units], an output of the forward op
    .Input("gates: T")               // [time, batch, 4*units], an output of the forward op
    .Input("cells: T")               // [time, batch, units], an output of the forward op
    .Input("dh: T")                  // [time, batch, units]
    .Input("dfinal_h: T")            // [batch, units]
    .Input("dfinal_c: T")            // [batch, units]
    .Output("dx: T")                 // [time, batch, input]
    .Output("dinitial_h: T")         // [batch, units]
    .Output("dinitial_c: T")         // [batch, units]
    .Output("dkernel: T")            // [input, 4*units]
    .Output("drecurrent_kernel: T")  // [units, 4*units]
    .Output("dbias: T")              // [4*units]
    .Output("du: T")                 // [K, units], zero outside row `member`
    .Output("dv: T")                 // [K, 4*units], zero outside row `member`
    .SetShapeFn([](InferenceContext* c) {
      return InferFromRules(c, "LatePhase>Rank1LstmGrad", kRank1LstmGradInputs,
                            kRank1LstmGradOutputs);
    });

REGISTER_OP("LatePhase>Rank1LstmTokensGrad")
    .Attr("T: {half, bfloat16, float, double}")
    .Input("tokens: int32")          // [time, batch]
    .Input("table: T")               // [vocab, 4*units]
    .Input("initial_h: T")           // [batch, units]
    .Input("initial_c: T")           // [batch, units]
    .Input("recurrent_kernel: T")    // [units, 4*units]
    .Input("u: T")                   // [K, units]
    .Input("v: T")                   // [K, 4*units]
    .Input("member: int32")          // []
    .Input("h: T")                   // [time, batch, units], an output of the forward op
    .Input("gates: T")               // [time, batch, 4*units], an output of the forward op
    .Input("cells: T")               // [time, batch, units], an output of the forward op
    .Input("dh: T")                  // [time, batch, units]
    .Input("dfinal_h: T")            // [batch, units]
    .Input("dfinal_c: T")            // [batch, units]
    .Output("dtable: T")             // [vocab, 4*units]
    .Output("dinitial_h: T")         // [batch, units]
    .Output("dinitial_c: T")         // [batch, units]
    .Output("drecurrent_kernel: T")  // [units, 4*units]
    .Output("du: T")                 // [K, units], zero outside row `member`
    .Output("dv: T")                 // [K, 4*units], zero outside row `member`
    .SetShapeFn([](InferenceContext* c) {
      return InferFromRules(c, "LatePhase>Rank1LstmTokensGrad", kRank1LstmTokensGradInputs,
                            kRank1LstmTokensGradOutputs);
    });

}  // namespace
}  // namespace late_phase

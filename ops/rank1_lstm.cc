#include "ops/rank1_lstm.h"

#include "ops/add_node.h"

namespace late_phase {
namespace ops {
namespace {

// Both forms have the same outputs.
template <typename Wrapper>
void Build(const tensorflow::Scope& scope, const char* op, const char* name,
           absl::Span<const tensorflow::Input> inputs, const Rank1LstmAttrs& attrs,
           Wrapper* wrapper) {
  wrapper->operation = AddNode(scope, op, name, inputs, [&](tensorflow::NodeBuilder* builder) {
    builder->Attr("is_training", attrs.is_training);
  });
  wrapper->h = GetOutput(wrapper->operation, 0);
  wrapper->final_h = GetOutput(wrapper->operation, 1);
  wrapper->final_c = GetOutput(wrapper->operation, 2);
  wrapper->gates = GetOutput(wrapper->operation, 3);
  wrapper->cells = GetOutput(wrapper->operation, 4);
}

}  // namespace

Rank1Lstm::Rank1Lstm(const tensorflow::Scope& scope, tensorflow::Input x,
                     tensorflow::Input initial_h, tensorflow::Input initial_c,
                     tensorflow::Input kernel, tensorflow::Input recurrent_kernel,
                     tensorflow::Input bias, tensorflow::Input u, tensorflow::Input v,
                     tensorflow::Input member, const Attrs& attrs) {
  Build(scope, "LatePhase>Rank1Lstm", "Rank1Lstm",
        {x, initial_h, initial_c, kernel, recurrent_kernel, bias, u, v, member}, attrs, this);
}

Rank1LstmTokens::Rank1LstmTokens(const tensorflow::Scope& scope, tensorflow::Input tokens,
                                 tensorflow::Input table, tensorflow::Input initial_h,
                                 tensorflow::Input initial_c, tensorflow::Input recurrent_kernel,
                                 tensorflow::Input u, tensorflow::Input v, tensorflow::Input member,
                                 const Attrs& attrs) {
  Build(scope, "LatePhase>Rank1LstmTokens", "Rank1LstmTokens",
        {tokens, table, initial_h, initial_c, recurrent_kernel, u, v, member}, attrs, this);
}

}  // namespace ops
}  // namespace late_phase

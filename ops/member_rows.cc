#include "ops/member_rows.h"

#include "ops/add_node.h"

namespace late_phase {
namespace ops {

using tensorflow::Input;
using tensorflow::Operation;
using tensorflow::Output;
using tensorflow::Scope;

namespace {

auto OfType(tensorflow::DataType dtype) {
  return [dtype](tensorflow::NodeBuilder* node) { node->Attr("dtype", dtype); };
}

}  // namespace

Output ReadMember(const Scope& scope, Input var, Input member, tensorflow::DataType dtype) {
  return GetOutput(
      AddNode(scope, "LatePhase>ReadMember", "ReadMember", {var, member}, OfType(dtype)), 0);
}

Output Collapse(const Scope& scope, Input var, tensorflow::DataType dtype) {
  return GetOutput(AddNode(scope, "LatePhase>Collapse", "Collapse", {var}, OfType(dtype)), 0);
}

Operation Spawn(const Scope& scope, Input var, Input sigma, Input seed) {
  return AddNode(scope, "LatePhase>Spawn", "Spawn", {var, sigma, seed});
}

Operation SwaUpdate(const Scope& scope, Input average, Input source, Input count) {
  return AddNode(scope, "LatePhase>SwaUpdate", "SwaUpdate", {average, source, count});
}

}  // namespace ops
}  // namespace late_phase

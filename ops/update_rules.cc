#include "ops/update_rules.h"

#include "ops/add_node.h"

namespace late_phase {
namespace ops {

using tensorflow::Input;
using tensorflow::Operation;
using tensorflow::Scope;

namespace {

auto Nesterov(bool use_nesterov) {
  return
      [use_nesterov](tensorflow::NodeBuilder* node) { node->Attr("use_nesterov", use_nesterov); };
}

}  // namespace

Operation MemberApplySgd(const Scope& scope, Input var, Input member, Input lr, Input weight_decay,
                         Input grad) {
  return AddNode(scope, "LatePhase>MemberApplySgd", "MemberApplySgd",
                 {var, member, lr, weight_decay, grad});
}

Operation MemberApplyMomentum(const Scope& scope, Input var, Input accum, Input member, Input lr,
                              Input momentum, Input weight_decay, Input grad, bool use_nesterov) {
  return AddNode(scope, "LatePhase>MemberApplyMomentum", "MemberApplyMomentum",
                 {var, accum, member, lr, momentum, weight_decay, grad}, Nesterov(use_nesterov));
}

Operation MemberApplyAdam(const Scope& scope, Input var, Input m, Input v, Input count,
                          Input member, Input lr, Input beta1, Input beta2, Input epsilon,
                          Input weight_decay, Input grad) {
  return AddNode(scope, "LatePhase>MemberApplyAdam", "MemberApplyAdam",
                 {var, m, v, count, member, lr, beta1, beta2, epsilon, weight_decay, grad});
}

Operation BaseApplySgd(const Scope& scope, Input var, Input sum, Input member, Input cycle,
                       Input scale, Input lr, Input weight_decay, Input grad) {
  return AddNode(scope, "LatePhase>BaseApplySgd", "BaseApplySgd",
                 {var, sum, member, cycle, scale, lr, weight_decay, grad});
}

Operation BaseApplyMomentum(const Scope& scope, Input var, Input accum, Input sum, Input member,
                            Input cycle, Input scale, Input lr, Input momentum, Input weight_decay,
                            Input grad, bool use_nesterov) {
  return AddNode(scope, "LatePhase>BaseApplyMomentum", "BaseApplyMomentum",
                 {var, accum, sum, member, cycle, scale, lr, momentum, weight_decay, grad},
                 Nesterov(use_nesterov));
}

Operation BaseApplyAdam(const Scope& scope, Input var, Input m, Input v, Input count, Input sum,
                        Input member, Input cycle, Input scale, Input lr, Input beta1, Input beta2,
                        Input epsilon, Input weight_decay, Input grad) {
  return AddNode(
      scope, "LatePhase>BaseApplyAdam", "BaseApplyAdam",
      {var, m, v, count, sum, member, cycle, scale, lr, beta1, beta2, epsilon, weight_decay, grad});
}

}  // namespace ops
}  // namespace late_phase

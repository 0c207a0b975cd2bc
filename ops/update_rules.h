// C++ graph wrappers of the member and base updates. Each adds one node and returns it: run it as a
// target, or make the next step depend on it. `var`, slots and `sum` are handles of resource
// variables. Contracts: docs/ops.md.
#ifndef LATE_PHASE_OPS_UPDATE_RULES_H_
#define LATE_PHASE_OPS_UPDATE_RULES_H_

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"

namespace late_phase {
namespace ops {

// Updates row `member` of var [K, …] and of its slots, and nothing else. `grad` is the gradient of
// a row, or of all of var.
tensorflow::Operation MemberApplySgd(const tensorflow::Scope& scope, tensorflow::Input var,
                                     tensorflow::Input member, tensorflow::Input lr,
                                     tensorflow::Input weight_decay, tensorflow::Input grad);
tensorflow::Operation MemberApplyMomentum(const tensorflow::Scope& scope, tensorflow::Input var,
                                          tensorflow::Input accum, tensorflow::Input member,
                                          tensorflow::Input lr, tensorflow::Input momentum,
                                          tensorflow::Input weight_decay, tensorflow::Input grad,
                                          bool use_nesterov = false);
tensorflow::Operation MemberApplyAdam(const tensorflow::Scope& scope, tensorflow::Input var,
                                      tensorflow::Input m, tensorflow::Input v,
                                      tensorflow::Input count, tensorflow::Input member,
                                      tensorflow::Input lr, tensorflow::Input beta1,
                                      tensorflow::Input beta2, tensorflow::Input epsilon,
                                      tensorflow::Input weight_decay, tensorflow::Input grad);

// sum += grad, except for the last member of the cycle: then var is updated with
// scale·(sum + grad), and sum is cleared.
tensorflow::Operation BaseApplySgd(const tensorflow::Scope& scope, tensorflow::Input var,
                                   tensorflow::Input sum, tensorflow::Input member,
                                   tensorflow::Input cycle, tensorflow::Input scale,
                                   tensorflow::Input lr, tensorflow::Input weight_decay,
                                   tensorflow::Input grad);
tensorflow::Operation BaseApplyMomentum(const tensorflow::Scope& scope, tensorflow::Input var,
                                        tensorflow::Input accum, tensorflow::Input sum,
                                        tensorflow::Input member, tensorflow::Input cycle,
                                        tensorflow::Input scale, tensorflow::Input lr,
                                        tensorflow::Input momentum, tensorflow::Input weight_decay,
                                        tensorflow::Input grad, bool use_nesterov = false);
tensorflow::Operation BaseApplyAdam(const tensorflow::Scope& scope, tensorflow::Input var,
                                    tensorflow::Input m, tensorflow::Input v,
                                    tensorflow::Input count, tensorflow::Input sum,
                                    tensorflow::Input member, tensorflow::Input cycle,
                                    tensorflow::Input scale, tensorflow::Input lr,
                                    tensorflow::Input beta1, tensorflow::Input beta2,
                                    tensorflow::Input epsilon, tensorflow::Input weight_decay,
                                    tensorflow::Input grad);

}  // namespace ops
}  // namespace late_phase

#endif  // LATE_PHASE_OPS_UPDATE_RULES_H_

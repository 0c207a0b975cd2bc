#include "ops/batch_norm.h"

#include "ops/add_op.h"

namespace late_phase {
namespace ops {

BatchNorm::BatchNorm(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
                     tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
                     tensorflow::Input member, const Attrs& attrs)
    : operation(AddOp(scope, "LatePhase>BatchNorm", "BatchNorm",
                      {x, scale, offset, mean, variance, member},
                      [&](tensorflow::NodeBuilder* builder) {
                        builder->Attr("epsilon", attrs.epsilon)
                            .Attr("momentum", attrs.momentum)
                            .Attr("is_training", attrs.is_training)
                            .Attr("activation", attrs.activation)
                            .Attr("data_format", attrs.data_format);
                      })),
      y(OutputOf(operation, 0)),
      running_mean(OutputOf(operation, 1)),
      running_variance(OutputOf(operation, 2)),
      saved_mean(OutputOf(operation, 3)),
      saved_mean_rest(OutputOf(operation, 4)),
      saved_inv_std(OutputOf(operation, 5)) {}

}  // namespace ops
}  // namespace late_phase

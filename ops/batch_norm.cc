#include "ops/batch_norm.h"

#include "ops/add_node.h"

namespace late_phase {
namespace ops {

BatchNorm::BatchNorm(const tensorflow::Scope& scope, tensorflow::Input x, tensorflow::Input scale,
                     tensorflow::Input offset, tensorflow::Input mean, tensorflow::Input variance,
                     tensorflow::Input member, const Attrs& attrs)
    : operation(AddNode(scope, "LatePhase>BatchNorm", "BatchNorm",
                        {x, scale, offset, mean, variance, member},
                        [&](tensorflow::NodeBuilder* builder) {
                          builder->Attr("epsilon", attrs.epsilon)
                              .Attr("momentum", attrs.momentum)
                              .Attr("is_training", attrs.is_training)
                              .Attr("activation", attrs.activation)
                              .Attr("data_format", attrs.data_format);
                        })),
      y(GetOutput(operation, 0)),
      running_mean(GetOutput(operation, 1)),
      running_variance(GetOutput(operation, 2)),
      saved_mean(GetOutput(operation, 3)),
      saved_mean_rest(GetOutput(operation, 4)),
      saved_inv_std(GetOutput(operation, 5)) {}

}  // namespace ops
}  // namespace late_phase

// BatchNorm in training whose statistics are those of all workers' images together, so that it
// computes what one worker with the whole minibatch would. Of stock ops, with two sums over the
// workers forward and two backward in each layer: exact, not fast.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_JOINT_BATCH_NORM_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_JOINT_BATCH_NORM_H_

#include "ops/batch_norm.h"
#include "optimizers/late_phase.h"
#include "tensorflow/cc/framework/ops.h"

namespace late_phase {

// Inputs and outputs are those of ops::BatchNorm. REQUIRES: the workers have equally many images.
struct JointBatchNorm {
  JointBatchNorm(LatePhase* late_phase, tensorflow::Output x, tensorflow::Output scale,
                 tensorflow::Output offset, tensorflow::Output mean, tensorflow::Output variance,
                 tensorflow::Output member, const ops::BatchNormAttrs& attrs);

  tensorflow::Output y;
  tensorflow::Output running_mean, running_variance;  // [channels]
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_JOINT_BATCH_NORM_H_

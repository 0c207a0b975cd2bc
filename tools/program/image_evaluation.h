// The evaluation of image networks: predictions of every weight set of every run, their metrics on
// the run's own images, on others (out of distribution) and on corrupted ones, and the flatness of
// the loss around the weights.
#ifndef LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_
#define LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_

#include <vector>

#include "tools/program/evaluation.h"

namespace late_phase {

// `runs` must be runs of cifar. Throws UsageError for what the user can fix, before anything is
// computed.
Evaluation EvaluateImages(const std::vector<EvaluatedRun>& runs, const EvaluationOptions& options);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_IMAGE_EVALUATION_H_

// The weights of a run that `eval --weights` can name.
#ifndef LATE_PHASE_TOOLS_PROGRAM_WEIGHT_NAMES_H_
#define LATE_PHASE_TOOLS_PROGRAM_WEIGHT_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/training/trainer.h"
#include "optimizers/run.h"
#include "tools/program/command_line.h"

namespace late_phase {

constexpr char kWeightNames[] =
    "collapsed, swa, members, ensemble, current, member-K; of image networks collapsed-mean, "
    "collapsed-affine, collapsed-reestimated, mc-dropout and swag, too";

// For a set of weights that a run does not have: "no such weights: swa; this run has collapsed,
// current", and the reason in parentheses.
UsageError NoSuchWeights(const std::string& name, const Task& task, const Run& run,
                         const std::string& reason = "");

// Weight sets by name: "collapsed", "swa"; UsageError if the run has no such weights.
WeightSet ParseWeightSet(const std::string& name, const Task& task, const Run& run);

// "affine" of "collapsed-affine": how BatchNorm is collapsed (CifarOptions::batch_norm_collapse).
// Empty for other weights.
std::string BatchNormWay(const std::string& name);

// Whether only image networks have such weights.
bool IsForImages(const std::string& name);

// The requested weight sets, by name as above, with "members" replaced by "member-K" for each. An
// empty request means all that the run has, except those of IsForImages. Throws UsageError for
// unknown names, and for members and averages that the run does not have; whether it has dropout
// or SWAG's moments is checked by the task.
std::vector<std::string> WeightNames(const std::vector<std::string>& asked, const Task& task,
                                     const Run& run);

// The index of "member-3", or of "current", the member trained last.
int32_t ParseMember(const std::string& name, const Task& task, const Run& run);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_WEIGHT_NAMES_H_

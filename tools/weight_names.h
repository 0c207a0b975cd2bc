// The weights of a run that `eval --weights` can name.
#ifndef LATE_PHASE_TOOLS_WEIGHT_NAMES_H_
#define LATE_PHASE_TOOLS_WEIGHT_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "optimizers/run.h"

namespace late_phase {

constexpr char kWeightNames[] = "collapsed, swa, members, ensemble, current, or member-K";

// What is asked for, one name per set: "collapsed", "swa", "ensemble", "current" or "member-K", as
// which "members" comes back. Nothing asked for: all that the run has. Throws UsageError for names
// that are unknown, and for weights that the run does not have.
std::vector<std::string> WeightNames(const std::vector<std::string>& asked, const Run& run);

// The member of "member-3", or of "current": the one that was trained last.
int32_t MemberOf(const std::string& name, const Run& run);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_WEIGHT_NAMES_H_

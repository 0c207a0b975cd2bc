// Which weights of a run are evaluated.
#ifndef LATE_PHASE_OPTIMIZERS_WEIGHT_SET_H_
#define LATE_PHASE_OPTIMIZERS_WEIGHT_SET_H_

namespace late_phase {

enum class WeightSet {
  kCurrent,    // the base, and a member of the late-phase weights
  kCollapsed,  // the mean over the members; before T0 row 0
  kSwa         // the averages over time, collapsed
};

// "current", "collapsed", "swa"
inline const char* WeightSetName(WeightSet set) {
  switch (set) {
    case WeightSet::kCurrent:
      return "current";
    case WeightSet::kCollapsed:
      return "collapsed";
    case WeightSet::kSwa:
      return "swa";
  }
  return "";
}

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_WEIGHT_SET_H_

// The settings that a checkpoint must agree with.
#ifndef LATE_PHASE_OPTIMIZERS_SETTINGS_H_
#define LATE_PHASE_OPTIMIZERS_SETTINGS_H_

#include <string>
#include <utility>
#include <vector>

namespace late_phase {

// (name, value), in the order in which differences are reported.
using Settings = std::vector<std::pair<std::string, std::string>>;

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_SETTINGS_H_

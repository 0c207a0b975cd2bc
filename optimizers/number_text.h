// Numbers as text in the settings that a checkpoint must agree with.
#ifndef LATE_PHASE_OPTIMIZERS_NUMBER_TEXT_H_
#define LATE_PHASE_OPTIMIZERS_NUMBER_TEXT_H_

#include <string>

namespace late_phase {

// The number in six digits, or in as many more, up to 17, as it takes to read back as the same
// double: equal texts are equal numbers. "0.1", "1e-08", "0.3333333333333333".
std::string NumberText(double value);

// The text with every number in it rounded to six digits, as checkpoints of version 0.1.0 have
// them: "lr=0.3333333333333333" becomes "lr=0.333333".
std::string InSixDigits(const std::string& text);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_NUMBER_TEXT_H_

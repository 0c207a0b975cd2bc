// Ctrl-C and SIGTERM. A program ends at once, with a line that says so, unless it has something to
// finish first: a training run its step and its checkpoint, any program the file it is writing.
#ifndef LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_
#define LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_

#include <string>

namespace late_phase {

// To be called first in main. Also where the signals are ignored on entry, as they are in the
// background of a shell script. Until SetEnding the status is 128 + the signal, as a shell has it.
void EndOnSignals(const std::string& command);

// From now on a program that is interrupted ends with this text and status.
void SetEnding(const std::string& text, int status);

// While one exists, a signal is acknowledged with `text` and no more; the program ends when it
// goes. A second Ctrl-C ends the program at once. SIGTERM never does: those who send it may do so
// twice.
class FinishFirst {
 public:
  explicit FinishFirst(const std::string& text);
  FinishFirst(const FinishFirst&) = delete;
  FinishFirst& operator=(const FinishFirst&) = delete;
  ~FinishFirst();

 private:
  const int exceptions_;  // an error on the way is for the caller to report
};

// Whether a signal has come, for what is to be finished early.
bool Interrupted();

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_

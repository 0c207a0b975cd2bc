// Ctrl-C and SIGTERM. A program ends at once, with a line that says so, unless it has something to
// finish first: a training run its step and its checkpoint, any program the file it is writing.
#ifndef LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_
#define LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_

#include <string>

namespace late_phase {

// Call this first in main. It also works where the signals are ignored on entry, as they are in the
// background of a shell script. Until SetEnding the status is 128 + the signal, as in a shell.
void EndOnSignals(const std::string& command);

// From now on, an interrupted program ends with this text and status.
void SetEnding(const std::string& text, int status);

// While one exists, a signal is only acknowledged, with `text`; the program ends when the object is
// destroyed. A second Ctrl-C ends the program at once. A second SIGTERM does not: whoever sends
// one may well send two.
class FinishFirst {
 public:
  explicit FinishFirst(const std::string& text);
  FinishFirst(const FinishFirst&) = delete;
  FinishFirst& operator=(const FinishFirst&) = delete;
  ~FinishFirst();

 private:
  const int exceptions_;  // an error in the meantime is for the caller to report
};

// Ends the program as an interrupted one ends, on behalf of another process that a signal has
// reached. Nothing may be left to finish.
[[noreturn]] void EndAsInterrupted();

// Whether a signal has arrived, for work that should then finish early.
bool Interrupted();

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_INTERRUPT_H_

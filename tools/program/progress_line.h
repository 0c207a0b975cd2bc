// A progress line on standard error, and the format of numbers in it.
#ifndef LATE_PHASE_TOOLS_PROGRAM_PROGRESS_LINE_H_
#define LATE_PHASE_TOOLS_PROGRAM_PROGRESS_LINE_H_

#include <chrono>
#include <cstdio>
#include <limits>
#include <string>

namespace late_phase {

// On a terminal the line is rewritten in place, at most ten times a second. Elsewhere, as in a log,
// it is a new line for every tenth of the work, or sooner if `interval` seconds have passed.
//
//   ProgressLine progress(60);
//   for (...) progress.Show("step 300, " + DurationText(left) + " left", share_of_the_work_done);
//   progress.End();
//
// One thread at a time.
class ProgressLine {
 public:
  explicit ProgressLine(double interval = std::numeric_limits<double>::infinity(),
                        std::FILE* stream = stderr);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { End(); }  // so that an error message starts on a new line

  // Shows `text`, unless the last one was shown just now. `done`: the fraction of the work that is
  // done, in [0, 1]; at 1 the text is always shown.
  void Show(const std::string& text, double done);

  // Clears the line from a terminal, for other output; the next Show brings it back.
  void Clear();

  // Leaves the line as it is; what follows starts on a new one. A second call does nothing.
  void End();

  // Since the object was constructed.
  double Seconds() const;

 private:
  const double interval_;
  std::FILE* const stream_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool open_ = false;      // the cursor is at the end of a text
  bool complete_ = false;  // done = 1 was shown
  double shown_at_ = 0;    // in Seconds()
  int tenths_ = 0;         // shown
};

// "45 s", "12 min", "2 h 13 min".
std::string DurationText(double seconds);

// Three digits: "987", "45.1k", "1.20M".
std::string CountText(double count);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_PROGRESS_LINE_H_

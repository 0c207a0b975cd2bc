// Faults that clang-tidy must find (tests/tools/tidy_test.py).
#ifndef LATE_PHASE_TESTS_TOOLS_TIDY_FAULTY_H_
#define LATE_PHASE_TESTS_TOOLS_TIDY_FAULTY_H_

#include <string>
#include <utility>

namespace late_phase {

struct Label {
  Label(std::string given) : text(std::move(given)) {}  // google-explicit-constructor
  std::string text;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_TOOLS_TIDY_FAULTY_H_

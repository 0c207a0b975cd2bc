// Faults that clang-tidy must find (tests/tools/tidy_test.py).
#include "tests/tools/tidy/faulty.h"

namespace late_phase {

size_t Length(Label label) {
  const Label taken = std::move(label);
  return taken.text.size() + label.text.size();  // bugprone-use-after-move
}

}  // namespace late_phase

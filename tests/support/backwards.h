// Threads for core tests: tasks run in line, last first, so that a core that relies on their order
// fails.
#ifndef LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_
#define LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_

#include "kernels/cpu/parallel.h"

namespace late_phase {
namespace test_util {

// `threads` is how many a core is told there are.
inline Parallel Backwards(int threads) {
  return {threads, [](int64_t tasks, const std::function<void(int64_t)>& task) {
            for (int64_t i = tasks - 1; i >= 0; --i) task(i);
          }};
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_

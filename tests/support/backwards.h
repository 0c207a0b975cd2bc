// Threads for core tests: tasks run inline, last first, so that a core that relies on their order
// fails. Under the thread sanitizer each task runs on a thread of its own, so that tasks that share
// what they write are found.
#ifndef LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_
#define LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace late_phase {
namespace test_util {

// `threads` is how many a core is told there are.
inline Parallel Backwards(int threads) {
  return {threads, [](int64_t tasks, const std::function<void(int64_t)>& task) {
#ifdef __SANITIZE_THREAD__
            std::vector<std::thread> all;
            for (int64_t i = 0; i < tasks; ++i) all.emplace_back(task, i);
            for (std::thread& one : all) one.join();
#else
            for (int64_t i = tasks - 1; i >= 0; --i) task(i);
#endif
          }};
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_BACKWARDS_H_

// A disk that does not confirm what was written to it.
//
// A test that links this has an fsync of its own, which takes the place of the C library's for
// every part of the test's program.
#ifndef LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_
#define LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_

#include <functional>
#include <string>

namespace late_phase::test_util {

// Asked with the path of each file or folder that is to be synced: 0, or the errno to fail with.
// Empty: every one is synced as usual.
extern std::function<int(const std::string& path)> fsync_error;

}  // namespace late_phase::test_util

#endif  // LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_

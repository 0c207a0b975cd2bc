// A disk that does not confirm what was written to it.
//
// A test that links this has an fsync of its own, which replaces the C library's in
// every part of the test's program.
#ifndef LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_
#define LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_

#include <functional>
#include <string>

namespace late_phase::test_util {

// Called with the path of each file or folder to be synced: returns 0, or the errno to fail with.
// Empty: all are synced as usual.
extern std::function<int(const std::string& path)> fsync_error;

}  // namespace late_phase::test_util

#endif  // LATE_PHASE_TESTS_SUPPORT_FAILING_DISK_H_

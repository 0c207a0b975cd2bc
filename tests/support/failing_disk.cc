#include "tests/support/failing_disk.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace late_phase::test_util {

std::function<int(const std::string& path)> fsync_error;

}  // namespace late_phase::test_util

extern "C" int fsync(int file) {
  using late_phase::test_util::fsync_error;
  if (fsync_error) {
    std::error_code unused;
    const auto path =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file), unused);
    errno = fsync_error(path.string());
    if (errno != 0) return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

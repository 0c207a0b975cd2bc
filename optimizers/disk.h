// Files that are read whole, and replaced so that neither a reader nor a crash sees half of one.
//
// Errors are returned, so a program can say what failed and why, and nothing that existed before is
// lost.
#ifndef LATE_PHASE_OPTIMIZERS_DISK_H_
#define LATE_PHASE_OPTIMIZERS_DISK_H_

#include <string>
#include <system_error>
#include <vector>

namespace late_phase {

// The bytes of a file. `text` is written only if all of them were read.
[[nodiscard]] std::error_code ReadWholeFile(const std::string& path, std::string* text);

// Writes a temporary file in the same folder, waits for the disk and renames it. Until then `path`
// holds what it held before; if anything fails by then, it keeps that and no temporary file is
// left. An error after the rename means that the new file is in place, but may not survive a power
// failure.
[[nodiscard]] std::error_code ReplaceFile(const std::string& path, const std::string& text);

// Waits until the bytes of a file are on the disk.
[[nodiscard]] std::error_code SyncFile(const std::string& path);

// Waits until the names in a folder are on the disk; a rename survives a power failure only then.
// On file systems that cannot wait for folders (EINVAL) there is nothing to do.
[[nodiscard]] std::error_code SyncFolder(const std::string& path);

// A folder that this process has for itself among those that ask. It gives it back when this goes
// out of scope, or when it ends, however that may be.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

  // std::errc::resource_unavailable_try_again: another process has it. On file systems without
  // locks there is nothing to do.
  [[nodiscard]] std::error_code Take(const std::string& path);

 private:
  int descriptor_ = -1;
};

// The paths of everything in a folder, in the order of their names.
[[nodiscard]] std::error_code ListFolder(const std::string& path,
                                         std::vector<std::string>* entries);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_DISK_H_

#include "optimizers/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace late_phase {
namespace {

// Closes the file when it goes out of scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int operator*() const { return number_; }
  // Some file systems report a failed write only here.
  bool Close() {
    const int number = number_;
    number_ = -1;
    return close(number) == 0;
  }

 private:
  int number_;
};

std::error_code LastError() { return {errno, std::generic_category()}; }

bool WriteAll(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

std::error_code Sync(const std::string& path, int flags) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (*file < 0 || fsync(*file) != 0) return LastError();
  return {};
}

}  // namespace

std::error_code ReadWholeFile(const std::string& path, std::string* text) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (*file < 0) return LastError();
  std::string all;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(*file, buffer, sizeof(buffer));
    if (count == 0) break;
    if (count < 0 && errno != EINTR) return LastError();
    if (count > 0) all.append(buffer, static_cast<size_t>(count));
  }
  *text = std::move(all);
  return {};
}

std::error_code ReplaceFile(const std::string& path, const std::string& text) {
  // Different names, so that two writers of one path do not share a file.
  static std::atomic<int> number{0};
  const std::string aside =
      path + ".part" + std::to_string(getpid()) + "-" + std::to_string(number++);
  Descriptor file(open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (*file < 0) return LastError();
  if (!WriteAll(*file, text) || fsync(*file) != 0 || !file.Close() ||
      rename(aside.c_str(), path.c_str()) != 0) {
    const std::error_code error = LastError();
    unlink(aside.c_str());
    return error;
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

std::error_code SyncFile(const std::string& path) { return Sync(path, 0); }

std::error_code SyncFolder(const std::string& path) {
  const std::error_code error = Sync(path, O_DIRECTORY);
  return error == std::errc::invalid_argument ? std::error_code() : error;
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::error_code FolderLock::Take(const std::string& path) {
  FolderLock lock;
  lock.descriptor_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock.descriptor_ < 0) return LastError();
  // The kernel gives it back when the process ends: a killed one leaves no lock.
  if (flock(lock.descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return LastError();
  *this = std::move(lock);
  return {};
}

std::error_code ListFolder(const std::string& path, std::vector<std::string>* entries) {
  entries->clear();
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  // A range-based for loop would throw what increment reports.
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    entries->push_back(entry->path().string());
  }
  std::sort(entries->begin(), entries->end());
  return error;
}

}  // namespace late_phase

#include "tools/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "tools/program.h"

namespace late_phase {
namespace {

// Closes the file when it goes.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int operator*() const { return number_; }
  // Some file systems report a failed write no earlier than this.
  bool Close() {
    const int number = number_;
    number_ = -1;
    return close(number) == 0;
  }

 private:
  int number_;
};

[[noreturn]] void Fail(const std::string& what, const std::string& path, int error) {
  throw std::runtime_error("cannot " + what + " " + path + ": " +
                           std::generic_category().message(error));
}

bool WriteAll(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

std::string ReadFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (*file < 0) Fail("read", path, errno);
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(*file, buffer, sizeof(buffer));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) Fail("read", path, errno);
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  }
}

void WriteFile(const std::string& path, const std::string& text) {
  // Unlike names, so that two writers of one path do not share a file.
  static std::atomic<int> number{0};
  const std::string aside =
      path + ".part" + std::to_string(getpid()) + "-" + std::to_string(number++);
  Descriptor file(open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (*file < 0) Fail("write", path, errno);
  if (!WriteAll(*file, text) || fsync(*file) != 0 || !file.Close() ||
      rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(aside.c_str());
    Fail("write", path, error);
  }
  // The new name is on the disk once the folder is. File systems that cannot do that keep the file.
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const Descriptor directory(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (*directory >= 0) fsync(*directory);
}

void MakeOutFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0) {
    throw UsageError("`out` must be a folder that can be made and written to. Received: out=" +
                     folder);
  }
}

}  // namespace late_phase

#include "tools/program/out_folder.h"

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "tools/program/command_line.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> UnfinishedSettings(const std::string& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("config.toml.part", 0) == 0) {
      paths.push_back(entry.path());
    }
  }
  return paths;
}

bool IsFree(const std::string& folder) {
  if (!fs::exists(folder)) return true;
  if (!fs::is_directory(folder)) return false;
  const auto entries = std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  return entries == static_cast<std::ptrdiff_t>(UnfinishedSettings(folder).size());
}

}  // namespace

void MakeOutFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0) {
    throw UsageError("`out` must be a folder that can be created and written to. Received: out=" +
                     folder);
  }
}

FolderLock LockOutFolder(const std::string& folder) {
  MakeOutFolder(folder);
  FolderLock lock;
  const std::error_code error = lock.Take(folder);
  if (error == std::errc::resource_unavailable_try_again) {
    throw UsageError("`out` must not be in use by another process. Received: out=" + folder +
                     ", in which one is training");
  }
  if (error) throw std::runtime_error("cannot lock " + folder + ": " + error.message());
  return lock;
}

void CheckRunFolder(const std::string& folder, bool resume) {
  if (resume) {
    if (fs::exists(folder + "/config.toml")) return;
    throw UsageError("`out` must hold a run to resume, with its config.toml. Received: out=" +
                     folder);
  }
  if (!IsFree(folder)) {
    throw UsageError(
        "`out` must be new or empty, unless the run in it is to be resumed with "
        "--resume. Received: out=" +
        folder);
  }
}

void RemoveUnfinishedSettings(const std::string& folder) {
  for (const fs::path& path : UnfinishedSettings(folder)) fs::remove(path);
}

}  // namespace late_phase

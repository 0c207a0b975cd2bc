#include "tools/program/files.h"

#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "optimizers/disk.h"
#include "tools/program/command_line.h"

namespace late_phase {
namespace {

void Require(const std::error_code& error, const std::string& what, const std::string& path) {
  if (error) throw std::runtime_error("cannot " + what + " " + path + ": " + error.message());
}

}  // namespace

std::string ReadFile(const std::string& path) {
  std::string text;
  Require(ReadWholeFile(path, &text), "read", path);
  return text;
}

void WriteFile(const std::string& path, const std::string& text) {
  Require(ReplaceFile(path, text), "write", path);
}

void MakeOutFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder, error) || access(folder.c_str(), W_OK) != 0) {
    throw UsageError("`out` must be a folder that can be created and written to. Received: out=" +
                     folder);
  }
}

}  // namespace late_phase

#include "tools/program/files.h"

#include <stdexcept>
#include <system_error>

#include "optimizers/disk.h"

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

}  // namespace late_phase

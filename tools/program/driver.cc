#include "tools/program/driver.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tools/program/command_line.h"

namespace late_phase {
namespace {

using Json = nlohmann::ordered_json;

// The descriptor; -1 without a driver.
int Connection() {
  static const int connection = DriversDescriptor("LATE_PHASE_DRIVER");
  return connection;
}

// False if there is no driver or it is gone, which is not the program's error.
bool Send(const std::string& line) {
  if (!HasDriver()) return false;
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = send(Connection(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += count;
  }
  return true;
}

// The next line; empty if there is no driver or it is gone. There is one answer at a time, so
// nothing follows the line.
std::string Receive() {
  if (!HasDriver()) return "";
  std::string line;
  while (line.empty() || line.back() != '\n') {
    char c = 0;
    const ssize_t count = recv(Connection(), &c, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return "";
    line += c;
  }
  return line;
}

std::string Line(const Json& message) {
  return message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int DriversDescriptor(const char* variable) {
  const char* text = std::getenv(variable);
  int descriptor = -1;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), descriptor);
  return descriptor;
}

void EndWithDriver() {
  if (!HasDriver()) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  char unread;  // the driver may have been killed already
  if (recv(Connection(), &unread, 1, MSG_PEEK | MSG_DONTWAIT) == 0) std::raise(SIGTERM);
}

bool HasDriver() { return Connection() >= 0; }

void TellDriver(const Json& message) {
  if (HasDriver()) Send(Line(message));
}

std::string AskDriver(const Json& need) {
  if (Send(Line(need))) {
    const Json answer = Json::parse(Receive(), nullptr, /*allow_exceptions=*/false);
    if (answer.is_object() && answer.contains("path")) return answer["path"];
    if (answer.is_object() && answer.contains("error")) throw UsageError(answer["error"]);
  }
  throw std::runtime_error("the driver did not answer. Asked for: " + need.dump());
}

std::string CommandName(const std::string& command) {
  const char* name = std::getenv("LATE_PHASE_COMMAND");
  return std::string(name == nullptr ? "latephase" : name) + " " + command;
}

}  // namespace late_phase

#include "optimizers/worker_group.h"

#include <algorithm>
#include <charconv>

namespace late_phase {
namespace {

// Whether the text is HOST:PORT, with a port from 1 to 65535.
bool IsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data() + colon + 1, end, port);
  return error == std::errc() && read == end && port >= 1 && port <= 65535;
}

}  // namespace

std::string CheckShares(const Share& share, const std::string& name, int64_t n) {
  if (n % share.workers == 0) return "";
  return "`" + name + "` must be a multiple of " + std::to_string(share.workers) +
         ", the workers, so that all have equal shares. Received: " + name + "=" +
         std::to_string(n);
}

std::string WorkerGroup::Check() const {
  for (const std::string& address : addresses) {
    if (!IsAddress(address)) {
      return "`workers` must be addresses of the form HOST:PORT. Received: " + address;
    }
    if (std::count(addresses.begin(), addresses.end(), address) > 1) {
      return "`workers` must all be different. Received: " + address + " more than once";
    }
  }
  const auto count = static_cast<int64_t>(addresses.size());
  if (count < 2) {
    return "`workers` must be at least two addresses; one worker alone needs none. Received: " +
           std::to_string(count);
  }
  if (task < 0 || task >= count) {
    return "`task` must be the place of this worker among the " + std::to_string(count) +
           " of `workers`, counted from 0. Received: task=" + std::to_string(task);
  }
  if (!(patience > 0)) return "`patience` must be a number of seconds > 0";
  return "";
}

}  // namespace late_phase

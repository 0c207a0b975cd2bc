#include "tools/program/bind_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>

namespace late_phase {
namespace {

// An address in both forms: servers use IPv6's for both families.
struct OwnAddress {
  bool has_v4;
  in_addr v4;
  in6_addr v6;  // of IPv4, its mapped form
};

// Read by whatever thread binds; never changed, only replaced, and never freed.
std::atomic<const OwnAddress*> own{nullptr};

int SystemBind(int socket, const sockaddr* address, socklen_t size) {
  return static_cast<int>(syscall(SYS_bind, socket, address, size));
}

// Whether a socket can be bound to it, so that it is this machine's.
bool IsOwn(const addrinfo& info) {
  const int descriptor = socket(info.ai_family, SOCK_STREAM, 0);
  if (descriptor < 0) return false;
  const bool bound = SystemBind(descriptor, info.ai_addr, info.ai_addrlen) == 0;
  close(descriptor);
  return bound;
}

bool IsLoopback(const addrinfo& info) {
  if (info.ai_family == AF_INET) {
    const in_addr& address = reinterpret_cast<const sockaddr_in*>(info.ai_addr)->sin_addr;
    return ntohl(address.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(info.ai_addr)->sin6_addr);
}

// Whether the host is an address itself, not a name.
bool IsNumeric(const std::string& host) {
  in6_addr parsed;
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

OwnAddress Convert(const addrinfo& info) {
  OwnAddress found = {};
  found.has_v4 = info.ai_family == AF_INET;
  if (found.has_v4) {
    found.v4 = reinterpret_cast<const sockaddr_in*>(info.ai_addr)->sin_addr;
    found.v6.s6_addr[10] = found.v6.s6_addr[11] = 0xff;
    std::memcpy(&found.v6.s6_addr[12], &found.v4, sizeof found.v4);
  } else {
    found.v6 = reinterpret_cast<const sockaddr_in6*>(info.ai_addr)->sin6_addr;
  }
  return found;
}

std::string Text(const OwnAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.has_v4) {
    inet_ntop(AF_INET, &address.v4, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, &address.v6, text, sizeof text);
  }
  return text;
}

bool IsStream(int socket) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

// Binds to the own address instead of every interface's, and instead of another interface's, which
// TensorFlow chooses for ports of its own.
int BindOwn(int socket, const sockaddr* address, socklen_t size) {
  const OwnAddress* only = own.load();
  if (only == nullptr || !IsStream(socket)) return SystemBind(socket, address, size);
  if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in) && only->has_v4) {
    sockaddr_in copy;
    std::memcpy(&copy, address, sizeof copy);
    copy.sin_addr = only->v4;
    return SystemBind(socket, reinterpret_cast<const sockaddr*>(&copy), sizeof copy);
  }
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 copy;
    std::memcpy(&copy, address, sizeof copy);
    copy.sin6_addr = only->v6;
    return SystemBind(socket, reinterpret_cast<const sockaddr*>(&copy), sizeof copy);
  }
  return SystemBind(socket, address, size);
}

}  // namespace

std::string BindOnlyTo(const std::string& host) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  // Many systems have their own name for the loopback interface, where others could not reach it.
  const bool loopback = name == "localhost" || IsNumeric(name);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if ((one->ai_family != AF_INET && one->ai_family != AF_INET6) || !IsOwn(*one)) continue;
    if (IsLoopback(*one) && !loopback) continue;
    own = new OwnAddress(Convert(*one));
    return Text(*own.load());
  }
  return "";
}

}  // namespace late_phase

// Called by the libraries that this program links to.
extern "C" int bind(int socket, const sockaddr* address, socklen_t size) noexcept {
  return late_phase::BindOwn(socket, address, size);
}

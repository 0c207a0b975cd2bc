// Where a process listens once it has been told which address is its own.
#include "tools/program/bind_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

// The address that a socket has after it was bound to every interface.
std::string BoundTo(int family) {
  const int descriptor = socket(family, SOCK_STREAM, 0);
  sockaddr_storage any = {};
  any.ss_family = static_cast<sa_family_t>(family);
  auto* const address = reinterpret_cast<sockaddr*>(&any);
  socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  EXPECT_EQ(bind(descriptor, address, size), 0) << std::strerror(errno);
  EXPECT_EQ(getsockname(descriptor, address, &size), 0);
  close(descriptor);
  char text[INET6_ADDRSTRLEN] = "";
  const void* const bytes =
      family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&any)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(&any)->sin6_addr;
  inet_ntop(family, bytes, text, sizeof text);
  return text;
}

TEST(BindAddressTest, OnlyTheOwnAddressIsBound) {
  EXPECT_EQ(BoundTo(AF_INET), "0.0.0.0");
  // Not this machine's: of a block that is kept for documentation.
  EXPECT_EQ(BindOnlyTo("203.0.113.77"), "");
  EXPECT_EQ(BindOnlyTo("host.invalid"), "");
  EXPECT_EQ(BoundTo(AF_INET), "0.0.0.0");
  EXPECT_EQ(BindOnlyTo("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(BoundTo(AF_INET), "127.0.0.1");
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  if (six < 0) return;  // a machine without IPv6
  close(six);
  EXPECT_EQ(BoundTo(AF_INET6), "::ffff:127.0.0.1");
}

TEST(BindAddressTest, AMachinesNameForItsLoopbackInterfaceIsNotTakenAtItsWord) {
  char name[256] = "";
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string bound = BindOnlyTo(name);
  EXPECT_NE(bound.substr(0, 4), "127.") << name;
  EXPECT_NE(bound, "::1") << name;
}

}  // namespace
}  // namespace late_phase

// Several workers in one process, each on a thread of its own, for tests of what they do together.
#ifndef LATE_PHASE_TESTS_SUPPORT_LOCAL_WORKERS_H_
#define LATE_PHASE_TESTS_SUPPORT_LOCAL_WORKERS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "optimizers/workers.h"

namespace late_phase {
namespace test_util {

// Loopback addresses whose ports are free.
inline std::vector<std::string> FreeAddresses(int count) {
  std::vector<std::string> addresses;
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(sockets.back(), any, size), 0);
    EXPECT_EQ(getsockname(sockets.back(), any, &size), 0);
    addresses.push_back("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  }
  for (const int one : sockets) close(one);
  return addresses;
}

// Calls `work` for each of `count` workers, at the same time.
inline void OnWorkers(int count, int threads, const std::function<void(Workers*)>& work) {
  WorkerGroup group;
  group.addresses = FreeAddresses(count);
  group.patience = 60;
  std::vector<std::thread> running;
  for (group.task = 0; group.task < count; ++group.task) {
    running.emplace_back([group, threads, &work] {
      absl::StatusOr<std::unique_ptr<Workers>> workers = Workers::Open(group, threads);
      ASSERT_TRUE(workers.ok()) << workers.status();
      work(workers->get());
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_LOCAL_WORKERS_H_

// The threads of a process, as the kernel counts them: what the first session asks for, and an
// error for what TensorFlow cannot give later.
#include "optimizers/session.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {
namespace {

// The threads of this process by name. TensorFlow's names for those inside ops are too long for
// the kernel, so they are called as the process is.
std::map<std::string, int> Threads() {
  std::map<std::string, int> threads;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    ++threads[name];
  }
  return threads;
}

void Multiply(tensorflow::Session* session) {
  auto scope = tensorflow::Scope::NewRootScope();
  const auto x = tensorflow::ops::Fill(scope, {300, 300}, 2.0f);
  const auto y = tensorflow::ops::MatMul(scope, x, x);
  tensorflow::GraphDef graph;
  ASSERT_EQ(scope.ToGraphDef(&graph), absl::OkStatus());
  ASSERT_EQ(session->Create(graph), absl::OkStatus());
  std::vector<tensorflow::Tensor> results;
  ASSERT_EQ(session->Run({}, {tensorflow::Output(y).name()}, {}, &results), absl::OkStatus());
  EXPECT_EQ(results[0].flat<float>()(0), 1200);
}

TEST(SessionTest, TheProcessHasTheThreadsOfItsFirstSession) {
  std::unique_ptr<tensorflow::Session> session, other;
  EXPECT_EQ(OpenSession(0, &session).message(),
            "`threads` must be at least 1. Received: threads=0");
  const std::map<std::string, int> before = Threads();
  ASSERT_EQ(before.size(), 1);
  const std::string process = before.begin()->first;

  ASSERT_EQ(OpenSession(5, &session), absl::OkStatus());
  Multiply(session.get());
  std::map<std::string, int> now = Threads();
  EXPECT_EQ(now[process] - before.at(process), 5);
  EXPECT_EQ(now["tf_Compute0"], 1);  // one op at a time
  EXPECT_EQ(now["tf_Compute"], 0);   // the process's pool, of one thread per core

  ASSERT_EQ(OpenSession(5, &other), absl::OkStatus());
  Multiply(other.get());
  now = Threads();
  EXPECT_EQ(now[process] - before.at(process), 5);
  EXPECT_EQ(now["tf_Compute0"], 2);

  other.reset();
  const absl::Status status = OpenSession(1, &other);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "`threads` must be 5, as in the first session of this process, whose threads "
            "TensorFlow gives to all. Received: threads=1");
  EXPECT_EQ(other, nullptr);
}

}  // namespace
}  // namespace late_phase

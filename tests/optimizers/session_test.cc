// The threads of a process, as the kernel counts them: what the first session asks for, and an
// error for what TensorFlow cannot give later.
#include "optimizers/session.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;

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
  ASSERT_THAT(scope.ToGraphDef(&graph), IsOk());
  ASSERT_THAT(session->Create(graph), IsOk());
  std::vector<tensorflow::Tensor> results;
  ASSERT_THAT(session->Run({}, {tensorflow::Output(y).name()}, {}, &results), IsOk());
  EXPECT_EQ(results[0].flat<float>()(0), 1200);
}

TEST(SessionTest, TheProcessHasTheThreadsOfItsFirstSession) {
  std::unique_ptr<tensorflow::Session> session, other;
  EXPECT_THAT(OpenSession(0), StatusIs(_, "`threads` must be at least 1. Received: threads=0"));
  const std::map<std::string, int> before = Threads();
  ASSERT_EQ(before.size(), 1);
  const std::string process = before.begin()->first;

  TF_ASSERT_OK_AND_ASSIGN(session, OpenSession(5));
  Multiply(session.get());
  std::map<std::string, int> now = Threads();
  EXPECT_EQ(now[process] - before.at(process), 5);
  EXPECT_EQ(now["tf_Compute0"], 1);  // one op at a time
  EXPECT_EQ(now["tf_Compute"], 0);   // the process's pool, of one thread per core

  TF_ASSERT_OK_AND_ASSIGN(other, OpenSession(5));
  Multiply(other.get());
  now = Threads();
  EXPECT_EQ(now[process] - before.at(process), 5);
  EXPECT_EQ(now["tf_Compute0"], 2);

  other.reset();
  EXPECT_THAT(
      OpenSession(1),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "`threads` must be 5, as in the first session of this process, whose threads "
               "TensorFlow gives to all. Received: threads=1"));
}

}  // namespace
}  // namespace late_phase

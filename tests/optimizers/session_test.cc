// The threads of a process, as the kernel counts them: what the first session asks for, and an
// error for what TensorFlow cannot give later.
#include "optimizers/session.h"

#include <filesystem>
#include <iterator>
#include <memory>
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

// How many threads this process has. (Only some releases of TensorFlow give theirs names.)
int Threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
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
  ASSERT_EQ(Threads(), 1);

  // The main thread, five inside ops, one that runs them one at a time, and one that TensorFlow
  // folds constants with. Not the process's pool, of one thread per core.
  TF_ASSERT_OK_AND_ASSIGN(session, OpenSession(5));
  Multiply(session.get());
  EXPECT_EQ(Threads(), 1 + 5 + 1 + 1);

  TF_ASSERT_OK_AND_ASSIGN(other, OpenSession(5));
  Multiply(other.get());
  EXPECT_EQ(Threads(), 1 + 5 + 2 + 1);

  other.reset();
  EXPECT_THAT(
      OpenSession(1),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "`threads` must be 5, as in the first session of this process, whose threads "
               "TensorFlow gives to all. Received: threads=1"));
}

}  // namespace
}  // namespace late_phase

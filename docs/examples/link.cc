// Links the op library: builds a graph with member 3 of a rank-1 LSTM and differentiates it.
#include <iostream>
#include <memory>

#include "ops/rank1_lstm.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/core/public/session.h"

int main() {
  using tensorflow::Output;
  tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  auto fill = [&](std::initializer_list<int> shape, float value) -> Output {
    return tensorflow::ops::Fill(scope, tensorflow::ops::Const(scope, shape), value);
  };
  const int time = 5, batch = 2, inputs = 3, units = 4, members = 10;
  const Output u = fill({members, units}, 1.0f);
  const late_phase::ops::Rank1Lstm lstm(
      scope, /*x=*/fill({time, batch, inputs}, 0.5f), /*initial_h=*/fill({batch, units}, 0.0f),
      /*initial_c=*/fill({batch, units}, 0.0f), /*kernel=*/fill({inputs, 4 * units}, 0.1f),
      /*recurrent_kernel=*/fill({units, 4 * units}, 0.1f), /*bias=*/fill({4 * units}, 0.0f), u,
      /*v=*/fill({members, 4 * units}, 1.0f), /*member=*/3);
  std::vector<Output> gradients;
  scope.UpdateStatus(tensorflow::AddSymbolicGradients(scope, {lstm.final_h}, {u}, &gradients));

  tensorflow::GraphDef graph;
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession({}));
  std::vector<tensorflow::Tensor> results;
  absl::Status status = scope.ToGraphDef(&graph);
  if (status.ok()) status = session->Create(graph);
  if (status.ok()) {
    status = session->Run({}, {lstm.final_h.name(), gradients[0].name()}, {}, &results);
  }
  if (!status.ok()) {
    std::cerr << status << "\n";
    return 1;
  }
  std::cout << "final_h: " << results[0].shape().DebugString() << ", first value "
            << results[0].flat<float>()(0) << "\n"
            << "gradient of u: row 3 " << results[1].matrix<float>()(3, 0) << ", row 4 "
            << results[1].matrix<float>()(4, 0) << "\n";
  return 0;
}

// Loads the op library at run time, as a plug-in: the program itself links TensorFlow only. Usage:
// load PATH_OF_late_phase_ops.so
#include <iostream>
#include <memory>

#include "ops/add_node.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/public/session.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "Usage: load PATH_OF_late_phase_ops.so\n";
    return 2;
  }
  void* library = nullptr;
  absl::Status status = tensorflow::Env::Default()->LoadDynamicLibrary(argv[1], &library);

  tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  using tensorflow::Tensor;
  auto zeros = [](std::initializer_list<int64_t> shape) {
    Tensor tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape(shape));
    tensor.flat<float>().setZero();
    return tensor;
  };
  Tensor tokens(tensorflow::DT_INT32,
                tensorflow::TensorShape({1, 3}));  // one step, three sequences
  for (int n = 0; n < 3; ++n) tokens.flat<int32_t>()(n) = n;
  Tensor table = zeros({3, 8});  // three symbols, two units
  for (int symbol = 0; symbol < 3; ++symbol)
    table.matrix<float>()(symbol, 4) = symbol;  // gate g of unit 0
  const tensorflow::Operation lstm = late_phase::AddNode(
      scope, "LatePhase>Rank1LstmTokens", "lstm",
      {tokens, table, /*initial_h=*/zeros({3, 2}), /*initial_c=*/zeros({3, 2}),
       /*recurrent_kernel=*/zeros({2, 8}), /*u=*/zeros({1, 2}), /*v=*/zeros({1, 8}), /*member=*/0},
      [](tensorflow::NodeBuilder* node) { node->Attr("is_training", false); });

  tensorflow::GraphDef graph;
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession({}));
  std::vector<Tensor> results;
  if (status.ok()) status = scope.ToGraphDef(&graph);
  if (status.ok()) status = session->Create(graph);
  if (status.ok()) status = session->Run({}, {"lstm:0"}, {}, &results);
  if (!status.ok()) {
    std::cerr << status << "\n";
    return 1;
  }
  const auto h = results[0].tensor<float, 3>();
  std::cout << "h of unit 0: " << h(0, 0, 0) << " " << h(0, 1, 0) << " " << h(0, 2, 0) << "\n";
  return 0;
}

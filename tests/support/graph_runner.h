// Runs the graph of a Scope in a fresh CPU session: what every graph test and the C++ examples'
// tests need.
#ifndef LATE_PHASE_TESTS_SUPPORT_GRAPH_RUNNER_H_
#define LATE_PHASE_TESTS_SUPPORT_GRAPH_RUNNER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"

namespace late_phase {
namespace test_util {

using Feeds = std::vector<std::pair<std::string, tensorflow::Tensor>>;

// The threads of every session in a test's process (optimizers/session.h).
constexpr int kGraphThreads = 2;

// Fetches the given outputs. An error in building the graph is returned as the status.
inline absl::Status RunGraph(const tensorflow::Scope& scope, const Feeds& feeds,
                             const std::vector<tensorflow::Output>& fetches,
                             std::vector<tensorflow::Tensor>* results) {
  tensorflow::GraphDef graph;
  if (absl::Status status = scope.ToGraphDef(&graph); !status.ok()) return status;
  tensorflow::SessionOptions options;
  options.config.set_intra_op_parallelism_threads(kGraphThreads);
  options.config.mutable_graph_options()->mutable_rewrite_options()->set_disable_meta_optimizer(
      true);  // run what was built
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  if (absl::Status status = session->Create(graph); !status.ok()) return status;
  std::vector<std::string> names;
  for (const tensorflow::Output& output : fetches) names.push_back(output.name());
  return session->Run(feeds, names, {}, results);
}

template <typename T, typename Values>
tensorflow::Tensor MakeTensor(const std::vector<int64_t>& dims, const Values& values) {
  tensorflow::Tensor tensor(tensorflow::DataTypeToEnum<T>::value, tensorflow::TensorShape(dims));
  auto flat = tensor.flat<T>();
  for (int64_t i = 0; i < flat.size(); ++i) flat(i) = static_cast<T>(values[i]);
  return tensor;
}

template <typename T>
std::vector<double> Values(const tensorflow::Tensor& tensor) {
  std::vector<double> values;
  const auto flat = tensor.flat<T>();
  for (int64_t i = 0; i < flat.size(); ++i) values.push_back(static_cast<double>(flat(i)));
  return values;
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_GRAPH_RUNNER_H_

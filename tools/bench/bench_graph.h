// What the benchmarks of ops in C++ graphs share: a graph with its session, threads for what runs
// without TensorFlow's graphs, random tensors, and the comparison of results.
#ifndef LATE_PHASE_TOOLS_BENCH_BENCH_GRAPH_H_
#define LATE_PHASE_TOOLS_BENCH_BENCH_GRAPH_H_

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "optimizers/session.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

namespace late_phase {

// Used by all contestants.
inline int Threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

// The larger one; NaN counts as the largest.
inline double Worse(double a, double b) { return b <= a || std::isnan(a) ? a : b; }

// Uniform in [−0.5, 0.5].
inline tensorflow::Tensor Uniform(const tensorflow::TensorShape& shape) {
  static std::minstd_rand engine(1);
  tensorflow::Tensor tensor(tensorflow::DT_FLOAT, shape);
  auto flat = tensor.flat<float>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    flat(i) = static_cast<float>(engine()) / static_cast<float>(engine.max()) - 0.5f;
  }
  return tensor;
}

// A graph, which may have variables, and its session.
class BenchGraph {
 public:
  using Feeds = std::vector<std::pair<std::string, tensorflow::Tensor>>;

  const tensorflow::Scope& scope() const { return scope_; }

  tensorflow::Output Input(const std::string& name, tensorflow::DataType dtype) {
    return tensorflow::ops::Placeholder(scope_.WithOpName(name), dtype);
  }

  // A variable and its initial value. The value is shared until the first update, which
  // copies it.
  tensorflow::Output Variable(const std::string& name, const tensorflow::Tensor& value) {
    const tensorflow::Output handle =
        tensorflow::ops::VarHandleOp(scope_.WithOpName(name), value.dtype(), value.shape(),
                                     tensorflow::ops::VarHandleOp::SharedName(name));
    const tensorflow::Output initial = Input(name + "_initial", value.dtype());
    initial_.push_back({initial.node()->name(), value});
    initialise_.push_back(
        tensorflow::ops::AssignVariableOp(scope_, handle, initial).operation.node()->name());
    return handle;
  }

  void Start() {
    tensorflow::GraphDef graph;
    TF_CHECK_OK(scope_.ToGraphDef(&graph));
    session_ = OpenSession(Threads()).value();
    TF_CHECK_OK(session_->Create(graph));
    if (!initialise_.empty()) Run(initial_, initialise_);
    initial_.clear();
  }

  void Run(const Feeds& feeds, const std::vector<std::string>& targets) {
    TF_CHECK_OK(session_->Run(feeds, {}, targets, nullptr));
  }

  std::vector<tensorflow::Tensor> Fetch(const Feeds& feeds,
                                        const std::vector<std::string>& outputs) {
    std::vector<tensorflow::Tensor> results;
    TF_CHECK_OK(session_->Run(feeds, outputs, {}, &results));
    return results;
  }

 private:
  tensorflow::Scope scope_ = tensorflow::Scope::NewRootScope();
  Feeds initial_;
  std::vector<std::string> initialise_;
  std::unique_ptr<tensorflow::Session> session_;
};

// Threads outside any session.
class BenchThreads {
 public:
  BenchThreads() : pool_(tensorflow::Env::Default(), "bench", Threads()) {
    parallel_.threads = Threads();
    parallel_.run = [this](int64_t tasks, const std::function<void(int64_t)>& task) {
      pool_.ParallelFor(tasks, tensorflow::thread::ThreadPool::SchedulingParams::Fixed(1),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) task(i);
                        });
    };
  }
  const Parallel& parallel() const { return parallel_; }

 private:
  tensorflow::thread::ThreadPool pool_;
  Parallel parallel_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_BENCH_BENCH_GRAPH_H_

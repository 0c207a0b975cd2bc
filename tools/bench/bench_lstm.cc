// Times the rank-1 LSTM in C++ graphs with Google Benchmark. `tools/latephase bench lstm` runs this
// and the peers alternately.
//
//   bench_lstm --benchmark_format=json ...   the benchmarks below
//   bench_lstm --pairs=200                   cost of K = 10 members against K = 1, in alternating
//   pairs; prints JSON
//
// One step is the LSTM part of an enwik8 training step, forward and backward: table = E·W + b,
// token LSTM, and the gradients of E, W, b, R, u and v for a given gradient of h. 500 units,
// embedding 205, batch 128, 100 characters, float.
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/matmul.h"
#include "ops/rank1_lstm.h"
#include "optimizers/session.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

namespace late_phase {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kVocab = 205, kEmbedding = 205;

int Threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

Tensor Uniform(const TensorShape& shape, float low, float high) {
  static std::mt19937 engine(1);
  std::uniform_real_distribution<float> distribution(low, high);
  Tensor tensor(tensorflow::DT_FLOAT, shape);
  auto flat = tensor.flat<float>();
  for (int64_t i = 0; i < flat.size(); ++i) flat(i) = distribution(engine);
  return tensor;
}

struct Size {
  int64_t T = 100, N = 128, H = 500, K = 1;
};

// A session that holds the graph of one step, and the tensors it is fed with.
class Step {
 public:
  enum class Kind { kTraining, kForward, kInference };

  Step(const Size& size, Kind kind) {
    const auto [T, N, H, K] = size;
    auto scope = tensorflow::Scope::NewRootScope();
    auto input = [&](const std::string& name, const Tensor& value) -> tensorflow::Output {
      feeds_.push_back({name, value});
      return tensorflow::ops::Placeholder(scope.WithOpName(name), value.dtype(),
                                          tensorflow::ops::Placeholder::Shape(value.shape()));
    };
    Tensor tokens(tensorflow::DT_INT32, TensorShape({T, N})), member(tensorflow::DT_INT32, {});
    std::mt19937 engine(2);
    for (int64_t i = 0; i < T * N; ++i) {
      tokens.flat<int32_t>()(i) = static_cast<int32_t>(engine() % kVocab);
    }
    member.scalar<int32_t>()() = static_cast<int32_t>(K - 1);
    const auto E = input("E", Uniform({kVocab, kEmbedding}, -0.1f, 0.1f));
    const auto W = input("W", Uniform({kEmbedding, 4 * H}, -0.1f, 0.1f));
    const auto b = input("b", Uniform({4 * H}, -0.1f, 0.1f));
    const auto R = input("R", Uniform({H, 4 * H}, -0.05f, 0.05f));
    const auto u = input("u", Uniform({K, H}, 0.9f, 1.1f));
    const auto v = input("v", Uniform({K, 4 * H}, 0.9f, 1.1f));
    const auto h0 = input("h0", Uniform({N, H}, -0.1f, 0.1f));
    const auto c0 = input("c0", Uniform({N, H}, -0.1f, 0.1f));
    const tensorflow::Output table =
        tensorflow::ops::Add(scope, tensorflow::ops::MatMul(scope, E, W), b);
    const ops::Rank1LstmTokens lstm(scope, input("tokens", tokens), table, h0, c0, R, u, v,
                                    input("member", member), {kind != Kind::kInference});
    if (kind == Kind::kTraining) {
      const auto dh = input("dh", Uniform({T, N, H}, -0.01f, 0.01f));
      std::vector<tensorflow::Output> grads;
      scope.UpdateStatus(
          tensorflow::AddSymbolicGradients(scope, {lstm.h}, {E, W, b, R, u, v}, {dh}, &grads));
      for (const auto& grad : grads) targets_.push_back(grad.node()->name());
    } else {
      targets_.push_back(lstm.operation.node()->name());
    }
    tensorflow::GraphDef graph;
    TF_CHECK_OK(scope.ToGraphDef(&graph));
    session_ = OpenSession(Threads()).value();
    TF_CHECK_OK(session_->Create(graph));
    Run();
  }

  void Run() { TF_CHECK_OK(session_->Run(feeds_, {}, targets_, nullptr)); }

  double Seconds() {
    const auto start = std::chrono::steady_clock::now();
    Run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Bytes that the kernels allocate in one run, for outputs and scratch.
  int64_t AllocatedBytes() {
    tensorflow::RunOptions options;
    options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    tensorflow::RunMetadata metadata;
    TF_CHECK_OK(session_->Run(options, feeds_, {}, targets_, nullptr, &metadata));
    int64_t bytes = 0;
    for (const auto& device : metadata.step_stats().dev_stats()) {
      for (const auto& node : device.node_stats()) {
        for (const auto& memory : node.memory()) bytes += memory.total_bytes();
      }
    }
    return bytes;
  }

 private:
  std::vector<std::pair<std::string, Tensor>> feeds_;
  std::vector<std::string> targets_;
  std::unique_ptr<tensorflow::Session> session_;
};

void BM_Step(benchmark::State& state, Size size, Step::Kind kind) {
  Step step(size, kind);
  while (state.KeepRunning()) step.Run();
  state.SetItemsProcessed(state.iterations() * size.T * size.N);
}

// The floor: the step's matrix products alone, weights already packed, through the same library on
// as many threads. The recurrent ones are [rows,H]·[H,4H] and [rows,4H]·[4H,H] per time step and
// slice of the batch, and H [T·N,H]ᵀ·[T·N,4H] at the end; the table's three small ones are counted
// too.
void BM_Products(benchmark::State& state) {
  const Size size;
  const int64_t T = size.T, N = size.N, H = size.H, Z = 4 * H, slices = Threads(), chunk = 128;
  tensorflow::thread::ThreadPool pool(tensorflow::Env::Default(), "products", Threads());
  auto parallel = [&](int64_t tasks, const std::function<void(int64_t)>& task) {
    pool.ParallelFor(tasks, tensorflow::thread::ThreadPool::SchedulingParams::Fixed(1),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i) task(i);
                     });
  };
  const Tensor h = Uniform({T, N, H}, -1, 1), dz = Uniform({T, N, Z}, -0.1f, 0.1f),
               packed = Uniform({H, Z}, -0.05f, 0.05f),
               embedding = Uniform({kVocab, kEmbedding}, -1, 1),
               packed_w = Uniform({kEmbedding, Z}, -0.05f, 0.05f);
  Tensor z(tensorflow::DT_FLOAT, TensorShape({N, Z})),
      dh(tensorflow::DT_FLOAT, TensorShape({N, H}));
  Tensor dR(tensorflow::DT_FLOAT, TensorShape({H, Z}));
  Tensor table(tensorflow::DT_FLOAT, TensorShape({kVocab, Z}));
  Tensor packed_dz = Uniform({chunk, Z}, -0.1f, 0.1f);
  auto data = [](const Tensor& tensor) { return const_cast<float*>(tensor.flat<float>().data()); };
  while (state.KeepRunning()) {
    parallel(slices, [&](int64_t i) {
      const int64_t begin = N * i / slices, rows = N * (i + 1) / slices - begin;
      const Matmul<float> forward({rows, H, Z, H, Z, false, false});
      const Matmul<float> backward({rows, Z, H, Z, H, false, false});
      for (int64_t t = 0; t < T; ++t) {
        forward.Run(data(h) + (t * N + begin) * H, data(packed), data(z) + begin * Z);
      }
      for (int64_t t = 0; t < T; ++t) {
        backward.Run(data(dz) + (t * N + begin) * Z, data(packed), data(dh) + begin * H);
      }
    });
    // Sixteen panels per task, so that a chunk of h and their part of dR stay in a second-level
    // cache.
    const int64_t panels = PanelCount(Z), block = 16;
    parallel((panels + block - 1) / block, [&](int64_t task) {
      const int64_t begin = task * block, end = std::min(begin + block, panels);
      const Matmul<float> first({H, chunk, Z, H, Z, true, false});
      const Matmul<float> later({H, chunk, Z, H, Z, true, true});
      for (int64_t row = 0; row < T * N; row += chunk) {
        for (int64_t panel = begin; panel < end; ++panel) {
          (row == 0 ? first : later)
              .RunPanel(panel, data(h) + row * H, data(packed_dz) + PanelOffset(chunk, panel),
                        data(dR));
        }
      }
      // E·W, and the gradients of E and W, which have as many operations each.
      const Matmul<float> small({kVocab, kEmbedding, Z, kEmbedding, Z, false, false});
      for (int64_t panel = begin; panel < end; ++panel) {
        for (int i = 0; i < 3; ++i) {
          small.RunPanel(panel, data(embedding), data(packed_w) + PanelOffset(kEmbedding, panel),
                         data(table));
        }
      }
    });
  }
  const double flops = 2.0 * Z * (3.0 * T * N * H + 3.0 * kVocab * kEmbedding);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void Register(const std::string& name, Size size, Step::Kind kind) {
  benchmark::RegisterBenchmark(name.c_str(), BM_Step, size, kind)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
}

// Rounds of three steps: one member, one member again (the control), ten members. Prints the times
// for tools/bench/bench_lstm.py.
void RunPairs(int pairs) {
  Step one({}, Step::Kind::kTraining), control({}, Step::Kind::kTraining);
  Step ten({100, 128, 500, 10}, Step::Kind::kTraining);
  std::printf("{\"bytes_one\": %lld, \"bytes_ten\": %lld, \"rounds\": [",
              static_cast<long long>(one.AllocatedBytes()),
              static_cast<long long>(ten.AllocatedBytes()));
  for (int i = 0; i < pairs; ++i) {
    // The order changes from round to round, so that none always runs first.
    double seconds[3];
    Step* steps[3] = {&one, &control, &ten};
    for (int k = 0; k < 3; ++k) {
      const int which = (i + k) % 3;
      seconds[which] = steps[which]->Seconds();
    }
    std::printf("%s[%.6f, %.6f, %.6f]", i == 0 ? "" : ", ", seconds[0], seconds[1], seconds[2]);
    std::fflush(stdout);
  }
  std::printf("]}\n");
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]).rfind("--pairs=", 0) == 0) {
    RunPairs(std::stoi(argv[1] + 8));
    return 0;
  }
  Register("Step", {}, Step::Kind::kTraining);
  Register("Forward", {}, Step::Kind::kForward);
  Register("Inference", {}, Step::Kind::kInference);
  for (int64_t T : {50, 200})
    Register("Step/time:" + std::to_string(T), {T, 128, 500, 1}, Step::Kind::kTraining);
  for (int64_t N : {64, 256})
    Register("Step/batch:" + std::to_string(N), {100, N, 500, 1}, Step::Kind::kTraining);
  benchmark::RegisterBenchmark("Products", BM_Products)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace late_phase

int main(int argc, char** argv) { return late_phase::Main(argc, argv); }

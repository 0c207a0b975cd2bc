// Times batch normalisation, forward and backward, in C++ graphs with Google Benchmark: ours, the
// same with TensorFlow's ops, and the memory floor. `tools/latephase bench batchnorm` runs this;
// the benchmarks are called SHAPE/WHO, e.g. 128x32x32x160 Relu/ours.
//
//   bench_batchnorm --benchmark_format=json ...
//   bench_batchnorm --wide_resnet_rounds=N      training steps instead
//   (tools/bench/bench_wide_resnet.h)
//
// Before anything is timed, ours and TensorFlow's must have given the same results and gradients.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "benchmark/benchmark.h"
#include "ops/batch_norm.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/data_flow_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tools/bench/bench_graph.h"
#include "tools/bench/bench_wide_resnet.h"
#include "tools/bench/memory_pass.h"

namespace late_phase {
namespace {

namespace tf = tensorflow;
using tf::Output;
using tf::Tensor;
using tf::TensorShape;

constexpr int32_t kMembers = 10, kMember = 3;
constexpr double kTolerance = 1e-4;  // of the largest value; TensorFlow sums in float

struct Layer {
  std::vector<int64_t> shape;  // of x, channels last
  bool relu;
  int runs;         // in a round
  bool with_floor;  // for arrays that no cache holds

  std::string Name() const { return absl::StrJoin(shape, "x") + (relu ? " Relu" : " Identity"); }
  int64_t channels() const { return shape.back(); }
};

// The first groups of WRN 28-10 and WRN 16-2, then the layers of the small convolutional network,
// whose activations are separate.
const std::vector<Layer>& Layers() {
  static const auto* layers = new std::vector<Layer>{
      {{128, 32, 32, 160}, true, 1, true},  {{128, 32, 32, 32}, true, 1, true},
      {{128, 28, 28, 6}, false, 10, false}, {{128, 10, 10, 16}, false, 10, false},
      {{128, 120}, false, 10, false},       {{128, 84}, false, 10, false}};
  return *layers;
}

struct Arrays {
  explicit Arrays(const Layer& layer)
      : x(Uniform(TensorShape(layer.shape))),
        dy(Uniform(TensorShape(layer.shape))),
        scale(Uniform(TensorShape({layer.channels()}))),
        offset(Uniform(TensorShape({layer.channels()}))) {
    // No pre-activation is so close to 0 that contestants could see it on different sides: x stays
    // away from its mean, the scale is near 1 and the offset near 0.
    auto flat = x.flat<float>();
    for (int64_t i = 0; i < flat.size(); ++i) flat(i) += std::copysign(0.1f, flat(i));
    scale.flat<float>() = scale.flat<float>() + 1.0f;
    offset.flat<float>() = offset.flat<float>() * 0.01f;
  }

  Tensor x, dy, scale, offset;
};

// From [channels], a stack of kMembers rows, zero except for row kMember.
Tensor Stacked(const Tensor& row) {
  const int64_t C = row.NumElements();
  Tensor stack(tf::DT_FLOAT, TensorShape({kMembers, C}));
  stack.flat<float>().setZero();
  std::copy_n(row.flat<float>().data(), C, stack.flat<float>().data() + kMember * C);
  return stack;
}

// The forward and the backward pass in one graph. x is fed. dy arrives as in training, where the
// layer above has computed it: in an array that nothing else will read, so that the gradient of x
// may overwrite it. To this end it is staged first, and taken by the run.
class Pass {
 public:
  Pass(const Layer& layer, const Arrays& arrays, bool ours) {
    const tf::Scope& s = graph_.scope();
    const Output x = graph_.Input("x", tf::DT_FLOAT);
    feeds_ = {{"x", arrays.x}};
    const Output fed_dy = graph_.Input("dy", tf::DT_FLOAT);
    stage_ =
        tf::ops::Stage(s, {fed_dy}, tf::ops::Stage::SharedName("staged")).operation.node()->name();
    const Output dy =
        tf::ops::Unstage(s, {tf::DT_FLOAT}, tf::ops::Unstage::SharedName("staged")).values[0];

    Output y, scale, offset;
    if (ours) {
      scale = tf::ops::Const(s, Stacked(arrays.scale));
      offset = tf::ops::Const(s, Stacked(arrays.offset));
      const Output statistics = tf::ops::Const(s, Stacked(arrays.scale));
      ops::BatchNormAttrs attrs;
      attrs.activation = layer.relu ? "Relu" : "Identity";
      y = ops::BatchNorm(s, x, scale, offset, statistics, statistics, kMember, attrs).y;
    } else {
      scale = tf::ops::Const(s, arrays.scale);
      offset = tf::ops::Const(s, arrays.offset);
      y = AddStock(layer, x, scale, offset);
    }
    std::vector<Output> gradients;
    TF_CHECK_OK(tf::AddSymbolicGradients(s, {y}, {x, scale, offset}, {dy}, &gradients));
    results_ = {y.name()};
    for (const Output& gradient : gradients) results_.push_back(gradient.name());
    for (const Output& gradient : gradients) targets_.push_back(gradient.node()->name());
    graph_.Start();
  }

  void Stage(const Tensor& dy) {
    // A copy, because the array would otherwise be shared with the caller.
    graph_.Run({{"dy", tf::tensor::DeepCopy(dy)}}, {stage_});
  }

  // REQUIRES: a staged dy for every run.
  void Run() { graph_.Run(feeds_, targets_); }

  // y, then the gradients of x, scale and offset.
  std::vector<Tensor> Results() { return graph_.Fetch(feeds_, results_); }

 private:
  // TensorFlow normalises only images.
  Output AddStock(const Layer& layer, const Output& x, const Output& scale, const Output& offset) {
    const tf::Scope& s = graph_.scope();
    const bool image = layer.shape.size() == 4;
    const int channels = static_cast<int>(layer.channels());
    const Output none = tf::ops::Const(s, Tensor(tf::DT_FLOAT, TensorShape({0})));
    const Output as_image = image ? x : tf::ops::Reshape(s, x, {-1, 1, 1, channels});
    Output y = tf::ops::FusedBatchNormV3(s, as_image, scale, offset, none, none,
                                         tf::ops::FusedBatchNormV3::Epsilon(1e-5f))
                   .y;
    if (!image) y = tf::ops::Reshape(s, y, {-1, channels});
    return layer.relu ? tf::ops::Relu(s, y) : y;
  }

  BenchGraph graph_;
  BenchGraph::Feeds feeds_;
  std::string stage_;
  std::vector<std::string> results_, targets_;
};

// Largest difference relative to the largest value. If `ours` is a stack, its row kMember is
// compared.
double Difference(const Tensor& ours, const Tensor& stock) {
  const int64_t size = stock.NumElements();
  const float *a = ours.flat<float>().data(), *b = stock.flat<float>().data();
  if (ours.NumElements() != size) a += kMember * size;
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < size; ++i) {
    difference = Worse(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max<double>(largest, std::abs(b[i]));
  }
  return difference / largest;
}

// What two passes forward and two backward must read and write, over arrays that already exist:
//   read x;  read x, write y;  read x and dy;  read x and dy, write dx over dy
void Floor(const Tensor& x, Tensor* y, Tensor* dy, const Parallel& parallel) {
  const int64_t D = x.NumElements();
  const float* from = x.flat<float>().data();
  float *to = y->flat<float>().data(), *gradient = dy->flat<float>().data();
  MemoryPass(D, {from}, {}, parallel);
  MemoryPass(D, {from}, {to}, parallel);
  MemoryPass(D, {from, gradient}, {}, parallel);
  MemoryPass(D, {from, gradient}, {gradient}, parallel);
}

void Register(const std::string& name, int runs, const std::function<void()>& prepare,
              const std::function<void()>& run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 for (int i = 0; i < runs; ++i) prepare();
                                 for (auto _ : state) run();
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(runs);
}

int Main(int argc, char** argv) {
  constexpr char kRounds[] = "--wide_resnet_rounds=";
  if (argc == 2 && absl::StartsWith(argv[1], kRounds)) {
    int64_t rounds = 0;
    if (!absl::SimpleAtoi(argv[1] + sizeof(kRounds) - 1, &rounds)) return 1;
    return BenchWideResNet(rounds);
  }
  BenchThreads threads;
  std::vector<std::unique_ptr<Pass>> kept;
  double difference = 0;
  for (const Layer& layer : Layers()) {
    const Arrays arrays(layer);
    std::vector<Tensor> results[2];
    for (bool ours : {true, false}) {
      kept.push_back(std::make_unique<Pass>(layer, arrays, ours));
      Pass* pass = kept.back().get();
      pass->Stage(arrays.dy);
      results[ours] = pass->Results();
      Register(
          layer.Name() + (ours ? "/ours" : "/stock"), layer.runs,
          [pass, dy = arrays.dy] { pass->Stage(dy); }, [pass] { pass->Run(); });
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      difference = Worse(difference, Difference(results[true][i], results[false][i]));
    }
    if (!layer.with_floor) continue;
    auto y = std::make_shared<Tensor>(Uniform(TensorShape(layer.shape)));
    auto dy = std::make_shared<Tensor>(tf::tensor::DeepCopy(arrays.dy));
    Register(
        layer.Name() + "/floor", layer.runs, [] {},
        [&threads, x = arrays.x, y, dy] { Floor(x, y.get(), dy.get(), threads.parallel()); });
  }
  if (!(difference <= kTolerance)) {
    std::fprintf(stderr, "late_phase and TensorFlow disagree by %.1e; nothing was timed\n",
                 difference);
    return 1;
  }
  benchmark::AddCustomContext("difference", std::to_string(difference * 1e9) + "e-9");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace late_phase

int main(int argc, char** argv) { return late_phase::Main(argc, argv); }

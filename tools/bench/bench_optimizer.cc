// Times the optimizer's updates in C++ graphs with Google Benchmark: ours, the same built from
// stock TensorFlow ops, and the memory floor. `tools/latephase bench optimizer` runs this; the
// benchmarks are called GROUP/WHO.
//
//   bench_optimizer --benchmark_format=json ...
//
// 36.5M float weights (WRN 28-10), cycles of K = 10 minibatches. A floor
// (tools/bench/memory_pass.h) reads and writes what the update must, and computes next to nothing,
// on as many threads. Caches are cold. Before anything is timed, ours and the stock ops must have
// reached the same weights.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/member_rows.h"
#include "ops/update_rules.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/training_ops.h"
#include "tools/bench/bench_graph.h"
#include "tools/bench/memory_pass.h"

namespace late_phase {
namespace {

namespace tf = tensorflow;
using tf::Output;
using tf::Tensor;
using tf::TensorShape;

constexpr int32_t kMembers = 10;
constexpr float kRate = 1e-3f, kMomentum = 0.9f, kWeightDecay = 5e-4f, kScale = 1.0f / kMembers;
constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;
constexpr double kTolerance = 1e-6;  // of the largest weight

// The sizes of WRN 28-10's tensors for ten classes: convolutions, shortcuts, BatchNorm, output.
std::vector<int64_t> WideResNetSizes() {
  std::vector<int64_t> sizes = {3 * 3 * 3 * 16};
  int64_t input = 16;
  auto batch_norm = [&](int64_t channels) { sizes.insert(sizes.end(), {channels, channels}); };
  for (int64_t width : {160, 320, 640}) {
    for (int block = 0; block < 4; ++block) {
      batch_norm(input);
      sizes.push_back(9 * input * width);
      batch_norm(width);
      sizes.push_back(9 * width * width);
      if (input != width) sizes.push_back(input * width);
      input = width;
    }
  }
  batch_norm(input);
  sizes.insert(sizes.end(), {input * 10, 10});
  return sizes;
}

int64_t Sum(const std::vector<int64_t>& sizes) {
  int64_t total = 0;
  for (int64_t size : sizes) total += size;
  return total;
}

Tensor Zeros(const TensorShape& shape) {
  Tensor tensor(tf::DT_FLOAT, shape);
  tensor.flat<float>().setZero();
  return tensor;
}

template <typename T>
Tensor ScalarTensor(T value) {
  Tensor tensor(tf::DataTypeToEnum<T>::value, TensorShape({}));
  tensor.scalar<T>()() = value;
  return tensor;
}

enum class Rule { kSgd, kMomentum, kAdam };
enum class Maker { kOurs, kStock, kStockInPlace };

// The base weights' updates over a cycle. Gradients are fed, which copies nothing.
class BaseUpdate {
 public:
  BaseUpdate(Rule rule, Maker maker, const std::vector<Tensor>& weights,
             const std::vector<Tensor>& gradients)
      : maker_(maker) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string number = std::to_string(i);
      const Tensor zeros = Zeros(weights[i].shape());
      Weight weight;
      weight.var = graph_.Variable("var" + number, weights[i]);
      weight.sum = graph_.Variable("sum" + number, zeros);
      if (rule != Rule::kSgd) weight.slots[0] = graph_.Variable("slot" + number, zeros);
      if (rule == Rule::kAdam) weight.slots[1] = graph_.Variable("second" + number, zeros);
      weight.grad = graph_.Input("grad" + number, tf::DT_FLOAT);
      feeds_.push_back({weight.grad.node()->name(), gradients[i]});
      reads_.push_back(
          tf::ops::ReadVariableOp(graph_.scope(), weight.var, tf::DT_FLOAT).value.name());
      if (maker == Maker::kOurs) {
        AddOurs(rule, weight, number);
      } else {
        AddStock(rule, maker == Maker::kStockInPlace, weight);
      }
    }
    if (maker == Maker::kOurs) feeds_.push_back({"member", {}});
    graph_.Start();
  }

  // A minibatch that is not the last of its cycle.
  void Accumulate() { Run(accumulate_, 0); }

  // The last one: accumulate, apply, clear.
  void Apply() { Run(apply_, kMembers - 1); }

  void Cycle() {
    for (int32_t k = 0; k < kMembers - 1; ++k) Accumulate();
    Apply();
  }

  // Largest difference to another's weights, relative to the largest weight.
  double Difference(BaseUpdate* other) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < reads_.size(); ++i) {
      const Tensor a = graph_.Fetch({}, {reads_[i]})[0];
      const Tensor b = other->graph_.Fetch({}, {other->reads_[i]})[0];
      const float *x = a.flat<float>().data(), *y = b.flat<float>().data();
      for (int64_t j = 0; j < a.NumElements(); ++j) {
        difference = Worse(difference, std::abs(static_cast<double>(x[j]) - y[j]));
        size = std::max<double>(size, std::abs(y[j]));
      }
    }
    return difference / size;
  }

 private:
  struct Weight {
    Output var, sum, slots[2], grad;
  };

  void Run(const std::vector<std::string>& targets, int32_t member) {
    if (maker_ == Maker::kOurs) feeds_.back().second = ScalarTensor(member);
    graph_.Run(feeds_, targets);
  }

  void AddOurs(Rule rule, const Weight& w, const std::string& number) {
    const tf::Scope& s = graph_.scope();
    if (!member_.node()) member_ = graph_.Input("member", tf::DT_INT32);
    tf::Operation update;
    if (rule == Rule::kSgd) {
      update = ops::BaseApplySgd(s, w.var, w.sum, member_, kMembers, kScale, kRate, kWeightDecay,
                                 w.grad);
    } else if (rule == Rule::kMomentum) {
      update = ops::BaseApplyMomentum(s, w.var, w.slots[0], w.sum, member_, kMembers, kScale, kRate,
                                      kMomentum, kWeightDecay, w.grad, true);
    } else {
      const Output count = graph_.Variable("count" + number, ScalarTensor<int64_t>(0));
      update = ops::BaseApplyAdam(s, w.var, w.slots[0], w.slots[1], count, w.sum, member_, kMembers,
                                  kScale, kRate, kBeta1, kBeta2, kEpsilon, kWeightDecay, w.grad);
    }
    accumulate_.push_back(update.node()->name());
    apply_.push_back(update.node()->name());
  }

  // As usually written: sum += grad; g = scale·sum + weight_decay·var; the rule; sum = 0.
  // In place: sum −= −scale·grad; sum −= −weight_decay·var; the rule with sum; sum = 0, where −= is
  // TensorFlow's gradient descent: fewer passes and no temporary array but the zeros.
  void AddStock(Rule rule, bool in_place, const Weight& w) {
    const tf::Scope& s = graph_.scope();
    auto after = [&](const tf::Operation& operation) {
      return s.WithControlDependencies(std::vector<tf::Operation>{operation});
    };
    tf::Operation accumulate;
    Output g;
    if (in_place) {
      accumulate = tf::ops::ResourceApplyGradientDescent(s, w.sum, -kScale, w.grad);
      const Output var = tf::ops::ReadVariableOp(after(accumulate), w.var, tf::DT_FLOAT);
      const tf::Operation decay =
          tf::ops::ResourceApplyGradientDescent(s, w.sum, -kWeightDecay, var);
      g = tf::ops::ReadVariableOp(after(decay), w.sum, tf::DT_FLOAT);
    } else {
      accumulate = tf::ops::AssignAddVariableOp(s, w.sum, w.grad);
      const Output sum = tf::ops::ReadVariableOp(after(accumulate), w.sum, tf::DT_FLOAT);
      const Output var = tf::ops::ReadVariableOp(after(accumulate), w.var, tf::DT_FLOAT);
      g = tf::ops::AddV2(s, tf::ops::Multiply(s, sum, kScale),
                         tf::ops::Multiply(s, var, kWeightDecay));
    }
    tf::Operation update;
    if (rule == Rule::kSgd) {
      update = tf::ops::ResourceApplyGradientDescent(s, w.var, kRate, g);
    } else if (rule == Rule::kMomentum) {
      update = tf::ops::ResourceApplyMomentum(s, w.var, w.slots[0], kRate, g, kMomentum,
                                              tf::ops::ResourceApplyMomentum::UseNesterov(true));
    } else {
      // Only the first update is compared, so the powers need not advance.
      update = tf::ops::ResourceApplyAdam(s, w.var, w.slots[0], w.slots[1], kBeta1, kBeta2, kRate,
                                          kBeta1, kBeta2, kEpsilon, g);
    }
    const tf::Operation clear =
        tf::ops::AssignVariableOp(s, w.sum, tf::ops::ZerosLike(after(update), w.grad));
    accumulate_.push_back(accumulate.node()->name());
    apply_.push_back(clear.node()->name());
  }

  const Maker maker_;
  BenchGraph graph_;
  Output member_;
  BenchGraph::Feeds feeds_;
  std::vector<std::string> accumulate_, apply_, reads_;
};

// What works on all members, or on one of them.
class MemberOps {
 public:
  MemberOps(const Tensor& rows, const Tensor& row, const Tensor& gradient) {
    const tf::Scope& s = graph_.scope();
    const Output stack = graph_.Variable("rows", rows);
    const Output single = graph_.Variable("single", row);
    const Output average = graph_.Variable("average", row);
    const Output grad = graph_.Input("grad", tf::DT_FLOAT);
    feeds_.push_back({"grad", gradient});
    auto add = [&](const std::string& name, const tf::Operation& operation) {
      targets_.push_back({name, operation.node()->name()});
    };
    Tensor seed(tf::DT_INT64, TensorShape({2}));
    seed.flat<int64_t>()(0) = 1;
    seed.flat<int64_t>()(1) = 2;
    add("Spawn", ops::Spawn(s, stack, 0.1f, seed));
    add("SwaUpdate", ops::SwaUpdate(s, average, single, int64_t{3}));
    const Output mean = ops::Collapse(s, stack, tf::DT_FLOAT);
    targets_.push_back({"Collapse", mean.node()->name()});
    add("MemberSgd", ops::MemberApplySgd(s, stack, 3, kRate, 0.0f, grad));
    add("StockSgd", tf::ops::ResourceApplyGradientDescent(s, single, kRate, grad));
    graph_.Start();
    for (const auto& [name, target] : targets_) Run(name);
  }

  void Run(const std::string& name) {
    for (const auto& [known, target] : targets_) {
      if (known == name) graph_.Run(feeds_, {target});
    }
  }

 private:
  BenchGraph graph_;
  BenchGraph::Feeds feeds_;
  std::vector<std::pair<std::string, std::string>> targets_;
};

// Memory and threads for the floors, and for emptying the caches.
class Floor {
 public:
  explicit Floor(int64_t D) : D_(D) {
    for (int i = 0; i < kMembers; ++i) arrays_.push_back(Uniform(TensorShape({D})));
    for (Tensor& tensor : others_) tensor = Uniform(TensorShape({kOthers}));
  }

  // Fills the caches with something else, as the forward and backward pass between two updates
  // does: some last-level caches hold all weights, and whatever runs after similar work would be
  // lucky.
  void EmptyCaches() {
    float* const data[] = {others_[0].flat<float>().data(), others_[1].flat<float>().data()};
    MemoryPass(kOthers, {data[0], data[1]}, {data[0]}, threads_.parallel());
  }

  // Reads `reads` arrays and writes the first `writes` of them.
  void Update(int reads, int writes) {
    const std::vector<float*> arrays = Arrays(reads);
    MemoryPass(D_, {arrays.begin(), arrays.end()}, Arrays(writes), threads_.parallel());
  }

  // Reads all rows and writes a new array, allocated as an op allocates its output.
  void Collapse() {
    Tensor mean(tf::DT_FLOAT, TensorShape({D_}));
    const std::vector<float*> rows = Arrays(kMembers);
    MemoryPass(D_, {rows.begin(), rows.end()}, {mean.flat<float>().data()}, threads_.parallel());
  }

  // Reads row 0 twice, for its RMS and for the members, and writes all rows.
  void Spawn() {
    MemoryPass(D_, {Arrays(1)[0]}, {}, threads_.parallel());
    MemoryPass(D_, {Arrays(1)[0]}, Arrays(kMembers), threads_.parallel());
  }

 private:
  std::vector<float*> Arrays(int count) {
    std::vector<float*> arrays;
    for (int i = 0; i < count; ++i) arrays.push_back(arrays_[i].flat<float>().data());
    return arrays;
  }

  static constexpr int64_t kOthers = int64_t{1} << 26;  // 256 MiB each

  const int64_t D_;
  BenchThreads threads_;
  std::vector<Tensor> arrays_;
  Tensor others_[2];
};

void Register(Floor* floor, const std::string& name, const std::function<void()>& run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [floor, run](benchmark::State& state) {
                                 floor->EmptyCaches();
                                 for (auto _ : state) run();
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
}

// Ours and the stock ops on the same weights and gradients. Returns how far the stock ops are from
// ours after a cycle; adds to `kept` what the benchmarks use.
double RegisterRule(Floor* floor, Rule rule, const std::string& name,
                    const std::vector<Tensor>& weights, const std::vector<Tensor>& gradients,
                    std::vector<std::unique_ptr<BaseUpdate>>* kept) {
  double difference = 0;
  BaseUpdate* ours = nullptr;
  for (auto [who, maker] : {std::pair("ours", Maker::kOurs),
                            {"stock", Maker::kStock},
                            {"stock in place", Maker::kStockInPlace}}) {
    kept->push_back(std::make_unique<BaseUpdate>(rule, maker, weights, gradients));
    BaseUpdate* update = kept->back().get();
    update->Cycle();
    if (maker == Maker::kOurs) ours = update;
    difference = Worse(difference, ours->Difference(update));
    Register(floor, name + "Apply/" + who, [update] { update->Apply(); });
    if (rule != Rule::kMomentum) continue;  // the rules differ only in the apply
    Register(floor, name + "Accumulate/" + who, [update] { update->Accumulate(); });
    Register(floor, name + "Cycle/" + who, [update] { update->Cycle(); });
  }
  return difference;
}

int Main(int argc, char** argv) {
  const std::vector<int64_t> sizes = WideResNetSizes();
  const int64_t D = Sum(sizes);
  std::vector<Tensor> weights, gradients;
  for (int64_t size : sizes) {
    weights.push_back(Uniform(TensorShape({size})));
    gradients.push_back(Uniform(TensorShape({size})));
  }
  const Tensor whole = Uniform(TensorShape({D})), gradient = Uniform(TensorShape({D}));

  Floor floor(D);
  std::vector<std::unique_ptr<BaseUpdate>> updates;
  double difference = 0;
  for (auto [rule, name] :
       {std::pair(Rule::kSgd, "Sgd"), {Rule::kMomentum, "Momentum"}, {Rule::kAdam, "Adam"}}) {
    difference = Worse(difference, RegisterRule(&floor, rule, name, {whole}, {gradient}, &updates));
  }
  difference = Worse(difference,
                     RegisterRule(&floor, Rule::kMomentum, "Split", weights, gradients, &updates));
  if (!(difference <= kTolerance)) {
    std::fprintf(stderr, "late_phase and the stock ops disagree by %.1e; nothing was timed\n",
                 difference);
    return 1;
  }
  benchmark::AddCustomContext("difference", std::to_string(difference * 1e9) + "e-9");
  benchmark::AddCustomContext("weights", std::to_string(D));
  benchmark::AddCustomContext("tensors", std::to_string(sizes.size()));

  MemberOps members(Uniform(TensorShape({kMembers, D})), whole, gradient);
  for (const char* name : {"Spawn", "SwaUpdate", "Collapse", "MemberSgd"}) {
    Register(&floor, std::string(name) + "/ours", [&members, name] { members.Run(name); });
  }
  Register(&floor, "MemberSgd/stock", [&] { members.Run("StockSgd"); });

  Register(&floor, "MomentumAccumulate/floor", [&] { floor.Update(2, 1); });
  Register(&floor, "SgdApply/floor", [&] { floor.Update(3, 2); });
  Register(&floor, "MomentumApply/floor", [&] { floor.Update(4, 3); });
  Register(&floor, "AdamApply/floor", [&] { floor.Update(5, 4); });
  Register(&floor, "SwaUpdate/floor", [&] { floor.Update(2, 1); });
  Register(&floor, "MemberSgd/floor", [&] { floor.Update(2, 1); });
  Register(&floor, "Collapse/floor", [&] { floor.Collapse(); });
  Register(&floor, "Spawn/floor", [&] { floor.Spawn(); });

  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace late_phase

int main(int argc, char** argv) { return late_phase::Main(argc, argv); }

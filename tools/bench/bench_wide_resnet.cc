#include "tools/bench/bench_wide_resnet.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/images/networks/image_network.h"
#include "models/images/networks/image_weights.h"
#include "ops/softmax_cross_entropy.h"
#include "optimizers/run.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tools/bench/bench_graph.h"

namespace late_phase {
namespace {

namespace tf = tensorflow;
using tf::Output;
using tf::Tensor;
using tf::TensorShape;

constexpr int64_t kBatch = 64, kChecked = 3;
constexpr double kTolerance = 1e-3;  // of the loss, after kChecked − 1 updates

// BatchNorm as in a network of TensorFlow's ops, with running statistics.
class StockWeights : public DeclaredWeights {
 public:
  explicit StockWeights(LatePhase* late_phase)
      : DeclaredWeights(late_phase, {}, {}, tf::DT_FLOAT, 0), late_phase_(late_phase) {}

  Output BatchNorm(const std::string& name, Output x, int64_t channels,
                   Activation activation) override {
    const tf::Scope& scope = late_phase_->scope();
    const Output scale = late_phase_->AddBase(name + "/scale", Filled(tf::DT_FLOAT, {channels}, 1)),
                 offset =
                     late_phase_->AddBase(name + "/offset", Filled(tf::DT_FLOAT, {channels}, 0)),
                 mean = late_phase_->AddState(name + "/mean", Filled(tf::DT_FLOAT, {channels}, 0)),
                 variance =
                     late_phase_->AddState(name + "/variance", Filled(tf::DT_FLOAT, {channels}, 1));
    if (!scope.ok()) return Output();
    const tf::ops::FusedBatchNormV3 norm(
        scope, x, scale, offset, tf::ops::ReadVariableOp(scope, mean, tf::DT_FLOAT),
        tf::ops::ReadVariableOp(scope, variance, tf::DT_FLOAT),
        tf::ops::FusedBatchNormV3::Epsilon(1e-5f).ExponentialAvgFactor(0.1f));
    stock_updates_.push_back(tf::ops::AssignVariableOp(scope, mean, norm.batch_mean).operation);
    stock_updates_.push_back(
        tf::ops::AssignVariableOp(scope, variance, norm.batch_variance).operation);
    return activation == Activation::kRelu ? Output(tf::ops::Relu(scope, norm.y)) : norm.y;
  }
  const std::vector<tf::Operation>& stock_updates() const { return stock_updates_; }

 private:
  LatePhase* late_phase_;
  std::vector<tf::Operation> stock_updates_;
};

// A network that is trained on the same minibatch over and over.
class Model {
 public:
  Model(int64_t K, bool stock) {
    LatePhaseOptions options;
    options.members = K;
    const tf::Scope scope = tf::Scope::NewRootScope();
    LatePhase late_phase(scope, options);
    const Output pixels = tf::ops::Placeholder(scope.WithOpName("pixels"), tf::DT_FLOAT,
                                               tf::ops::Placeholder::Shape({-1, 32, 32, 3})),
                 labels = tf::ops::Placeholder(scope.WithOpName("labels"), tf::DT_INT32);
    ImageNetworkOptions network;
    network.depth = 16;
    network.width = 2;
    DeclaredWeights ours(&late_phase, {}, {}, tf::DT_FLOAT, 0);
    StockWeights theirs(&late_phase);
    const ImageNetwork built = BuildImageNetwork(
        scope, network, pixels, stock ? &theirs : static_cast<NetworkWeights*>(&ours));
    const ops::SoftmaxCrossEntropy entropy(scope, built.features, built.kernel, built.bias, labels);
    const Output loss = tf::ops::Mean(scope.WithOpName("loss"), entropy.loss, 0);
    const UpdateRule sgd = UpdateRule::Momentum(0.01).WithDecay(5e-4);
    TF_CHECK_OK(
        late_phase.Minimize(loss, sgd, sgd, stock ? theirs.stock_updates() : ours.updates()));
    run_ = Run::Create(late_phase, Threads()).value();
    TF_CHECK_OK(run_->Initialize());
  }

  // Seconds of one step.
  double Step(const Run::Feeds& feeds) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Tensor> outputs = run_->Step(feeds, {"loss:0"}).value();
    const auto end = std::chrono::steady_clock::now();
    loss_ = outputs[0].scalar<float>()();
    return std::chrono::duration<double>(end - begin).count();
  }
  double loss() const { return loss_; }  // of the last step, before its update

 private:
  std::unique_ptr<Run> run_;
  double loss_ = 0;
};

}  // namespace

int BenchWideResNet(int64_t rounds) {
  Tensor labels(tf::DT_INT32, TensorShape({kBatch}));
  for (int64_t i = 0; i < kBatch; ++i) labels.flat<int32_t>()(i) = static_cast<int32_t>(i % 10);
  const Run::Feeds feeds = {{"pixels", Uniform(TensorShape({kBatch, 32, 32, 3}))},
                            {"labels", labels}};
  Model base(1, false), again(1, false), members(10, false), stock(1, true);
  Model* const models[] = {&base, &again, &members, &stock};
  double difference = 0;
  for (int64_t step = 0; step < kChecked; ++step) {
    for (Model* model : models) model->Step(feeds);
    difference = Worse(difference, std::abs(base.loss() / stock.loss() - 1));
  }
  if (!(difference <= kTolerance)) {
    std::fprintf(stderr, "late_phase and TensorFlow disagree by %.1e; nothing was timed\n",
                 difference);
    return 1;
  }
  std::vector<std::string> lines;
  for (int64_t round = 0; round < rounds; ++round) {
    double seconds[4];
    for (size_t i = 0; i < 4; ++i) {
      const size_t which = (i + round) % 4;
      seconds[which] = models[which]->Step(feeds);
    }
    lines.push_back(absl::StrCat("[", absl::StrJoin(seconds, ", "), "]"));
  }
  std::printf("{\"difference\": %.3e, \"rounds\": [%s]}\n", difference,
              absl::StrJoin(lines, ", ").c_str());
  return 0;
}

}  // namespace late_phase

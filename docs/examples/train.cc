// Trains a C++ graph with late-phase weights: y = Σ w_i x_i with w = θ ∘ φ, five members from step
// 200 on, SWA from step 300.
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace {

using tensorflow::Output;
using tensorflow::Tensor;
namespace tf_ops = tensorflow::ops;

Tensor Filled(std::initializer_list<int64_t> shape, float value) {
  Tensor tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape(shape));
  tensor.flat<float>().setConstant(value);
  return tensor;
}

absl::Status Train() {
  const int64_t inputs = 4, batch = 16;
  tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  const Output x =
      tf_ops::Placeholder(scope.WithOpName("x"), tensorflow::DT_FLOAT);  // [batch, inputs]
  const Output y = tf_ops::Placeholder(scope.WithOpName("y"), tensorflow::DT_FLOAT);  // [batch, 1]

  late_phase::LatePhaseOptions options;
  options.members = 5;
  options.start = 200;
  options.sigma = 0.1;
  options.base_scale = 1.0 / 5;
  options.swa_start = 300;
  late_phase::LatePhase late_phase(scope, options);
  const Output theta = late_phase.AddBase("theta", Filled({inputs, 1}, 1.0f));
  const Output phi =
      late_phase.AddMembers("phi", Filled({inputs, 1}, 1.0f), late_phase::MemberRead::kRow);
  auto loss_of = [&](Output base, Output member) -> Output {
    const auto prediction = tf_ops::MatMul(scope, x, tf_ops::Mul(scope, base, member));
    return tf_ops::Mean(scope, tf_ops::Square(scope, tf_ops::Sub(scope, prediction, y)), {0, 1});
  };
  const Output loss = loss_of(theta, phi);
  TF_RETURN_IF_ERROR(
      late_phase.Minimize(loss,
                          late_phase::UpdateRule::Momentum(
                              late_phase::Schedule::PiecewiseLinear({{300, 0.02}, {400, 0.002}})),
                          late_phase::UpdateRule::Sgd(0.05)));
  auto evaluated = [&](late_phase::WeightSet set) {
    return loss_of(late_phase.Read("theta", set), late_phase.Read("phi", set));
  };
  const Output collapsed = evaluated(late_phase::WeightSet::kCollapsed),
               swa = evaluated(late_phase::WeightSet::kSwa);
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<late_phase::Run> run,
                      late_phase::Run::Create(late_phase, /*threads=*/1));
  TF_RETURN_IF_ERROR(run->Initialize());  // or run->Restore(folder)

  // Noisy minibatches of y = x · (1, 2, 3, 4).
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  auto minibatch = [&](float noise) {
    Tensor inputs_x = Filled({batch, inputs}, 0), targets = Filled({batch, 1}, 0);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < inputs; ++i) {
        inputs_x.matrix<float>()(n, i) = normal(engine);
        targets.flat<float>()(n) += (i + 1) * inputs_x.matrix<float>()(n, i);
      }
      targets.flat<float>()(n) += noise * normal(engine);
    }
    return late_phase::Run::Feeds{{"x", inputs_x}, {"y", targets}};
  };
  while (run->step() < 400) {
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs,
                        run->Step(minibatch(/*noise=*/1), {loss.name()}));
    if (run->step() % 100 == 0) {
      std::cout << "step " << run->step() << ", loss " << outputs[0].scalar<float>()() << "\n";
    }
  }
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> losses,
                      run->Fetch(minibatch(/*noise=*/0), {collapsed.name(), swa.name()}));
  std::cout << "noise-free loss: collapsed " << losses[0].scalar<float>()() << ", SWA "
            << losses[1].scalar<float>()() << "\n";
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Train();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

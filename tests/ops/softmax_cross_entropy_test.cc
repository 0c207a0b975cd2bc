// The softmax cross-entropy ops in C++ graphs: values and symbolic gradients against plain
// double-precision loops, and every bad input.
#include "ops/softmax_cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/add_node.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tests/support/graph_runner.h"
#include "tests/support/softmax_cross_entropy_cases.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using tensorflow::Output;
using tensorflow::Tensor;
using test_util::IsOk;
using test_util::kTolerance;
using test_util::MakeSoftmaxProblem;
using test_util::MakeTensor;
using test_util::RelativeError;
using test_util::SoftmaxCase;
using test_util::SoftmaxProblem;
using test_util::SoftmaxReference;
using test_util::StatusIs;
using test_util::Values;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::map<std::string, Tensor>;

template <typename T>
Tensors MakeTensors(const SoftmaxProblem& p) {
  const auto [n, units, vocab] = p.shape;
  return {{"features", MakeTensor<T>({n, units}, p.features)},
          {"kernel", MakeTensor<T>({units, vocab}, p.kernel)},
          {"bias", MakeTensor<T>({vocab}, p.bias)},
          {"labels", MakeTensor<int32_t>({n}, p.labels)},
          {"dloss", MakeTensor<T>({n}, p.dloss)}};
}

// The op and all its gradients. Placeholders of unknown shape: only the kernels' own checks see the
// shapes. With `known`, the shape functions do.
struct SoftmaxGraph {
  explicit SoftmaxGraph(const Tensors& tensors, bool known = false)
      : scope(tensorflow::Scope::NewRootScope()) {
    for (const auto& [name, tensor] : tensors) {
      const auto shape = known ? tensorflow::PartialTensorShape(tensor.shape().dim_sizes())
                               : tensorflow::PartialTensorShape();
      inputs[name] = tensorflow::ops::Placeholder(scope.WithOpName(name), tensor.dtype(),
                                                  tensorflow::ops::Placeholder::Shape(shape));
      feeds.push_back({name, tensor});
    }
    ops::SoftmaxCrossEntropy head(scope, inputs["features"], inputs["kernel"], inputs["bias"],
                                  inputs["labels"]);
    outputs = {head.loss, head.dlogits};
  }

  absl::Status AddGradients() {
    std::vector<Output> grads;
    absl::Status status = tensorflow::AddSymbolicGradients(
        scope, {outputs[0]}, {inputs["features"], inputs["kernel"], inputs["bias"]},
        {inputs["dloss"]}, &grads);
    outputs.insert(outputs.end(), grads.begin(), grads.end());
    return status;
  }

  // loss, dlogits and, if added, dfeatures, dkernel, dbias.
  absl::Status Run(std::vector<Tensor>* results) const {
    return test_util::RunGraph(scope, feeds, outputs, results);
  }

  tensorflow::Scope scope;
  std::map<std::string, Output> inputs;
  std::vector<Output> outputs;
  test_util::Feeds feeds;
};

template <typename T>
void ExpectEqualsReference(const SoftmaxCase& shape, double tolerance) {
  const SoftmaxProblem p = MakeSoftmaxProblem(shape);
  SoftmaxGraph graph(MakeTensors<T>(p));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  const auto expected = SoftmaxReference(p);
  EXPECT_LE(RelativeError(Values<T>(results[0]), expected.loss), tolerance);
  EXPECT_LE(RelativeError(Values<T>(results[1]), expected.dlogits), tolerance);
  EXPECT_LE(RelativeError(Values<T>(results[2]), expected.dfeatures), tolerance);
  EXPECT_LE(RelativeError(Values<T>(results[3]), expected.dkernel), tolerance);
  EXPECT_LE(RelativeError(Values<T>(results[4]), expected.dbias), tolerance);
  EXPECT_EQ(results[2].shape(), tensorflow::TensorShape({shape.n, shape.units}));
  EXPECT_EQ(results[3].shape(), tensorflow::TensorShape({shape.units, shape.vocab}));
}

class SoftmaxCrossEntropyGraph : public ::testing::TestWithParam<SoftmaxCase> {};

TEST_P(SoftmaxCrossEntropyGraph, DoubleEqualsReference) {
  ExpectEqualsReference<double>(GetParam(), kTolerance<double>);
}
TEST_P(SoftmaxCrossEntropyGraph, FloatEqualsReference) {
  ExpectEqualsReference<float>(GetParam(), kTolerance<float>);
}
INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxCrossEntropyGraph,
                         ::testing::ValuesIn(test_util::SoftmaxCases()),
                         [](const auto& info) { return info.param.Name(); });

// Half has 11 significant bits, bfloat16 8: inputs, outputs and dlogits are rounded to them, the
// arithmetic is float. A result carries the rounding of what it was made of.
TEST(SoftmaxCrossEntropyGraphTest, HalfTypesAreRoundedFloats) {
  ExpectEqualsReference<Eigen::half>({70, 9, 33}, 8 * std::pow(2.0, -11));
  ExpectEqualsReference<Eigen::bfloat16>({70, 9, 33}, 8 * std::pow(2.0, -8));
}

TEST(SoftmaxCrossEntropyGraphTest, EmptySizes) {
  ExpectEqualsReference<float>({0, 5, 7}, 0.0);
  ExpectEqualsReference<float>({9, 0, 7}, kTolerance<float>);
}

// The oracle's own gradient, and with it the op's, against differences of the op's values:
// independent of every derivation.
TEST(SoftmaxCrossEntropyGraphTest, GradientsEqualNumericalDifferences) {
  const SoftmaxProblem p = MakeSoftmaxProblem({5, 4, 7});
  SoftmaxGraph graph(MakeTensors<double>(p));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  auto total = [](const SoftmaxProblem& at) {
    std::vector<Tensor> out;
    EXPECT_THAT(SoftmaxGraph(MakeTensors<double>(at)).Run(&out), IsOk());
    const auto loss = Values<double>(out[0]);
    double sum = 0;
    for (size_t r = 0; r < loss.size(); ++r) sum += loss[r] * at.dloss[r];
    return sum;
  };
  const std::vector<std::vector<double> SoftmaxProblem::*> members = {
      &SoftmaxProblem::features, &SoftmaxProblem::kernel, &SoftmaxProblem::bias};
  for (size_t m = 0; m < members.size(); ++m) {
    const auto analytic = Values<double>(results[2 + m]);
    for (size_t i = 0; i < analytic.size(); i += 3) {
      auto shifted = [&](double by) {
        SoftmaxProblem moved = p;
        (moved.*members[m])[i] += by;
        return total(moved);
      };
      const double step = 1e-5, numeric = (shifted(step) - shifted(-step)) / (2 * step);
      EXPECT_NEAR(analytic[i], numeric, 1e-8) << "input " << m << "[" << i << "]";
    }
  }
}

TEST(SoftmaxCrossEntropyGraphTest, SecondOrderIsRefused) {
  SoftmaxGraph graph(MakeTensors<float>(MakeSoftmaxProblem({5, 4, 7})));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Output> second;
  EXPECT_THAT(
      tensorflow::AddSymbolicGradients(graph.scope, {graph.outputs[2]}, {graph.inputs["kernel"]},
                                       &second),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr(
                   "LatePhase>SoftmaxCrossEntropyGrad: second-order gradients are not available")));
}

auto Complains(const std::string& message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
}

absl::Status RunWith(const Tensors& tensors) {
  std::vector<Tensor> results;
  return SoftmaxGraph(tensors).Run(&results);
}

TEST(SoftmaxCrossEntropyErrors, LabelOutsideTheVocabulary) {
  for (int32_t label : {-1, 7, 2000000000}) {
    SoftmaxProblem p = MakeSoftmaxProblem({5, 4, 7});
    p.labels[3] = label;
    EXPECT_THAT(
        RunWith(MakeTensors<float>(p)),
        Complains("LatePhase>SoftmaxCrossEntropy: `labels` must be in [0, 7), the columns of "
                  "`kernel`. Received: labels[3]=" +
                  std::to_string(label)));
  }
}

struct BadShape {
  const char* name;
  std::vector<int64_t> dims;
  const char* message;
};

// n = 5, units = 4, vocab = 7.
TEST(SoftmaxCrossEntropyErrors, EveryWrongShapeIsNamed) {
  const std::vector<BadShape> bad = {
      {"features", {5}, "`features` must be [n, units]. Received: shape=[5]"},
      {"features", {5, 4, 1}, "`features` must be [n, units]. Received: shape=[5,4,1]"},
      {"features",
       {5, 3},
       "`kernel` must be [units, vocab>=1] with units=3. Received: shape=[4,7]"},
      {"features", {6, 4}, "`labels` must be [n] with n=6. Received: shape=[5]"},
      {"kernel", {4}, "`kernel` must be [units, vocab>=1] with units=4. Received: shape=[4]"},
      {"kernel", {4, 8}, "`bias` must be [vocab] with vocab=8. Received: shape=[7]"},
      {"kernel", {4, 0}, "`kernel` must be [units, vocab>=1] with units=4. Received: shape=[4,0]"},
      {"bias", {}, "`bias` must be [vocab] with vocab=7. Received: shape=[]"},
      {"bias", {7, 1}, "`bias` must be [vocab] with vocab=7. Received: shape=[7,1]"},
      {"labels", {5, 1}, "`labels` must be [n] with n=5. Received: shape=[5,1]"},
      {"labels", {4}, "`labels` must be [n] with n=5. Received: shape=[4]"},
  };
  for (const BadShape& wrong : bad) {
    Tensors tensors = MakeTensors<float>(MakeSoftmaxProblem({5, 4, 7}));
    Tensor& tensor = tensors[wrong.name];
    tensor = Tensor(tensor.dtype(), tensorflow::TensorShape(wrong.dims));
    std::memset(tensor.data(), 0, tensor.TotalBytes());
    const std::string message = std::string("LatePhase>SoftmaxCrossEntropy: ") + wrong.message;
    EXPECT_THAT(RunWith(tensors), Complains(message));
    EXPECT_THAT(SoftmaxGraph(tensors, /*known=*/true).scope.status(), Complains(message));
  }
}

TEST(SoftmaxCrossEntropyErrors, NoClassesAtAll) {
  Tensors tensors = MakeTensors<float>(MakeSoftmaxProblem({5, 4, 7}));
  tensors["kernel"] = Tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape({4, 0}));
  tensors["bias"] = Tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape({0}));
  EXPECT_THAT(RunWith(tensors), Complains("`kernel` must be [units, vocab>=1]"));
}

// The Grad op, called by hand with inputs of these shapes, all zeros.
absl::Status RunGradOp(const std::vector<std::vector<int64_t>>& shapes) {
  tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  test_util::Feeds feeds;
  std::vector<tensorflow::Input> inputs;
  for (const auto& dims : shapes) {
    const std::string name = "input" + std::to_string(inputs.size());
    Tensor tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape(dims));
    tensor.flat<float>().setZero();
    feeds.push_back({name, tensor});
    inputs.push_back(tensorflow::ops::Placeholder(scope.WithOpName(name), tensorflow::DT_FLOAT));
  }
  const auto grad = AddNode(scope, "LatePhase>SoftmaxCrossEntropyGrad", "grad", inputs);
  if (!scope.ok()) return scope.status();
  std::vector<Tensor> results;
  return test_util::RunGraph(scope, feeds, {grad.output(0)}, &results);
}

TEST(SoftmaxCrossEntropyErrors, GradientChecksWhatItIsGiven) {
  const std::vector<std::string> names = {"features", "kernel", "dlogits", "dloss"};
  const std::vector<std::vector<int64_t>> good = {{5, 4}, {4, 7}, {5, 7}, {5}};
  EXPECT_THAT(RunGradOp(good), IsOk());
  const std::vector<BadShape> bad = {
      {"features", {4}, "`features` must be [n, units]. Received: shape=[4]"},
      {"kernel", {3, 7}, "`kernel` must be [units, vocab>=1] with units=4. Received: shape=[3,7]"},
      {"kernel", {4, 0}, "`kernel` must be [units, vocab>=1] with units=4. Received: shape=[4,0]"},
      {"dlogits", {5, 6}, "`dlogits` must be [n, vocab] with n=5, vocab=7. Received: shape=[5,6]"},
      {"dlogits", {0, 0}, "`dlogits` must be [n, vocab] with n=5, vocab=7. Received: shape=[0,0]"},
      {"dloss", {}, "`dloss` must be [n] with n=5. Received: shape=[]"},
      {"dloss", {6}, "`dloss` must be [n] with n=5. Received: shape=[6]"},
  };
  for (const BadShape& wrong : bad) {
    auto shapes = good;
    shapes[std::find(names.begin(), names.end(), wrong.name) - names.begin()] = wrong.dims;
    EXPECT_THAT(RunGradOp(shapes),
                Complains(std::string("LatePhase>SoftmaxCrossEntropyGrad: ") + wrong.message));
  }
}

// No rows and no units: all inputs are empty while the gradient of the bias is larger than any
// memory, or than 64 bits.
TEST(SoftmaxCrossEntropyErrors, HugeOutputsOfEmptyInputsDoNotCrash) {
  for (int64_t vocab : {int64_t{1} << 58, int64_t{1} << 61}) {
    EXPECT_THAT(RunGradOp({{0, 0}, {0, vocab}, {0, vocab}, {0}}), Not(IsOk()));
  }
}

}  // namespace
}  // namespace late_phase

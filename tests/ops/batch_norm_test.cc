// The batch normalisation ops in C++ graphs: values and symbolic gradients against plain
// double-precision loops, and every bad input.
#include "ops/batch_norm.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/add_node.h"
#include "tensorflow/cc/framework/gradients.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tests/support/batch_norm_cases.h"
#include "tests/support/graph_runner.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using tensorflow::Output;
using tensorflow::Tensor;
using test_util::BatchNormCase;
using test_util::BatchNormProblem;
using test_util::BatchNormReference;
using test_util::Doubles;
using test_util::IsOk;
using test_util::kTolerance;
using test_util::MakeBatchNormProblem;
using test_util::MakeTensor;
using test_util::RelativeError;
using test_util::StatusIs;
using test_util::Values;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t kMembers = 3;
constexpr int32_t kMember = 1;

// What scale, offset and statistics are of when x is of type T.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// [K,channels]: row kMember is `row`, and all others NaN, so that any use of them shows.
template <typename U>
Tensor Stack(const Doubles& row) {
  const int64_t channels = row.size();
  Doubles values(kMembers * channels, std::numeric_limits<double>::quiet_NaN());
  std::copy(row.begin(), row.end(), values.begin() + kMember * channels);
  return MakeTensor<U>({kMembers, channels}, values);
}

// `rows` is the shape of x without the channels.
template <typename T>
Tensors MakeTensors(const BatchNormProblem& p, std::vector<int64_t> rows = {}) {
  using U = Wide<T>;
  if (rows.empty()) rows = {p.shape.n};
  rows.push_back(p.shape.channels);
  return {{"x", MakeTensor<T>(rows, p.x)},
          {"scale", Stack<U>(p.scale)},
          {"offset", Stack<U>(p.offset)},
          {"mean", Stack<U>(p.mean)},
          {"variance", Stack<U>(p.variance)},
          {"member", MakeTensor<int32_t>({}, std::vector<int32_t>{kMember})},
          {"dy", MakeTensor<T>(rows, p.dy)}};
}

ops::BatchNormAttrs Attrs(const BatchNormProblem& p) {
  ops::BatchNormAttrs attrs;
  attrs.epsilon = static_cast<float>(p.epsilon);
  attrs.momentum = static_cast<float>(p.momentum);
  attrs.is_training = p.shape.is_training;
  attrs.activation = p.shape.relu ? "Relu" : "Identity";
  return attrs;
}

// The op and all its gradients. Placeholders of unknown shape: only the kernels' own checks see the
// shapes. With `known`, the shape functions do.
struct BatchNormGraph {
  BatchNormGraph(const Tensors& tensors, const ops::BatchNormAttrs& attrs, bool known = false)
      : scope(tensorflow::Scope::NewRootScope()) {
    for (const auto& [name, tensor] : tensors) {
      const auto shape = known ? tensorflow::PartialTensorShape(tensor.shape().dim_sizes())
                               : tensorflow::PartialTensorShape();
      inputs[name] = tensorflow::ops::Placeholder(scope.WithOpName(name), tensor.dtype(),
                                                  tensorflow::ops::Placeholder::Shape(shape));
      feeds.push_back({name, tensor});
    }
    ops::BatchNorm norm(scope, inputs["x"], inputs["scale"], inputs["offset"], inputs["mean"],
                        inputs["variance"], inputs["member"], attrs);
    outputs = {norm.y, norm.running_mean, norm.running_variance};
  }

  absl::Status AddGradients() {
    std::vector<Output> grads;
    absl::Status status = tensorflow::AddSymbolicGradients(
        scope, {outputs[0]}, {inputs["x"], inputs["scale"], inputs["offset"]}, {inputs["dy"]},
        &grads);
    outputs.insert(outputs.end(), grads.begin(), grads.end());
    return status;
  }

  // y, running_mean, running_variance and, if added, dx, dscale, doffset.
  absl::Status Run(std::vector<Tensor>* results) const {
    return test_util::RunGraph(scope, feeds, outputs, results);
  }

  tensorflow::Scope scope;
  std::map<std::string, Output> inputs;
  std::vector<Output> outputs;
  test_util::Feeds feeds;
};

// A gradient of a stack: zeros around row kMember.
Doubles AroundZeros(const Doubles& row) {
  Doubles values(kMembers * row.size(), 0.0);
  std::copy(row.begin(), row.end(), values.begin() + kMember * row.size());
  return values;
}

template <typename T>
void ExpectEqualsReference(const BatchNormCase& shape, double tolerance,
                           const std::vector<int64_t>& rows = {}) {
  using U = Wide<T>;
  const BatchNormProblem p = MakeBatchNormProblem(shape);
  const Tensors tensors = MakeTensors<T>(p, rows);
  BatchNormGraph graph(tensors, Attrs(p));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  const auto expected = BatchNormReference(p);
  EXPECT_LE(RelativeError(Values<T>(results[0]), expected.y), tolerance);
  EXPECT_LE(RelativeError(Values<U>(results[1]), expected.running_mean), tolerance);
  EXPECT_LE(RelativeError(Values<U>(results[2]), expected.running_variance), tolerance);
  EXPECT_LE(RelativeError(Values<T>(results[3]), expected.dx), tolerance);
  EXPECT_LE(RelativeError(Values<U>(results[4]), AroundZeros(expected.dscale)), tolerance);
  EXPECT_LE(RelativeError(Values<U>(results[5]), AroundZeros(expected.doffset)), tolerance);
  EXPECT_EQ(results[0].shape(), tensors.at("x").shape());
  EXPECT_EQ(results[1].shape(), tensorflow::TensorShape({shape.channels}));
  EXPECT_EQ(results[3].shape(), tensors.at("x").shape());
  EXPECT_EQ(results[4].shape(), tensors.at("scale").shape());
}

class BatchNormGraphs : public ::testing::TestWithParam<BatchNormCase> {};

TEST_P(BatchNormGraphs, DoubleEqualsReference) {
  ExpectEqualsReference<double>(GetParam(), kTolerance<double>);
}
TEST_P(BatchNormGraphs, FloatEqualsReference) {
  ExpectEqualsReference<float>(GetParam(), kTolerance<float>);
}
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormGraphs, ::testing::ValuesIn(test_util::BatchNormCases()),
                         [](const auto& info) { return info.param.Name(); });

TEST(BatchNormGraphTest, ImagesAreRowsOfPixels) {
  ExpectEqualsReference<double>({3 * 5 * 4, 19}, kTolerance<double>, {3, 5, 4});
  ExpectEqualsReference<float>({6, 19, /*is_training=*/false, /*relu=*/true}, kTolerance<float>,
                               {6, 1, 1});
}

// Half has 11 significant bits, bfloat16 8: x, y and their gradients are rounded to them; the
// arithmetic and all else is float. Rounding x moves the zeros of the rectifier, so there is none.
TEST(BatchNormGraphTest, HalfTypesAreRoundedFloats) {
  ExpectEqualsReference<Eigen::half>({70, 33}, 8 * std::pow(2.0, -11));
  ExpectEqualsReference<Eigen::bfloat16>({70, 33}, 8 * std::pow(2.0, -8));
  ExpectEqualsReference<Eigen::half>({70, 33, /*is_training=*/false}, 8 * std::pow(2.0, -11));
}

TEST(BatchNormGraphTest, EmptySizes) {
  ExpectEqualsReference<float>({0, 7}, 0.0);
  ExpectEqualsReference<float>({0, 7}, 0.0, {5, 0, 3});
  ExpectEqualsReference<Eigen::half>({0, 7, /*is_training=*/false}, 0.0);
  ExpectEqualsReference<float>({0, 0}, 0.0);
}

// The oracle's own gradient, and with it the op's, against differences of the op's values:
// independent of every derivation.
TEST(BatchNormGraphTest, GradientsEqualNumericalDifferences) {
  for (bool is_training : {true, false}) {
    for (bool relu : {true, false}) {
      const BatchNormProblem p = MakeBatchNormProblem({6, 3, is_training, relu});
      BatchNormGraph graph(MakeTensors<double>(p), Attrs(p));
      ASSERT_THAT(graph.AddGradients(), IsOk());
      std::vector<Tensor> results;
      ASSERT_THAT(graph.Run(&results), IsOk());
      auto total = [](const BatchNormProblem& at) {
        std::vector<Tensor> out;
        EXPECT_THAT(BatchNormGraph(MakeTensors<double>(at), Attrs(at)).Run(&out), IsOk());
        const auto y = Values<double>(out[0]);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * at.dy[i];
        return sum;
      };
      const std::vector<Doubles BatchNormProblem::*> members = {
          &BatchNormProblem::x, &BatchNormProblem::scale, &BatchNormProblem::offset};
      for (size_t m = 0; m < members.size(); ++m) {
        const Doubles analytic = Values<double>(results[3 + m]);
        const size_t first = m == 0 ? 0 : kMember * 3;  // of a stack, the member's row
        for (size_t i = 0; i < (p.*members[m]).size(); ++i) {
          auto shifted = [&](double by) {
            BatchNormProblem moved = p;
            (moved.*members[m])[i] += by;
            return total(moved);
          };
          const double step = 1e-5, numeric = (shifted(step) - shifted(-step)) / (2 * step);
          EXPECT_NEAR(analytic[first + i], numeric, 1e-7) << "input " << m << "[" << i << "]";
        }
      }
    }
  }
}

// A loss of the running statistics alone: they are constants.
TEST(BatchNormGraphTest, RunningStatisticsPassNoGradient) {
  const BatchNormProblem p = MakeBatchNormProblem({6, 3});
  BatchNormGraph graph(MakeTensors<double>(p), Attrs(p));
  std::vector<Output> grads;
  ASSERT_THAT(tensorflow::AddSymbolicGradients(graph.scope, {graph.outputs[1]}, {graph.inputs["x"]},
                                               &grads),
              IsOk());
  graph.outputs = grads;
  std::vector<Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  EXPECT_EQ(Values<double>(results[0]), Doubles(6 * 3, 0.0));
}

// y takes the place of x only if nobody else reads x.
TEST(BatchNormGraphTest, InputsAreLeftAlone) {
  const BatchNormProblem p = MakeBatchNormProblem({70, 33});
  const Tensors tensors = MakeTensors<float>(p);
  BatchNormGraph graph(tensors, Attrs(p));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  EXPECT_EQ(Values<float>(tensors.at("x")), p.x);
  EXPECT_EQ(Values<float>(tensors.at("dy")), p.dy);
}

TEST(BatchNormGraphTest, SecondOrderIsRefused) {
  const BatchNormProblem p = MakeBatchNormProblem({6, 3});
  BatchNormGraph graph(MakeTensors<float>(p), Attrs(p));
  ASSERT_THAT(graph.AddGradients(), IsOk());
  std::vector<Output> second;
  EXPECT_THAT(
      tensorflow::AddSymbolicGradients(graph.scope, {graph.outputs[3]}, {graph.inputs["scale"]},
                                       &second),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("LatePhase>BatchNormGrad: second-order gradients are not available")));
}

auto Complains(const std::string& message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
}

const BatchNormProblem& Small() {
  static const BatchNormProblem problem = MakeBatchNormProblem({5, 4});
  return problem;
}

absl::Status RunWith(const Tensors& tensors) {
  std::vector<Tensor> results;
  return BatchNormGraph(tensors, {}).Run(&results);
}

TEST(BatchNormErrors, MemberWithoutARow) {
  for (int32_t member : {-1, 3, 2000000000}) {
    Tensors tensors = MakeTensors<float>(Small());
    tensors["member"].scalar<int32_t>()() = member;
    EXPECT_THAT(RunWith(tensors),
                Complains("LatePhase>BatchNorm: `member` must be in [0, 3), the rows of `scale`. "
                          "Received: member=" +
                          std::to_string(member)));
  }
}

struct BadShape {
  std::string name;
  std::vector<int64_t> dims;
  std::string message;
};

Tensor Zeros(tensorflow::DataType dtype, const std::vector<int64_t>& dims) {
  Tensor tensor(dtype, tensorflow::TensorShape(dims));
  std::memset(tensor.data(), 0, tensor.TotalBytes());
  return tensor;
}

// n = 5, channels = 4, K = 3.
TEST(BatchNormErrors, EveryWrongShapeIsNamed) {
  const std::string of_x = "`x` must be [batch, channels] or [batch, height, width, channels]. ";
  const std::vector<BadShape> bad = {
      {"x", {}, of_x + "Received: shape=[]"},
      {"x", {5}, of_x + "Received: shape=[5]"},
      {"x", {5, 2, 4}, of_x + "Received: shape=[5,2,4]"},
      {"x", {5, 2, 2, 2, 4}, of_x + "Received: shape=[5,2,2,2,4]"},
      {"x", {5, 3}, "`scale` must be [K>=1, channels] with channels=3. Received: shape=[3,4]"},
      {"x",
       {5, 4, 4, 3},
       "`scale` must be [K>=1, channels] with channels=3. Received: shape=[3,4]"},
      {"scale", {4}, "`scale` must be [K>=1, channels] with channels=4. Received: shape=[4]"},
      {"scale", {0, 4}, "`scale` must be [K>=1, channels] with channels=4. Received: shape=[0,4]"},
      {"scale",
       {2, 4},
       "`offset` must be [K, channels] with K=2, channels=4. Received: shape=[3,4]"},
      {"offset",
       {3, 5},
       "`offset` must be [K, channels] with K=3, channels=4. Received: shape=[3,5]"},
      {"mean", {4}, "`mean` must be [K, channels] with K=3, channels=4. Received: shape=[4]"},
      {"variance",
       {1, 4},
       "`variance` must be [K, channels] with K=3, channels=4. Received: shape=[1,4]"},
      {"member", {1}, "`member` must be a scalar. Received: shape=[1]"},
  };
  for (const BadShape& wrong : bad) {
    Tensors tensors = MakeTensors<float>(Small());
    tensors[wrong.name] = Zeros(tensors[wrong.name].dtype(), wrong.dims);
    EXPECT_THAT(RunWith(tensors), Complains("LatePhase>BatchNorm: " + wrong.message));
    EXPECT_THAT(BatchNormGraph(tensors, {}, /*known=*/true).scope.status(),
                Complains("LatePhase>BatchNorm: " + wrong.message));
  }
}

TEST(BatchNormErrors, EveryWrongAttributeIsNamed) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  auto complain = [](auto change, const std::string& message) {
    ops::BatchNormAttrs attrs;
    change(&attrs);
    EXPECT_THAT(BatchNormGraph(MakeTensors<float>(Small()), attrs).scope.status(),
                Complains("LatePhase>BatchNorm: " + message));
  };
  using A = ops::BatchNormAttrs;
  complain([](A* a) { a->epsilon = 0; }, "`epsilon` must be in (0, inf). Received: epsilon=0");
  complain([](A* a) { a->epsilon = -1; }, "`epsilon` must be in (0, inf). Received: epsilon=-1");
  complain([&](A* a) { a->epsilon = nan; }, "`epsilon` must be in (0, inf). Received: epsilon=nan");
  complain([](A* a) { a->momentum = -0.5; },
           "`momentum` must be in [0, 1]. Received: momentum=-0.5");
  complain([](A* a) { a->momentum = 1.5; }, "`momentum` must be in [0, 1]. Received: momentum=1.5");
  complain([&](A* a) { a->momentum = nan; },
           "`momentum` must be in [0, 1]. Received: momentum=nan");
  complain([](A* a) { a->activation = "relu"; },
           "`activation` must be Identity or Relu. Received: activation=relu");
  complain([](A* a) { a->data_format = "NWHC"; },
           "`data_format` must be NHWC or NCHW. Received: data_format=NWHC");
}

TEST(BatchNormErrors, ChannelsFirstIsForOtherDevices) {
  ops::BatchNormAttrs attrs;
  attrs.data_format = "NCHW";
  Tensors tensors = MakeTensors<float>(Small());
  tensors["x"] = tensors["dy"] = Zeros(tensorflow::DT_FLOAT, {2, 4, 3, 3});
  const BatchNormGraph graph(tensors, attrs, /*known=*/true);
  EXPECT_THAT(graph.scope.status(), IsOk());
  std::vector<Tensor> results;
  EXPECT_THAT(graph.Run(&results),
              Complains("LatePhase>BatchNorm: `data_format` must be NHWC on the CPU. Received: "
                        "data_format=NCHW"));
  tensors["x"] = Zeros(tensorflow::DT_FLOAT, {2, 3, 3, 4});
  EXPECT_THAT(BatchNormGraph(tensors, attrs, /*known=*/true).scope.status(),
              Complains("LatePhase>BatchNorm: `scale` must be [K>=1, channels] with channels=3. "
                        "Received: shape=[3,4]"));
}

TEST(BatchNormErrors, StatisticsOfTheWrongType) {
  const Tensors half = MakeTensors<Eigen::half>(Small()), wide = MakeTensors<double>(Small());
  auto complain = [](Tensors tensors, const Tensors& others, const std::string& message) {
    for (const char* name : {"scale", "offset", "mean", "variance"}) {
      tensors[name] = others.at(name);
    }
    EXPECT_THAT(
        BatchNormGraph(tensors, {}).scope.status(),
        Complains("LatePhase>BatchNorm: `scale` and all other arrays without rows must be of "
                  "type " +
                  message));
  };
  complain(half, wide, "float, because `x` is of type half. Received: type=double");
  complain(wide, half, "double, because `x` is of type double. Received: type=float");
}

// The Grad op, called by hand with inputs of these shapes, all zeros.
absl::Status RunGradOp(const std::vector<std::vector<int64_t>>& shapes) {
  tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  test_util::Feeds feeds;
  std::vector<tensorflow::Input> inputs;
  for (const auto& dims : shapes) {
    const std::string name = "input" + std::to_string(inputs.size());
    const auto dtype = inputs.size() == 3 ? tensorflow::DT_INT32 : tensorflow::DT_FLOAT;
    feeds.push_back({name, Zeros(dtype, dims)});
    inputs.push_back(tensorflow::ops::Placeholder(scope.WithOpName(name), dtype));
  }
  const auto grad = AddNode(scope, "LatePhase>BatchNormGrad", "grad", inputs);
  if (!scope.ok()) return scope.status();
  std::vector<Tensor> results;
  return test_util::RunGraph(scope, feeds, {grad.output(0)}, &results);
}

TEST(BatchNormErrors, GradientChecksWhatItIsGiven) {
  const std::vector<std::string> names = {
      "x", "scale", "offset", "member", "saved_mean", "saved_mean_rest", "saved_inv_std", "dy"};
  const std::vector<std::vector<int64_t>> good = {{5, 4}, {3, 4}, {3, 4}, {},
                                                  {4},    {4},    {4},    {5, 4}};
  EXPECT_THAT(RunGradOp(good), IsOk());
  const std::vector<BadShape> bad = {
      {"x",
       {4},
       "`x` must be [batch, channels] or [batch, height, width, channels]. Received: shape=[4]"},
      {"scale", {3, 5}, "`scale` must be [K>=1, channels] with channels=4. Received: shape=[3,5]"},
      {"offset", {4}, "`offset` must be [K, channels] with K=3, channels=4. Received: shape=[4]"},
      {"member", {1}, "`member` must be a scalar. Received: shape=[1]"},
      {"saved_mean", {5}, "`saved_mean` must be [channels] with channels=4. Received: shape=[5]"},
      {"saved_mean_rest",
       {0},
       "`saved_mean_rest` must be [channels] with channels=4. Received: shape=[0]"},
      {"saved_inv_std",
       {},
       "`saved_inv_std` must be [channels] with channels=4. Received: shape=[]"},
      {"dy",
       {6, 4},
       "`dy` must be [batch, channels] with batch=5, channels=4. Received: shape=[6,4]"},
      {"dy",
       {5, 1, 1, 4},
       "`dy` must be [batch, channels] with batch=5, channels=4. Received: shape=[5,1,1,4]"},
  };
  for (const BadShape& wrong : bad) {
    auto shapes = good;
    shapes[std::find(names.begin(), names.end(), wrong.name) - names.begin()] = wrong.dims;
    EXPECT_THAT(RunGradOp(shapes), Complains("LatePhase>BatchNormGrad: " + wrong.message));
  }
}

// No channels: all inputs are empty, however many rows and members there are.
TEST(BatchNormErrors, HugeEmptyInputsDoNotCrash) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(RunGradOp({{huge, 0}, {huge, 0}, {huge, 0}, {}, {0}, {0}, {0}, {huge, 0}}), IsOk());
  EXPECT_THAT(RunGradOp({{0, 4}, {3, 4}, {3, 4}, {}, {4}, {4}, {4}, {0, 4}}), IsOk());
}

}  // namespace
}  // namespace late_phase

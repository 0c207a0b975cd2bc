// Bad input to the rank-1 LSTM ops, in graphs of unknown shapes (the kernels answer) and of known
// ones (the shape functions do).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tests/ops/rank1_lstm_graph.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::LstmGraph;
using test_util::LstmProblem;
using test_util::LstmTensors;
using test_util::MakeLstmProblem;
using test_util::MakeTensor;
using test_util::StatusIs;
using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::map<std::string, tensorflow::Tensor>;

const char* OpName(bool tokens) {
  return tokens ? "LatePhase>Rank1LstmTokens" : "LatePhase>Rank1Lstm";
}

tensorflow::Tensor Ones(const std::vector<int64_t>& dims) {
  tensorflow::Tensor tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape(dims));
  tensor.flat<float>().setConstant(1.0f);
  return tensor;
}

absl::Status RunWith(const Tensors& tensors) {
  Tensors results;
  return LstmGraph(tensors).Run(&results);
}

// The complaint must open with op and argument, say the rule and end with what was received.
auto Complains(const std::string& op, const std::string& argument, const std::string& received) {
  return StatusIs(
      absl::StatusCode::kInvalidArgument,
      AllOf(HasSubstr(op + ": `" + argument + "` must be"), HasSubstr("Received: " + received)));
}

class Rank1LstmErrors : public ::testing::TestWithParam<bool> {
 protected:
  // T = 4, N = 3, C = 5, H = 6, K = 2.
  Tensors Good() const {
    return LstmTensors<float>(MakeLstmProblem({4, 3, 5, 6, GetParam()}), 2, 1);
  }
  std::string Op() const { return OpName(GetParam()); }
};

TEST_P(Rank1LstmErrors, GoodInputRuns) { EXPECT_THAT(RunWith(Good()), IsOk()); }

TEST_P(Rank1LstmErrors, MemberOutsideTheStack) {
  for (int32_t member : {-1, 2, 1000000}) {
    Tensors tensors = Good();
    tensors["member"] = MakeTensor<int32_t>({}, std::vector<int32_t>{member});
    EXPECT_THAT(RunWith(tensors),
                AllOf(Complains(Op(), "member", "member=" + std::to_string(member)),
                      StatusIs(_, HasSubstr("in [0, 2), the rows of `u`"))));
  }
}

TEST_P(Rank1LstmErrors, MemberNotAScalar) {
  Tensors tensors = Good();
  tensors["member"] = MakeTensor<int32_t>({1}, std::vector<int32_t>{0});
  EXPECT_THAT(RunWith(tensors), Complains(Op(), "member", "shape=[1]"));
}

TEST_P(Rank1LstmErrors, NoMembersAtAll) {
  Tensors tensors = Good();
  tensors["u"] = Ones({0, 6});
  tensors["v"] = Ones({0, 24});
  EXPECT_THAT(RunWith(tensors), Complains(Op(), "u", "shape=[0,6]"));
}

TEST_P(Rank1LstmErrors, NoUnits) {
  Tensors tensors = Good();
  tensors["initial_h"] = tensors["initial_c"] = Ones({3, 0});
  tensors["recurrent_kernel"] = Ones({0, 0});
  tensors["u"] = tensors["v"] = Ones({2, 0});
  if (GetParam()) {
    tensors["table"] = Ones({5, 0});
    EXPECT_THAT(RunWith(tensors), Complains(Op(), "table", "shape=[5,0]"));
  } else {
    tensors["kernel"] = Ones({5, 0});
    tensors["bias"] = Ones({0});
    EXPECT_THAT(RunWith(tensors), Complains(Op(), "initial_h", "shape=[3,0]"));
  }
}

// Every input with one more dimension, and with each size one too large. The first input to
// contradict an earlier one is named, so the error may name another argument; it must be one of
// this op's and carry its real shape.
TEST_P(Rank1LstmErrors, EveryMismatchedShape) {
  const Tensors good = Good();
  int tried = 0;
  for (const auto& [name, tensor] : good) {
    const auto sizes = tensor.shape().dim_sizes();
    const std::vector<int64_t> dims(sizes.begin(), sizes.end());
    std::vector<std::vector<int64_t>> wrong;
    wrong.push_back(dims);
    wrong.back().push_back(1);
    if (!dims.empty()) wrong.push_back(std::vector<int64_t>(dims.begin() + 1, dims.end()));
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      wrong.push_back(dims);
      wrong.back()[axis] += 1;
    }
    for (const auto& shape : wrong) {
      // `time` and `vocab` stand in no second place, so any size of them is right.
      if (shape.size() == dims.size() && shape != dims &&
          ((name == "x" || name == "tokens") ? shape[0] != dims[0]
                                             : name == "table" && shape[0] != dims[0])) {
        continue;
      }
      Tensors tensors = good;
      tensorflow::Tensor bad(tensor.dtype(), tensorflow::TensorShape(shape));
      std::memset(bad.data(), 0, bad.TotalBytes());
      tensors[name] = bad;
      EXPECT_THAT(RunWith(tensors),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(Op() + ": `"), HasSubstr("Received: shape=["))))
          << name << " " << bad.shape().DebugString();
      ++tried;
    }
  }
  EXPECT_GE(tried, 25);
}

TEST_P(Rank1LstmErrors, WrongTypesAreRefusedWhenTheGraphIsBuilt) {
  for (const char* name : {"initial_h", "recurrent_kernel", "u", "v", "member"}) {
    Tensors tensors = Good();
    tensors[name] = tensorflow::Tensor(tensorflow::DT_DOUBLE, tensors[name].shape());
    EXPECT_THAT(RunWith(tensors), StatusIs(absl::StatusCode::kInvalidArgument, _)) << name;
  }
}

TEST_P(Rank1LstmErrors, EmptyTimeAndBatchAreNoErrors) {
  for (auto [T, N] : {std::pair<int64_t, int64_t>{0, 3}, {4, 0}, {0, 0}}) {
    const LstmProblem p = MakeLstmProblem({T, N, 5, 6, GetParam()});
    const Tensors tensors = LstmTensors<float>(p, 2, 1);
    LstmGraph graph(tensors);
    ASSERT_THAT(graph.AddGradients<float>(p), IsOk());
    Tensors results;
    ASSERT_THAT(graph.Run(&results), IsOk());
    EXPECT_EQ(results.at("h").shape(), tensorflow::TensorShape({T, N, 6}));
    EXPECT_EQ(test_util::Values<float>(results.at("final_h")),
              test_util::Values<float>(tensors.at("initial_h")));
    EXPECT_EQ(test_util::Values<float>(results.at("dinitial_c")), p.dout.final_c);
    for (double d : test_util::Values<float>(results.at("drecurrent_kernel"))) EXPECT_EQ(d, 0.0);
  }
}

// x [time, batch, 0] may be empty while [time, batch, units] is larger than any memory, or than 64
// bits.
TEST(Rank1LstmDenseErrors, HugeOutputsOfEmptyInputsDoNotCrash) {
  for (int64_t time : {int64_t{1} << 60, int64_t{1} << 61}) {
    Tensors tensors = LstmTensors<float>(MakeLstmProblem({4, 3, 5, 6, false}), 2, 1);
    tensors["x"] = tensorflow::Tensor(tensorflow::DT_FLOAT, tensorflow::TensorShape({time, 3, 0}));
    tensors["kernel"] = Ones({0, 24});
    EXPECT_THAT(RunWith(tensors), Not(IsOk()));
  }
}

TEST_P(Rank1LstmErrors, GradientOfInferenceIsRefused) {
  LstmGraph graph(Good(), /*is_training=*/false);
  EXPECT_THAT(
      graph.AddGradients<float>(MakeLstmProblem({4, 3, 5, 6, GetParam()})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("`is_training` must be true")));
}

TEST_P(Rank1LstmErrors, SecondOrderGradientIsRefused) {
  LstmGraph graph(Good());
  ASSERT_THAT(graph.AddGradients<float>(MakeLstmProblem({4, 3, 5, 6, GetParam()})), IsOk());
  std::vector<tensorflow::Output> second;
  EXPECT_THAT(tensorflow::AddSymbolicGradients(graph.scope, {graph.gradients[0]},
                                               {graph.inputs["initial_h"]}, &second),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("second-order")));
}

TEST_P(Rank1LstmErrors, KnownShapesAreCheckedWhenTheGraphIsBuilt) {
  const Tensors good = Good();
  auto scope = tensorflow::Scope::NewRootScope();
  std::map<std::string, tensorflow::Output> in;
  for (const auto& [name, tensor] : good) {
    const auto& shape = name == "v" ? tensorflow::TensorShape({2, 25}) : tensor.shape();
    in[name] = tensorflow::ops::Placeholder(scope, tensor.dtype(),
                                            tensorflow::ops::Placeholder::Shape(shape));
  }
  if (GetParam()) {
    ops::Rank1LstmTokens(scope, in["tokens"], in["table"], in["initial_h"], in["initial_c"],
                         in["recurrent_kernel"], in["u"], in["v"], in["member"]);
  } else {
    ops::Rank1Lstm(scope, in["x"], in["initial_h"], in["initial_c"], in["kernel"],
                   in["recurrent_kernel"], in["bias"], in["u"], in["v"], in["member"]);
  }
  EXPECT_THAT(scope.status(), Complains(Op(), "v", "shape=[2,25]"));
}

INSTANTIATE_TEST_SUITE_P(Forms, Rank1LstmErrors, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tokens" : "Dense"; });

TEST(Rank1LstmTokensErrors, TokensOutsideTheTable) {
  for (int32_t token : {-1, 5, std::numeric_limits<int32_t>::min()}) {
    LstmProblem p = MakeLstmProblem({4, 3, 5, 6, true});
    p.tokens[7] = token;
    EXPECT_THAT(RunWith(LstmTensors<float>(p, 2, 1)),
                Complains(OpName(true), "tokens", "tokens[2,1]=" + std::to_string(token)));
  }
}

TEST(Rank1LstmTokensErrors, EmptyTable) {
  Tensors tensors = LstmTensors<float>(MakeLstmProblem({4, 3, 5, 6, true}), 2, 1);
  tensors["table"] = Ones({0, 24});
  EXPECT_THAT(RunWith(tensors), Complains(OpName(true), "tokens", "tokens[0,0]="));
}

}  // namespace
}  // namespace late_phase

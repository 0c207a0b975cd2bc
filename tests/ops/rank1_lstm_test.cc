// The rank-1 LSTM ops in C++ graphs: values and symbolic gradients against plain double-precision
// loops.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tests/ops/rank1_lstm_graph.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::kTolerance;
using test_util::LstmCase;
using test_util::LstmGraph;
using test_util::LstmProblem;
using test_util::LstmTensors;
using test_util::MakeLstmProblem;
using test_util::RelativeError;
using test_util::Values;

constexpr int64_t kMembers = 10;

template <typename T>
void ExpectEqualsReference(const LstmCase& shape, int64_t K, int32_t member, double tolerance) {
  const LstmProblem p = MakeLstmProblem(shape);
  LstmGraph graph(LstmTensors<T>(p, K, member));
  ASSERT_THAT(graph.AddGradients<T>(p), IsOk());
  std::map<std::string, tensorflow::Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());

  const auto out = reference::Forward(p.inputs);
  const auto grad = reference::Backward(p.inputs, p.dout);
  std::map<std::string, reference::Values> expected = {
      {"h", out.h},
      {"final_h", out.final_h},
      {"final_c", out.final_c},
      {"dinitial_h", grad.initial_h},
      {"dinitial_c", grad.initial_c},
      {"drecurrent_kernel", grad.recurrent_kernel},
  };
  if (shape.tokens) {
    expected["dtable"] = grad.kernel;
  } else {
    expected["dx"] = grad.x;
    expected["dkernel"] = grad.kernel;
    expected["dbias"] = grad.bias;
  }
  // The gradient of a stack is zero outside the member's row.
  for (const auto& [name, row] : {std::pair("du", grad.u), std::pair("dv", grad.v)}) {
    reference::Values stack(K * row.size(), 0.0);
    std::copy(row.begin(), row.end(), stack.begin() + member * row.size());
    expected[name] = stack;
    const auto actual = Values<T>(results.at(name));
    for (size_t i = 0; i < stack.size(); ++i) {
      if (static_cast<int32_t>(i / row.size()) == member) continue;
      ASSERT_EQ(actual[i], 0.0) << name;
    }
  }
  for (const auto& [name, values] : expected) {
    EXPECT_LE(RelativeError(Values<T>(results.at(name)), values), tolerance) << name;
  }
}

class Rank1LstmGraph : public ::testing::TestWithParam<LstmCase> {};

TEST_P(Rank1LstmGraph, DoubleEqualsReference) {
  ExpectEqualsReference<double>(GetParam(), kMembers, 7, kTolerance<double>);
}
TEST_P(Rank1LstmGraph, FloatEqualsReference) {
  ExpectEqualsReference<float>(GetParam(), kMembers, 0, kTolerance<float>);
}
INSTANTIATE_TEST_SUITE_P(Shapes, Rank1LstmGraph, ::testing::ValuesIn(test_util::LstmCases()),
                         [](const auto& info) { return info.param.Name(); });

// Half has 11 significant bits, bfloat16 8: inputs, outputs and saved gates are rounded to them,
// the arithmetic is float. A result carries the rounding of what it was made of, so a few units of
// 2^-11 or 2^-8.
TEST(Rank1LstmGraphTest, HalfTypesAreRoundedFloats) {
  for (bool tokens : {false, true}) {
    const LstmCase shape{5, 7, 6, 23, tokens};
    ExpectEqualsReference<Eigen::half>(shape, 3, 2, 4 * std::pow(2.0, -11));
    ExpectEqualsReference<Eigen::bfloat16>(shape, 3, 2, 4 * std::pow(2.0, -8));
  }
}

TEST(Rank1LstmGraphTest, EveryMemberOfOneStackIsTheSameOp) {
  for (int32_t member = 0; member < 3; ++member) {
    ExpectEqualsReference<double>({3, 4, 5, 6, false}, 3, member, kTolerance<double>);
  }
}

TEST(Rank1LstmGraphTest, InferenceSavesNothingAndAgrees) {
  for (bool tokens : {false, true}) {
    const LstmProblem p = MakeLstmProblem({5, 19, 6, 23, tokens});
    const auto tensors = LstmTensors<float>(p, 2, 1);
    std::map<std::string, tensorflow::Tensor> training, inference;
    ASSERT_THAT(LstmGraph(tensors).Run(&training), IsOk());
    ASSERT_THAT(LstmGraph(tensors, /*is_training=*/false).Run(&inference), IsOk());
    for (const char* name : {"h", "final_h", "final_c"}) {
      EXPECT_EQ(Values<float>(inference.at(name)), Values<float>(training.at(name))) << name;
    }
    EXPECT_EQ(inference.at("gates").NumElements(), 0);
    EXPECT_EQ(inference.at("cells").NumElements(), 0);
  }
}

// The gradient kernel works in the buffer of `gates` if it may; somebody who still reads `gates`
// must not notice.
TEST(Rank1LstmGraphTest, GradientLeavesFetchedGatesAlone) {
  const LstmProblem p = MakeLstmProblem({5, 19, 6, 23, false});
  const auto tensors = LstmTensors<float>(p, 2, 1);
  std::map<std::string, tensorflow::Tensor> alone, with_gradient;
  ASSERT_THAT(LstmGraph(tensors).Run(&alone), IsOk());
  LstmGraph graph(tensors);
  ASSERT_THAT(graph.AddGradients<float>(p), IsOk());
  ASSERT_THAT(graph.Run(&with_gradient), IsOk());
  EXPECT_EQ(Values<float>(with_gradient.at("gates")), Values<float>(alone.at("gates")));
}

// A loss that uses h alone: the unused outputs have no gradient, which is not the same as a wrong
// one.
TEST(Rank1LstmGraphTest, UnusedOutputsCountAsZero) {
  LstmProblem p = MakeLstmProblem({4, 3, 5, 6, false});
  LstmGraph graph(LstmTensors<double>(p, 1, 0));
  std::vector<tensorflow::Output> grads;
  const auto dh = tensorflow::ops::Placeholder(graph.scope.WithOpName("dh"), tensorflow::DT_DOUBLE);
  graph.feeds.push_back({"dh", test_util::MakeTensor<double>({4, 3, 6}, p.dout.h)});
  ASSERT_THAT(tensorflow::AddSymbolicGradients(graph.scope, {graph.outputs[0]}, {graph.inputs["x"]},
                                               {dh}, &grads),
              IsOk());
  std::vector<tensorflow::Tensor> results;
  ASSERT_THAT(test_util::RunGraph(graph.scope, graph.feeds, grads, &results), IsOk());
  std::fill(p.dout.final_h.begin(), p.dout.final_h.end(), 0.0);
  std::fill(p.dout.final_c.begin(), p.dout.final_c.end(), 0.0);
  EXPECT_LE(RelativeError(Values<double>(results[0]), reference::Backward(p.inputs, p.dout).x),
            kTolerance<double>);
}

// The oracle's own gradient, and with it the op's, against differences of the op's values:
// independent of every derivation.
TEST(Rank1LstmGraphTest, GradientsEqualNumericalDifferences) {
  const LstmProblem p = MakeLstmProblem({3, 2, 3, 4, false});
  const auto tensors = LstmTensors<double>(p, 2, 1);
  LstmGraph graph(tensors);
  ASSERT_THAT(graph.AddGradients<double>(p), IsOk());
  std::map<std::string, tensorflow::Tensor> results;
  ASSERT_THAT(graph.Run(&results), IsOk());
  auto loss = [&](const std::map<std::string, tensorflow::Tensor>& at) {
    std::map<std::string, tensorflow::Tensor> out;
    EXPECT_THAT(LstmGraph(at).Run(&out), IsOk());
    double sum = 0;
    auto add = [&](const char* name, const reference::Values& weights) {
      const auto values = Values<double>(out.at(name));
      for (size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
    };
    add("h", p.dout.h);
    add("final_h", p.dout.final_h);
    add("final_c", p.dout.final_c);
    return sum;
  };
  for (const auto& [name, tensor] : tensors) {
    if (name == "member") continue;
    const auto analytic = Values<double>(results.at("d" + name));
    // Three elements of each tensor: the first, the middle, the last (which lies in the member's
    // row).
    const int64_t size = tensor.NumElements();
    for (int64_t i : {int64_t{0}, size / 2, size - 1}) {
      auto shifted = [&](double by) {
        auto moved = tensors;
        moved[name] = tensorflow::tensor::DeepCopy(tensor);
        moved[name].flat<double>()(i) += by;
        return loss(moved);
      };
      const double step = 1e-5, numeric = (shifted(step) - shifted(-step)) / (2 * step);
      EXPECT_NEAR(analytic[i], numeric, 1e-7) << name << "[" << i << "]";
    }
  }
}

}  // namespace
}  // namespace late_phase

// Predictions with dropout going on: one sample's against a forward pass of stock ops, with masks
// drawn here; their mean; and what is refused.
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/images/cifar.h"
#include "ops/add_node.h"
#include "optimizers/checkpoint.h"
#include "optimizers/run.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tests/support/graph_runner.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::ExpectValue;
using test_util::IsOk;
using test_util::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Scope;
using tensorflow::Tensor;

constexpr int64_t kImages = 257, kPart = 250,
                  kSeed = 11;  // a prediction takes 250 images at a time
constexpr double kRate = 0.4;

CifarData MakeData() {
  LabelledImages images;
  images.count = kImages;
  for (int64_t i = 0; i < kImages * 32 * 32 * 3; ++i) {
    images.pixels.push_back(static_cast<uint8_t>(i * 2654435761 >> 13));
  }
  for (int64_t i = 0; i < kImages; ++i) images.labels.push_back(static_cast<uint8_t>(i % 10));
  return test_util::ExpectValue(
      CifarData::Divide(std::make_shared<CifarImages>(CifarImages{10, images, images}), 0, 0, 0));
}

CifarOptions Options() {
  CifarOptions options;
  options.model = "base";
  options.network = "convnet";
  options.dtype = "float64";
  options.dropout = kRate;
  options.seed = kSeed;
  options.swa_start = -1;
  options.batch = 32;
  return options;
}

class McDropoutTest : public ::testing::Test {
 protected:
  // A network after two minibatches, so that no weight is where it started.
  void Train(const CifarOptions& options) {
    TF_ASSERT_OK_AND_ASSIGN(task_, Cifar::Create(options, &data_));
    TF_ASSERT_OK_AND_ASSIGN(run_, task_->MakeRun(test_util::kGraphThreads));
    ASSERT_THAT(run_->Initialize(), IsOk());
    for (int64_t t = 0; t < 2; ++t) {
      TF_ASSERT_OK_AND_ASSIGN(const late_phase::Run::Feeds feeds, task_->Batch(t));
      ASSERT_THAT(run_->Step(feeds), IsOk());
    }
  }
  std::vector<double> Predict(int64_t sample) {
    return ExpectValue(task_->Predict(run_.get(), data_.test, {WeightSet::kCollapsed, 0, sample}));
  }

  const CifarData data_ = MakeData();
  std::unique_ptr<Cifar> task_;
  std::unique_ptr<late_phase::Run> run_;
};

// The ConvNet with dropout after both hidden layers; sample < 0: without.
std::vector<double> Reference(const CheckpointState& state, const CifarData& data, int64_t sample) {
  const Scope scope = Scope::NewRootScope();
  auto weight = [&](const std::string& name) -> Output {
    return tf_ops::Const(scope, state.variables.at(name));
  };
  auto row = [&](const std::string& name) -> Output {
    return tf_ops::Squeeze(scope, weight(name), tf_ops::Squeeze::Axis({0}));
  };
  std::vector<double> probabilities;
  for (int64_t begin = 0; begin < kImages; begin += kPart) {
    const int64_t count = std::min(kPart, kImages - begin);
    int64_t layer = 0;
    auto dropout = [&](Output x) -> Output {
      if (sample < 0) return x;
      const std::vector<int64_t> seed = {-1 - kSeed,
                                         sample * (1 << 20) + begin / kPart + (layer++ << 40)};
      const Output u =
          GetOutput(AddNode(scope, "StatelessRandomUniform", "u",
                            {tf_ops::Shape(scope, x), test_util::MakeTensor<int64_t>({2}, seed)},
                            [](tensorflow::NodeBuilder* builder) {
                              builder->Attr("dtype", tensorflow::DT_FLOAT);
                            }),
                    0);
      const auto dropped = tf_ops::Less(scope, u, static_cast<float>(kRate));
      return tf_ops::SelectV2(scope, dropped, tf_ops::ZerosLike(scope, x),
                              tf_ops::Div(scope, x, 1 - kRate));
    };
    auto norm = [&](const std::string& name, Output x) -> Output {
      const auto inverse = tf_ops::Rsqrt(
          scope, tf_ops::Add(scope, row(name + "/variance"), static_cast<double>(1e-5f)));
      const auto centred = tf_ops::Sub(scope, x, row(name + "/mean"));
      return tf_ops::Add(
          scope, tf_ops::Mul(scope, tf_ops::Mul(scope, centred, inverse), row(name + "/scale")),
          row(name + "/offset"));
    };
    Tensor pixels(tensorflow::DT_DOUBLE, {count, 32, 32, 3});
    std::vector<int32_t> labels(count);
    FillImages(data.test, data.statistics, begin, count, pixels.flat<double>().data(),
               labels.data());
    Output x = tf_ops::Const(scope, pixels);
    for (const char* i : {"0", "1"}) {
      x = tf_ops::Conv2D(scope, x, weight(absl::StrCat("conv", i, "/kernel")), {1, 1, 1, 1},
                         "VALID");
      x = tf_ops::Relu(scope, tf_ops::Add(scope, x, weight(absl::StrCat("conv", i, "/bias"))));
      x = tf_ops::MaxPool(scope, norm(absl::StrCat("bn", i), x), {1, 2, 2, 1}, {1, 2, 2, 1},
                          "VALID");
    }
    x = tf_ops::Reshape(scope, x, {-1, 400});
    for (const char* i : {"2", "3"}) {
      x = tf_ops::MatMul(scope, x, weight(absl::StrCat("dense", i, "/kernel")));
      x = tf_ops::Relu(scope, tf_ops::Add(scope, x, weight(absl::StrCat("dense", i, "/bias"))));
      x = dropout(norm(absl::StrCat("bn", i), x));
    }
    x = tf_ops::Add(scope, tf_ops::MatMul(scope, x, row("head/kernel")), row("head/bias"));
    std::vector<Tensor> results;
    EXPECT_THAT(test_util::RunGraph(scope, {}, {tf_ops::Softmax(scope, x)}, &results), IsOk());
    const std::vector<double> values = test_util::Values<double>(results.at(0));
    probabilities.insert(probabilities.end(), values.begin(), values.end());
  }
  return probabilities;
}

double Difference(const std::vector<double>& one, const std::vector<double>& other) {
  if (one.size() != other.size()) return INFINITY;
  double difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference = std::max(difference, std::abs(one[i] - other[i]));
  }
  return difference;
}

TEST_F(McDropoutTest, ASampleIsAForwardPassWithItsMasks) {
  ASSERT_NO_FATAL_FAILURE(Train(Options()));
  const std::string folder = ::testing::TempDir() + "/mc_dropout";
  ASSERT_THAT(run_->Save(folder), IsOk());
  TF_ASSERT_OK_AND_ASSIGN(CheckpointState state,
                          ReadCheckpoint(LatestCheckpoint(folder).value_or("none")));
  for (const int64_t sample : {-1, 0, 5}) {
    EXPECT_LT(Difference(Predict(sample), Reference(state, data_, sample)), 1e-10) << sample;
  }
  EXPECT_GT(Difference(Predict(0), Predict(5)), 0.05);
  EXPECT_GT(Difference(Predict(0), Predict(-1)), 0.05);
  EXPECT_EQ(Predict(5), Predict(5));
  std::filesystem::remove_all(folder);
}

TEST_F(McDropoutTest, WhatCannotBeSampledIsRefused) {
  CifarOptions options = Options();
  options.dropout = 0;
  ASSERT_NO_FATAL_FAILURE(Train(options));
  EXPECT_THAT(task_->Predict(run_.get(), data_.test, {WeightSet::kCollapsed, 0, 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no dropout")));
  ASSERT_NO_FATAL_FAILURE(Train(Options()));
  EXPECT_THAT(
      task_->Predict(run_.get(), data_.test, {WeightSet::kCollapsed, 0, int64_t{1} << 20}),
      StatusIs(_, "`dropout_sample` must be less than 1048576. Received: dropout_sample=1048576"));
}

}  // namespace
}  // namespace late_phase

// Other weights in a trained image network's place: what predicts then, and that all comes back.
#include "models/images/trial_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/images/cifar.h"
#include "models/images/collapsed_network.h"
#include "optimizers/tensors.h"
#include "tests/support/cifar_files.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::ExpectValue;
using test_util::IsOk;
using test_util::StatusIs;

// Three members, after some steps, in double precision.
class TrialWeightsTest : public testing::Test {
 protected:
  void Train(const std::string& batch_norm_collapse) {
    const TestFolder folder;
    WriteFiles(folder.path(), CifarFiles(CifarSet::kCifar10, 8, 12, 10, 3));
    auto images = std::make_shared<CifarImages>();
    ASSERT_EQ(ReadCifar(CifarSet::kCifar10, folder.path(), images.get()), "");
    TF_ASSERT_OK_AND_ASSIGN(data_, CifarData::Divide(std::move(images), 0, 0, 0));
    CifarOptions options;
    options.network = "convnet";
    options.dtype = "float64";
    options.batch = 8;
    options.members = 3;
    options.t0 = 0.4;
    options.sigma = 0.3;
    options.swa_start = -1;
    options.learning_rate = 0.05;
    options.batch_norm_collapse = batch_norm_collapse;
    TF_ASSERT_OK_AND_ASSIGN(task_, Cifar::Create(options, &data_));
    TF_ASSERT_OK_AND_ASSIGN(run_, task_->MakeRun(2));
    ASSERT_THAT(run_->Initialize(), IsOk());
    for (int64_t t = 0; t < 7; ++t) {
      TF_ASSERT_OK_AND_ASSIGN(const late_phase::Run::Feeds feeds, task_->Batch(t));
      ASSERT_THAT(run_->Step(feeds), IsOk());
    }
  }

  std::vector<double> Predict(WeightSet set, int32_t member = 0) {
    return ExpectValue(task_->Predict(run_.get(), data_.test, {set, member}));
  }

  static double Difference(const std::vector<double>& one, const std::vector<double>& other) {
    double most = one.size() == other.size() ? 0 : 1;
    for (size_t i = 0; i < one.size(); ++i) most = std::max(most, std::abs(one[i] - other[i]));
    return most;
  }

  CifarData data_;
  std::unique_ptr<Cifar> task_;
  std::unique_ptr<late_phase::Run> run_;  // testing::Test has a Run, too
};

TEST_F(TrialWeightsTest, CollapsedWeightsPredictAsTheCollapsedNetwork) {
  for (const char* batch_norm : {"mean", "affine", "reestimated"}) {
    Train(batch_norm);
    const std::vector<double> collapsed = Predict(WeightSet::kCollapsed),
                              member = Predict(WeightSet::kCurrent, 0);
    ASSERT_GT(Difference(collapsed, member), 1e-4);
    TrialWeights* trial = task_->trial_weights();
    TF_ASSERT_OK_AND_ASSIGN(const TrialWeights::Plain plain, trial->Read(run_.get(), "collapsed"));
    EXPECT_EQ(trial->trained().size(), 18);  // 4 layers with kernel, bias, scale, offset; the head
    EXPECT_EQ(plain.size(), 18 + 8);
    ASSERT_THAT(trial->Assign(run_.get(), plain), IsOk());
    EXPECT_LT(Difference(Predict(WeightSet::kCurrent, 0), collapsed), 1e-12) << batch_norm;
    // What was there is back, bit for bit.
    ASSERT_THAT(trial->Restore(run_.get()), IsOk());
    EXPECT_EQ(Predict(WeightSet::kCurrent, 0), member);
    EXPECT_EQ(Predict(WeightSet::kCollapsed), collapsed);
  }
}

// A run that estimates the statistics of its collapsed weights does so by another part of the
// graph.
TEST_F(TrialWeightsTest, StatisticsAreEstimatedForWhatIsAssigned) {
  Train("reestimated");
  const std::vector<double> collapsed = Predict(WeightSet::kCollapsed);
  TrialWeights* trial = task_->trial_weights();
  TF_ASSERT_OK_AND_ASSIGN(const TrialWeights::Plain plain, trial->Read(run_.get(), "collapsed"));
  TrialWeights::Plain weights;
  for (const std::string& name : trial->trained()) weights[name] = plain.at(name);
  ASSERT_THAT(trial->Assign(run_.get(), weights), IsOk());
  EXPECT_GT(Difference(Predict(WeightSet::kCurrent, 0), collapsed), 1e-4);  // a member's statistics
  TF_ASSERT_OK_AND_ASSIGN(const TrialWeights::Plain statistics,
                          task_->EstimateTrialStatistics(run_.get()));
  EXPECT_EQ(statistics.size(), 8);
  ASSERT_THAT(trial->Assign(run_.get(), statistics), IsOk());
  EXPECT_LT(Difference(Predict(WeightSet::kCurrent, 0), collapsed), 1e-10);
  ASSERT_THAT(trial->Restore(run_.get()), IsOk());
  EXPECT_EQ(Predict(WeightSet::kCollapsed), collapsed);
}

// Whatever a run's own way to collapse BatchNorm is, each of the three can be looked at.
TEST_F(TrialWeightsTest, EveryRunCanBeCollapsedInEveryWay) {
  const std::vector<std::string> ways = {"mean", "affine", "reestimated"};
  std::map<std::string, std::vector<double>> expected;
  for (const std::string& own : ways) {
    Train(own);
    expected[own] = Predict(WeightSet::kCollapsed);
  }
  EXPECT_GT(Difference(expected["mean"], expected["affine"]), 1e-4);
  EXPECT_GT(Difference(expected["mean"], expected["reestimated"]), 1e-4);
  for (const std::string& own : ways) {
    Train(own);
    const std::vector<double> member = Predict(WeightSet::kCurrent, 1);
    for (const std::string& way : ways) {
      CollapsedNetwork network(task_.get(), run_.get(), way);
      for (int twice = 0; twice < 2; ++twice) {
        const std::vector<double> predicted = ExpectValue(network.Predict(data_.test));
        EXPECT_LT(Difference(predicted, expected[way]), 1e-12) << own << ", " << way;
      }
    }
    EXPECT_EQ(Predict(WeightSet::kCurrent, 1), member);
    EXPECT_EQ(Predict(WeightSet::kCollapsed), expected[own]);
  }
}

TEST_F(TrialWeightsTest, OtherNamesAndShapesAreRefused) {
  Train("mean");
  const std::vector<double> before = Predict(WeightSet::kCurrent, 1);
  TrialWeights* trial = task_->trial_weights();
  EXPECT_THAT(
      trial->Assign(run_.get(), {{"bn9/scale", Zeros(tensorflow::DT_DOUBLE, {6})}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "`plain` must hold weights and statistics of the network. Received: bn9/scale"));
  EXPECT_THAT(trial->Assign(run_.get(), {{"bn0/scale", Zeros(tensorflow::DT_DOUBLE, {7})}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "`bn0/scale` must be [3,6], or a row of it. Received: shape=[7]"));
  EXPECT_THAT(trial->Restore(run_.get()), IsOk());
  EXPECT_EQ(Predict(WeightSet::kCurrent, 1), before);
}

}  // namespace
}  // namespace late_phase

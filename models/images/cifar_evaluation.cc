// The half of models/images/cifar.h that evaluates: the networks of each set of weights, BatchNorm
// statistics that are estimated for them, predictions and their metrics.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "models/images/cifar.h"
#include "models/images/classification.h"
#include "models/images/image_tensors.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Images of an evaluation at a time.
constexpr int64_t kEvaluated = 250;

Tensor SampleNoise(int64_t seed, int64_t sample, int64_t part) {
  Tensor noise(tensorflow::DT_INT64, {2});
  const auto words = DropoutSampleUniforms(seed, sample, part);
  std::copy(words.begin(), words.end(), noise.flat<int64_t>().data());
  return noise;
}

}  // namespace

// Averages over time were never trained as they are, so they have no statistics of their own.
bool Cifar::Reestimates(WeightSet set) const {
  if (set == WeightSet::kSwa) return plan_.late_phase.swa_start >= 0;
  return set == WeightSet::kCollapsed && options_.reestimate;
}

// With NAME the set's name, feeds: NAME/pixels; NAME/member for the current weights and for a
// BatchEnsemble; NAME/noise for a sample of a dropout network.
void Cifar::BuildEvaluation(WeightSet set) {
  const std::string name = WeightSetName(set);
  const Output pixels = tf_ops::Placeholder(
                   scope_.WithOpName(name, "/pixels"), dtype_,
                   tf_ops::Placeholder::Shape({-1, network_.side, network_.side, 3})),
               member = tf_ops::Placeholder(scope_.WithOpName(name, "/member"),
                                            tensorflow::DT_INT32, tf_ops::Placeholder::Shape({}));
  auto logits = [&](Statistics statistics, Output noise = Output()) -> Output {
    EvaluatedWeights weights(weights_.get(), network_, options_.parts, dtype_, set, member,
                             statistics, noise);
    const ImageNetwork network = BuildImageNetwork(scope_, network_, pixels, &weights);
    if (!scope_.ok()) return Output();
    if (statistics == Statistics::kMinibatch) {
      for (const auto& estimate : weights.estimates()) {
        estimated_[set].push_back(
            {estimate.batch_norm, estimate.mean.name(), estimate.variance.name()});
      }
    }
    return tf_ops::BiasAdd(scope_, tf_ops::MatMul(scope_, network.features, network.kernel),
                           network.bias);
  };
  const Statistics statistics = Reestimates(set) ? Statistics::kStored : Statistics::kRunning;
  const Output result = logits(statistics);
  if (scope_.ok()) logits_[set] = result.name();
  if (scope_.ok() && network_.dropout > 0) {
    const Output noise =
        tf_ops::Placeholder(scope_.WithOpName(name, "/noise").WithDevice("/device:CPU:0"),
                            tensorflow::DT_INT64, tf_ops::Placeholder::Shape({2}));
    const Output sampled = logits(statistics, noise);
    if (scope_.ok()) sampled_logits_[set] = sampled.name();
  }
  // Current weights keep their running statistics, but for what is assigned in their place.
  if (scope_.ok() && (Reestimates(set) || set == WeightSet::kCurrent)) {
    logits(Statistics::kMinibatch);
  }
}

void Cifar::BuildTrialWeights() {
  TrialWeights::Statistics statistics;
  for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (logits_.count(set) == 0) continue;
    for (const Estimated& norm : estimated_.at(WeightSet::kCurrent)) {
      for (const char* statistic : {"mean", "variance"}) {
        const std::string name = absl::StrCat(norm.name, "/", statistic);
        statistics[set][name] =
            Reestimates(set)
                ? weights_->Read(StoredStatistic(norm.name, statistic, set), WeightSet::kCurrent)
                : weights_->Read(name, set);
      }
    }
  }
  trial_weights_ = std::make_unique<TrialWeights>(weights_.get(), statistics);
}

// One pass over the training images, the minibatches of the first epoch. Each counts by its images.
// statistics: mean and variance of each BatchNorm of estimated_, [1, channels].
absl::Status Cifar::Estimate(Run* run, WeightSet set, std::vector<Tensor>* statistics) {
  TrainingBatches batches(data_->training, data_->statistics, options_.augmentation, options_.batch,
                          options_.seed);
  std::vector<std::string> fetches;
  for (const Estimated& norm : estimated_.at(set)) {
    fetches.insert(fetches.end(), {norm.mean, norm.variance});
  }
  Tensor member = Zeros(tensorflow::DT_INT32, {});
  std::vector<std::vector<double>> sums(fetches.size());
  for (int64_t t = 0; t < batches.steps_per_epoch(); ++t) {
    const auto [pixels, labels] =
        FilledTensors(dtype_, batches.Size(t), network_.side,
                      [&](auto* p, int32_t* l) { batches.Fill(t, p, l); });
    std::vector<Tensor> outputs;
    if (absl::Status status = run->Fetch({{absl::StrCat(WeightSetName(set), "/pixels"), pixels},
                                          {absl::StrCat(WeightSetName(set), "/member"), member}},
                                         fetches, &outputs);
        !status.ok()) {
      return status;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      sums[i].resize(outputs[i].NumElements());
      for (size_t j = 0; j < sums[i].size(); ++j) {
        sums[i][j] += ElementOf(outputs[i], j) * batches.Size(t);
      }
    }
  }
  statistics->clear();
  for (const std::vector<double>& sum : sums) {
    Tensor mean(dtype_, TensorShape({1, static_cast<int64_t>(sum.size())}));
    for (size_t j = 0; j < sum.size(); ++j) {
      SetElement(&mean, j, sum[j] / data_->training.count);
    }
    statistics->push_back(mean);
  }
  return absl::OkStatus();
}

absl::Status Cifar::Reestimate(Run* run, WeightSet set) {
  std::vector<Tensor> statistics;
  if (absl::Status status = Estimate(run, set, &statistics); !status.ok()) return status;
  std::map<std::string, Tensor> states;
  for (size_t i = 0; i < statistics.size(); ++i) {
    states[StoredStatistic(estimated_.at(set)[i / 2].name, i % 2 == 0 ? "mean" : "variance", set)] =
        statistics[i];
  }
  return run->Assign(states);
}

absl::Status Cifar::EstimateTrialStatistics(Run* run, TrialWeights::Plain* statistics) {
  std::vector<Tensor> estimates;
  if (absl::Status status = Estimate(run, WeightSet::kCurrent, &estimates); !status.ok()) {
    return status;
  }
  statistics->clear();
  for (size_t i = 0; i < estimates.size(); ++i) {
    const std::string& norm = estimated_.at(WeightSet::kCurrent)[i / 2].name;
    (*statistics)[norm + (i % 2 == 0 ? "/mean" : "/variance")] = estimates[i];
  }
  return absl::OkStatus();
}

const ImageView& Cifar::ImagesOf(Split split) const {
  return split == Split::kTest ? data_->test : data_->validation;
}

int64_t Cifar::MembersAt(int64_t step) const {
  return options_.batch_ensemble() ? options_.members : Task::MembersAt(step);
}

absl::Status Cifar::Predict(Run* run, const ImageView& images, const Prediction& how,
                            std::vector<double>* probabilities) {
  if (options_.batch_ensemble() && how.set != WeightSet::kCurrent) {
    std::vector<std::vector<double>> members;
    return PredictByMembers(run, images, how, &members, probabilities);
  }
  return PredictByOne(run, images, how, probabilities);
}

absl::Status Cifar::PredictTrial(Run* run, const ImageView& images,
                                 std::vector<double>* probabilities) {
  if (!options_.batch_ensemble()) {
    return PredictByOne(run, images, {WeightSet::kCurrent, 0}, probabilities);
  }
  std::vector<std::vector<double>> members;
  return PredictByMembers(run, images, {WeightSet::kCurrent}, &members, probabilities);
}

// Each member's probabilities, and their mean.
absl::Status Cifar::PredictByMembers(Run* run, const ImageView& images, Prediction how,
                                     std::vector<std::vector<double>>* members,
                                     std::vector<double>* mean) {
  const int64_t K = MembersAt(run->step());
  members->assign(K, {});
  mean->assign(images.count * data_->classes, 0);
  for (how.member = 0; how.member < K; ++how.member) {
    std::vector<double>& one = (*members)[how.member];
    if (absl::Status status = PredictByOne(run, images, how, &one); !status.ok()) return status;
    for (size_t i = 0; i < one.size(); ++i) (*mean)[i] += one[i] / K;
  }
  return absl::OkStatus();
}

absl::Status Cifar::PredictByOne(Run* run, const ImageView& images, const Prediction& how,
                                 std::vector<double>* probabilities) {
  const bool samples = how.dropout_sample >= 0;
  if (samples && network_.dropout == 0) {
    return absl::FailedPreconditionError("this run has no dropout to sample from: dropout=0");
  }
  if (how.dropout_sample >= kDropoutSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dropout_sample` must be less than ", kDropoutSamples,
                     ". Received: dropout_sample=", how.dropout_sample));
  }
  const auto& of_sets = samples ? sampled_logits_ : logits_;
  const auto logits = of_sets.find(how.set);
  if (logits == of_sets.end()) {
    return absl::FailedPreconditionError("this run has no SWA weights");
  }
  const std::string name = WeightSetName(how.set);
  Tensor which(tensorflow::DT_INT32, {});
  which.scalar<int32_t>()() = how.member;
  probabilities->resize(images.count * data_->classes);
  for (int64_t begin = 0; begin < images.count; begin += kEvaluated) {
    const int64_t count = std::min(kEvaluated, images.count - begin);
    const auto [pixels, labels] = FilledTensors(
        dtype_, count, images.side,
        [&](auto* p, int32_t* l) { FillImages(images, data_->statistics, begin, count, p, l); });
    Run::Feeds feeds = {{name + "/pixels", pixels}, {name + "/member", which}};
    if (samples) {
      feeds.push_back(
          {name + "/noise", SampleNoise(options_.seed, how.dropout_sample, begin / kEvaluated)});
    }
    std::vector<Tensor> outputs;
    if (absl::Status status = run->Evaluate(how.set, feeds, {logits->second}, &outputs);
        !status.ok()) {
      return status;
    }
    for (int64_t i = 0; i < count; ++i) {
      double* row = probabilities->data() + (begin + i) * data_->classes;
      for (int64_t j = 0; j < data_->classes; ++j) {
        row[j] = ElementOf(outputs[0], i * data_->classes + j);
      }
      Softmax(row, data_->classes, row);
    }
  }
  return absl::OkStatus();
}

Metrics Cifar::MetricsOf(const std::vector<double>& probabilities, Split split) const {
  const ImageView& images = ImagesOf(split);
  ClassificationMetrics metrics(data_->classes);
  for (int64_t i = 0; i < images.count; ++i) {
    metrics.Add(&probabilities[i * data_->classes], images.labels[i]);
  }
  return {{"accuracy", metrics.accuracy()},
          {"nll", metrics.nll()},
          {"ece", metrics.ece()},
          {"brier", metrics.brier()}};
}

absl::Status Cifar::Evaluate(Run* run, Split split, WeightSet set, int32_t member,
                             Metrics* metrics) {
  std::vector<double> probabilities;
  if (absl::Status status = Predict(run, ImagesOf(split), {set, member}, &probabilities);
      !status.ok()) {
    return status;
  }
  *metrics = MetricsOf(probabilities, split);
  return absl::OkStatus();
}

absl::Status Cifar::EvaluateMembers(Run* run, Split split, std::vector<Metrics>* members,
                                    Metrics* ensemble) {
  std::vector<std::vector<double>> probabilities;
  std::vector<double> mean;
  if (absl::Status status =
          PredictByMembers(run, ImagesOf(split), {WeightSet::kCurrent}, &probabilities, &mean);
      !status.ok()) {
    return status;
  }
  members->clear();
  for (const std::vector<double>& one : probabilities) members->push_back(MetricsOf(one, split));
  *ensemble = MetricsOf(mean, split);
  return absl::OkStatus();
}

}  // namespace late_phase

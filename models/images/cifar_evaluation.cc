// The evaluating half of models/images/cifar.h: the network for each set of weights, the BatchNorm
// statistics estimated for it, predictions and their metrics.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/images/cifar.h"
#include "models/images/classification.h"
#include "models/images/image_tensors.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Images evaluated at a time.
constexpr int64_t kEvaluated = 250;

Tensor SampleNoise(int64_t seed, int64_t sample, int64_t part) {
  Tensor noise(tensorflow::DT_INT64, {2});
  const auto words = DropoutSampleUniforms(seed, sample, part);
  std::copy(words.begin(), words.end(), noise.flat<int64_t>().data());
  return noise;
}

}  // namespace

// Averages over time were never trained as such, so they have no statistics of their own.
Statistics Cifar::EvaluationStatistics(WeightSet set) const {
  if (set == WeightSet::kSwa) return Statistics::kStored;
  if (set == WeightSet::kCurrent || options_.batch_norm_collapse == "mean") {
    return Statistics::kRunning;
  }
  if (options_.batch_norm_collapse == "reestimated") return Statistics::kStored;
  return AffineStatistics();
}

Statistics Cifar::AffineStatistics() const {
  return options_.parts.norms() && members() > 1 ? Statistics::kAffine : Statistics::kRunning;
}

bool Cifar::Reestimates(WeightSet set) const {
  const bool there = set != WeightSet::kSwa || plan_.late_phase.swa_start >= 0;
  return there && EvaluationStatistics(set) == Statistics::kStored;
}

Cifar::EvaluatedNetwork Cifar::BuildEvaluation(WeightSet set) {
  auto fed = [&](const char* what, tensorflow::DataType dtype,
                 const tensorflow::PartialTensorShape& shape, const tensorflow::Scope& scope,
                 std::string* name) -> Output {
    const auto placeholder = tf_ops::Placeholder(scope.WithOpName(WeightSetName(set), "/", what),
                                                 dtype, tf_ops::Placeholder::Shape(shape));
    if (scope.ok()) *name = placeholder.node()->name();
    return placeholder;
  };
  EvaluatedNetwork built;
  const Output pixels =
      fed("pixels", dtype_, {-1, network_.side, network_.side, 3}, scope_, &built.pixels);
  // Of the current weights, and of a BatchEnsemble.
  const Output member = fed("member", tensorflow::DT_INT32, {}, scope_, &built.member);
  auto logits = [&](Statistics statistics, Output noise = Output()) -> std::string {
    EvaluatedWeights weights(weights_.get(), network_, options_.parts, dtype_, set, member,
                             statistics, noise);
    const ImageNetwork network = BuildImageNetwork(scope_, network_, pixels, &weights);
    if (!scope_.ok()) return "";
    if (statistics == Statistics::kMinibatch) {
      for (const auto& estimate : weights.estimates()) {
        built.norms.push_back({estimate.batch_norm, estimate.channels, estimate.mean.name(),
                               estimate.variance.name()});
      }
    }
    const Output result = tf_ops::BiasAdd(
        scope_, tf_ops::MatMul(scope_, network.features, network.kernel), network.bias);
    return scope_.ok() ? result.name() : "";
  };
  const Statistics statistics = EvaluationStatistics(set);
  built.logits = logits(statistics);
  if (scope_.ok() && network_.dropout > 0) {
    const Output noise =
        fed("noise", tensorflow::DT_INT64, {2}, scope_.WithDevice("/device:CPU:0"), &built.noise);
    built.sampled_logits = logits(statistics, noise);
  }
  // Current weights keep their running statistics, except for those assigned in their place.
  if (scope_.ok() && (Reestimates(set) || set == WeightSet::kCurrent)) {
    logits(Statistics::kMinibatch);
  }
  return built;
}

void Cifar::BuildTrialWeights() {
  auto network = [&](WeightSet set, Statistics statistics) {
    TrialWeights::Network built{set, {}};
    for (const Estimated& norm : networks_.at(WeightSet::kCurrent).norms) {
      for (const char* statistic : {"mean", "variance"}) {
        const std::string name = absl::StrCat(norm.name, "/", statistic);
        built.own[name] =
            statistics == Statistics::kStored
                ? weights_->Read(StoredStatistic(norm.name, statistic, set), WeightSet::kCurrent)
                : weights_->Read(name, set);
      }
      if (statistics != Statistics::kAffine) continue;
      const AffineNorm affine(weights_.get(), norm.name);
      built.own[norm.name + "/scale"] = affine.scale;
      built.own[norm.name + "/offset"] = affine.offset;
    }
    return built;
  };
  std::map<std::string, TrialWeights::Network> networks = {
      {kCollapsedMean, network(WeightSet::kCollapsed, Statistics::kRunning)},
      {kCollapsedAffine, network(WeightSet::kCollapsed, AffineStatistics())}};
  for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (networks_.count(set) > 0)
      networks[WeightSetName(set)] = network(set, EvaluationStatistics(set));
  }
  trial_weights_ = std::make_unique<TrialWeights>(weights_.get(), networks);
}

// One pass over the training images, in the minibatches of the first epoch, weighted by their size.
// The minibatches are dealt out to the workers.
absl::StatusOr<std::vector<Tensor>> Cifar::Estimate(Run* run, WeightSet set) {
  TrainingBatches batches(data_->training, data_->statistics, options_.augmentation, options_.batch,
                          options_.seed);
  const EvaluatedNetwork& network = networks_.at(set);
  std::vector<std::string> fetches;
  int64_t numbers = 0;
  for (const Estimated& norm : network.norms) {
    fetches.insert(fetches.end(), {norm.mean, norm.variance});
    numbers += 2 * norm.channels;
  }
  const Tensor member = Zeros(tensorflow::DT_INT32, {});
  std::vector<double> sums(numbers);  // of all statistics in a row
  for (int64_t t = 0; t < batches.steps_per_epoch(); ++t) {
    if (!options_.share().Has(t)) continue;
    const auto [pixels, labels] =
        FilledTensors(dtype_, batches.Size(t), network_.side,
                      [&](auto* p, int32_t* l) { batches.Fill(t, p, l); });
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs,
                        run->Fetch({{network.pixels, pixels}, {network.member, member}}, fetches));
    double* sum = sums.data();
    for (const Tensor& output : outputs) {
      for (int64_t j = 0; j < output.NumElements(); ++j) {
        *sum++ += GetElement(output, j) * batches.Size(t);
      }
    }
  }
  TF_RETURN_IF_ERROR(run->SumOverWorkers(absl::MakeSpan(sums)));
  std::vector<Tensor> statistics;
  const double* sum = sums.data();
  for (size_t i = 0; i < fetches.size(); ++i) {
    Tensor mean(dtype_, TensorShape({1, network.norms[i / 2].channels}));
    for (int64_t j = 0; j < mean.NumElements(); ++j) {
      SetElement(&mean, j, *sum++ / data_->training.count);
    }
    statistics.push_back(mean);
  }
  return statistics;
}

absl::Status Cifar::Reestimate(Run* run, WeightSet set) {
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> statistics, Estimate(run, set));
  std::map<std::string, Tensor> states;
  for (size_t i = 0; i < statistics.size(); ++i) {
    const std::string& norm = networks_.at(set).norms[i / 2].name;
    states[StoredStatistic(norm, i % 2 == 0 ? "mean" : "variance", set)] = statistics[i];
  }
  return run->Assign(states);
}

absl::StatusOr<TrialWeights::Plain> Cifar::EstimateTrialStatistics(Run* run) {
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> estimates, Estimate(run, WeightSet::kCurrent));
  TrialWeights::Plain statistics;
  for (size_t i = 0; i < estimates.size(); ++i) {
    const std::string& norm = networks_.at(WeightSet::kCurrent).norms[i / 2].name;
    statistics[norm + (i % 2 == 0 ? "/mean" : "/variance")] = estimates[i];
  }
  return statistics;
}

const ImageView& Cifar::SplitImages(Split split) const {
  return split == Split::kTest ? data_->test : data_->validation;
}

int64_t Cifar::MembersAt(int64_t step) const {
  return options_.batch_ensemble() ? options_.members : Task::MembersAt(step);
}

absl::StatusOr<Probabilities> Cifar::Predict(Run* run, const ImageView& images,
                                             const Prediction& how) {
  if (!options_.batch_ensemble() || how.set == WeightSet::kCurrent) {
    return PredictByOne(run, images, how);
  }
  TF_ASSIGN_OR_RETURN(MemberProbabilities by_members, PredictByMembers(run, images, how));
  return std::move(by_members.mean);
}

absl::StatusOr<Probabilities> Cifar::PredictTrial(Run* run, const ImageView& images) {
  if (!options_.batch_ensemble()) return PredictByOne(run, images, {WeightSet::kCurrent, 0});
  TF_ASSIGN_OR_RETURN(MemberProbabilities by_members,
                      PredictByMembers(run, images, {WeightSet::kCurrent}));
  return std::move(by_members.mean);
}

absl::StatusOr<Cifar::MemberProbabilities> Cifar::PredictByMembers(Run* run,
                                                                   const ImageView& images,
                                                                   Prediction how) {
  const int64_t K = MembersAt(run->step());
  MemberProbabilities probabilities;
  Probabilities& mean = probabilities.mean;
  mean.assign(images.count * data_->classes, 0);
  for (how.member = 0; how.member < K; ++how.member) {
    TF_ASSIGN_OR_RETURN(Probabilities one, PredictByOne(run, images, how));
    for (size_t i = 0; i < one.size(); ++i) mean[i] += one[i] / K;
    probabilities.members.push_back(std::move(one));
  }
  return probabilities;
}

absl::StatusOr<Probabilities> Cifar::PredictByOne(Run* run, const ImageView& images,
                                                  const Prediction& how) {
  const bool samples = how.dropout_sample >= 0;
  if (samples && network_.dropout == 0) {
    return absl::FailedPreconditionError("this run has no dropout to sample from: dropout=0");
  }
  if (how.dropout_sample >= kDropoutSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("`dropout_sample` must be less than ", kDropoutSamples,
                     ". Received: dropout_sample=", how.dropout_sample));
  }
  const auto found = networks_.find(how.set);
  if (found == networks_.end()) {
    return absl::FailedPreconditionError("this run has no SWA weights");
  }
  const EvaluatedNetwork& network = found->second;
  const int64_t classes = data_->classes;
  Tensor which(tensorflow::DT_INT32, {});
  which.scalar<int32_t>()() = how.member;
  Probabilities probabilities(images.count * classes);
  TF_RETURN_IF_ERROR(run->PrepareEvaluation(how.set));
  for (int64_t begin = 0; begin < images.count; begin += kEvaluated) {
    if (!options_.share().Has(begin / kEvaluated)) continue;
    const int64_t count = std::min(kEvaluated, images.count - begin);
    const auto [pixels, labels] = FilledTensors(
        dtype_, count, images.side,
        [&](auto* p, int32_t* l) { FillImages(images, data_->statistics, begin, count, p, l); });
    Run::Feeds feeds = {{network.pixels, pixels}, {network.member, which}};
    if (samples) {
      feeds.push_back(
          {network.noise, SampleNoise(options_.seed, how.dropout_sample, begin / kEvaluated)});
    }
    TF_ASSIGN_OR_RETURN(
        const std::vector<Tensor> outputs,
        run->Evaluate(how.set, feeds, {samples ? network.sampled_logits : network.logits}));
    for (int64_t i = 0; i < count; ++i) {
      double* row = probabilities.data() + (begin + i) * classes;
      for (int64_t j = 0; j < classes; ++j) row[j] = GetElement(outputs[0], i * classes + j);
      Softmax(row, classes, row);
    }
  }
  TF_RETURN_IF_ERROR(run->SumOverWorkers(absl::MakeSpan(probabilities)));
  return probabilities;
}

Metrics Cifar::SplitMetrics(const Probabilities& probabilities, Split split) const {
  return Classify(probabilities, SplitImages(split)).ByName();
}

absl::StatusOr<Metrics> Cifar::Evaluate(Run* run, Split split, WeightSet set, int32_t member) {
  TF_ASSIGN_OR_RETURN(const Probabilities probabilities,
                      Predict(run, SplitImages(split), {set, member}));
  return SplitMetrics(probabilities, split);
}

absl::StatusOr<Task::MemberMetrics> Cifar::EvaluateMembers(Run* run, Split split) {
  TF_ASSIGN_OR_RETURN(const MemberProbabilities probabilities,
                      PredictByMembers(run, SplitImages(split), {WeightSet::kCurrent}));
  MemberMetrics metrics;
  for (const Probabilities& one : probabilities.members) {
    metrics.members.push_back(SplitMetrics(one, split));
  }
  metrics.ensemble = SplitMetrics(probabilities.mean, split);
  return metrics;
}

}  // namespace late_phase

#include "models/cifar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/classification.h"
#include "ops/softmax_cross_entropy.h"
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

// Images [begin, begin + count) of `from`.
LabelledImages Cut(const LabelledImages& from, int64_t begin, int64_t count) {
  const int64_t pixels = from.side * from.side * 3;
  LabelledImages part;
  part.count = count;
  part.side = from.side;
  part.pixels.assign(from.pixels.begin() + begin * pixels,
                     from.pixels.begin() + (begin + count) * pixels);
  part.labels.assign(from.labels.begin() + begin, from.labels.begin() + begin + count);
  return part;
}

// Calls fill(pixels, labels) with the arrays of new tensors.
template <class Fill>
std::pair<Tensor, Tensor> FilledTensors(tensorflow::DataType dtype, int64_t count, int64_t side,
                                        const Fill& fill) {
  Tensor pixels(dtype, TensorShape({count, side, side, 3})),
      labels(tensorflow::DT_INT32, TensorShape({count}));
  if (dtype == tensorflow::DT_DOUBLE) {
    fill(pixels.flat<double>().data(), labels.flat<int32_t>().data());
  } else {
    fill(pixels.flat<float>().data(), labels.flat<int32_t>().data());
  }
  return {pixels, labels};
}

// Counted are weights with their sums, slots, averages and moments, a gradient, and what is kept
// for the backward pass, with as much again for the gradients on their way.
absl::Status CheckMemory(const CifarOptions& options, const NetworkSize& size, int64_t members) {
  const double weights = size.parameters + 1.0 * members * size.member_parameters;
  const double moments = options.swag_rank > 0 ? 1.0 + options.swag_rank : 0;
  const double needed = ((6 + moments) * weights + 2 * size.kept * options.batch) *
                        (options.dtype == "float64" ? 8 : 4);
  return CheckFitsMemory(
      needed,
      absl::StrFormat("depth=%d, width=%d, batch=%d, members=%d, swag_rank=%d", options.depth,
                      options.width, options.batch, members, options.swag_rank));
}

}  // namespace

std::string CifarData::Divide(CifarImages images, int64_t train_images, int64_t validation_images,
                              int64_t test_images) {
  const int64_t most = images.training.count - validation_images;
  if (most < 1) {
    return absl::StrCat("`validation_images` must be less than ", images.training.count,
                        ", the training images. Received: validation_images=", validation_images);
  }
  if (train_images > most) {
    return absl::StrCat("`train_images` must be at most ", most,
                        ", the training images that are not held out for validation. Received: "
                        "train_images=",
                        train_images);
  }
  if (test_images > images.test.count) {
    return absl::StrCat("`test_images` must be at most ", images.test.count,
                        ". Received: test_images=", test_images);
  }
  classes = images.classes;
  test = Cut(images.test, 0, test_images > 0 ? test_images : images.test.count);
  validation = Cut(images.training, most, validation_images);
  training = Cut(images.training, 0, train_images > 0 ? train_images : most);
  statistics = StatisticsOf(training);
  return "";
}

Cifar::Cifar(const CifarOptions& options, const CifarData* data)
    : options_(options),
      data_(data),
      network_{options.network, options.depth, options.width, data->classes, data->training.side},
      dtype_(options.dtype == "float64" ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT),
      scope_(tensorflow::Scope::NewRootScope()),
      batches_(&data->training, data->statistics, options.augmentation, options.batch,
               options.seed) {
  // All weights take the same rare steps; those of members would be their own.
  if (options_.accumulates()) options_.parts = {/*batch_norm=*/false, /*head=*/false};
}

absl::Status Cifar::Create(const CifarOptions& options, const CifarData* data,
                           std::unique_ptr<Cifar>* task) {
  task->reset(new Cifar(options, data));
  return (*task)->Build();
}

absl::Status Cifar::Build() {
  if (options_.anneal_end < options_.anneal_start) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`anneal_end` must be at least `anneal_start`. Received: anneal_end=", options_.anneal_end,
        ", anneal_start=", options_.anneal_start));
  }
  absl::Status status = PlanTraining(options_, batches_.steps_per_epoch(), &plan_);
  if (status.ok()) status = SizeOf(network_, &size_);
  if (status.ok()) status = CheckMemory(options_, size_, plan_.late_phase.members);
  if (status.ok()) status = BuildTraining();
  if (!status.ok()) return status;
  for (const WeightSet set : {WeightSet::kCurrent, WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (set == WeightSet::kSwa && plan_.late_phase.swa_start < 0) continue;
    BuildEvaluation(set);
  }
  if (scope_.ok()) BuildTrialWeights();
  return scope_.status();
}

// Feeds: pixels, labels.
absl::Status Cifar::BuildTraining() {
  if (!options_.device.empty()) scope_ = scope_.WithDevice("/device:" + options_.device);
  weights_ = std::make_unique<LatePhase>(scope_, plan_.late_phase, dtype_);
  const Output pixels = tf_ops::Placeholder(
                   scope_.WithOpName("pixels"), dtype_,
                   tf_ops::Placeholder::Shape({-1, network_.side, network_.side, 3})),
               labels = tf_ops::Placeholder(scope_.WithOpName("labels"), tensorflow::DT_INT32,
                                            tf_ops::Placeholder::Shape({-1}));
  if (!scope_.ok()) return scope_.status();
  DeclaredWeights declared(weights_.get(), options_.parts, dtype_, options_.seed);
  const ImageNetwork network = BuildImageNetwork(scope_, network_, pixels, &declared);
  if (!scope_.ok()) return scope_.status();
  const ops::SoftmaxCrossEntropy entropy(scope_, network.features, network.kernel, network.bias,
                                         labels);
  const Output loss = tf_ops::Mean(scope_.WithOpName("loss"), entropy.loss, 0);
  if (!scope_.ok()) return scope_.status();
  const EpochMean epoch(weights_.get(), loss, plan_.steps_per_epoch);
  for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (!Reestimates(set)) continue;
    for (const auto& norm : declared.norms()) {
      for (const char* statistic : {"mean", "variance"}) {
        weights_->AddState(StoredStatistic(norm.name, statistic, set),
                           Zeros(dtype_, {1, norm.channels}));
      }
    }
  }
  const double steps = static_cast<double>(plan_.steps_per_epoch);
  const Schedule lr = Schedule::Epochs(steps, {{options_.anneal_start, options_.learning_rate},
                                               {options_.anneal_end, options_.final_learning_rate}})
                          .ByEpoch(steps);
  const UpdateRule sgd = UpdateRule::Momentum(lr, options_.momentum);
  Schedule member_decay = options_.weight_decay;
  if (options_.member_weight_decay >= 0 && options_.late_phase()) {
    const double t0 = static_cast<double>(plan_.late_phase.start);
    member_decay = Schedule::PiecewiseLinear({{0, options_.weight_decay},
                                              {t0, options_.weight_decay},
                                              {t0, options_.member_weight_decay}});
  }
  std::vector<tensorflow::Operation> before = declared.updates();
  before.push_back(epoch.update);
  loss_ = loss.name();
  epoch_loss_ = epoch.mean.name();
  return weights_->Minimize(loss, sgd.WithDecay(options_.weight_decay), sgd.WithDecay(member_decay),
                            before);
}

// Averages over time were never trained as they are, so they have no statistics of their own.
bool Cifar::Reestimates(WeightSet set) const {
  if (set == WeightSet::kSwa) return plan_.late_phase.swa_start >= 0;
  return set == WeightSet::kCollapsed && options_.reestimate;
}

// With NAME the set's name, feeds: NAME/pixels, and NAME/member for the current weights.
void Cifar::BuildEvaluation(WeightSet set) {
  const std::string name = WeightSetName(set);
  const Output pixels = tf_ops::Placeholder(
                   scope_.WithOpName(name, "/pixels"), dtype_,
                   tf_ops::Placeholder::Shape({-1, network_.side, network_.side, 3})),
               member = tf_ops::Placeholder(scope_.WithOpName(name, "/member"),
                                            tensorflow::DT_INT32, tf_ops::Placeholder::Shape({}));
  auto logits = [&](Statistics statistics) -> Output {
    EvaluatedWeights weights(weights_.get(), options_.parts, dtype_, set, member, statistics);
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
  const Output result = logits(Reestimates(set) ? Statistics::kStored : Statistics::kRunning);
  if (scope_.ok()) logits_[set] = result.name();
  // Current weights keep their running statistics, but for what is assigned in their place.
  if (scope_.ok() && (Reestimates(set) || set == WeightSet::kCurrent)) {
    logits(Statistics::kMinibatch);
  }
}

void Cifar::BuildTrialWeights() {
  std::map<std::string, Output> statistics;
  for (const Estimated& norm : estimated_.at(WeightSet::kCurrent)) {
    for (const char* statistic : {"mean", "variance"}) {
      const std::string name = absl::StrCat(norm.name, "/", statistic);
      statistics[name] =
          Reestimates(WeightSet::kCollapsed)
              ? weights_->Read(StoredStatistic(norm.name, statistic, WeightSet::kCollapsed),
                               WeightSet::kCurrent)
              : weights_->Read(name, WeightSet::kCollapsed);
    }
  }
  trial_weights_ = std::make_unique<TrialWeights>(weights_.get(), statistics);
}

absl::Status Cifar::MakeRun(int threads, std::unique_ptr<Run>* run) {
  // What decides over the minibatches; the rest is in the graph.
  const Augmentation& augmentation = options_.augmentation;
  const Settings settings = {{"steps_per_epoch", absl::StrCat(plan_.steps_per_epoch)},
                             {"dataset", options_.dataset},
                             {"train_images", absl::StrCat(data_->training.count)},
                             {"batch", absl::StrCat(options_.batch)},
                             {"pad", absl::StrCat(augmentation.pad)},
                             {"flip", absl::StrCat(augmentation.flip)},
                             {"cutout", absl::StrCat(augmentation.cutout)},
                             {"data_seed", absl::StrCat(options_.seed)}};
  if (absl::Status status = Run::Create(*weights_, threads, settings, run); !status.ok()) {
    return status;
  }
  (*run)->OnEvaluation([this](Run* evaluated, WeightSet set) {
    return Reestimates(set) ? Reestimate(evaluated, set) : absl::OkStatus();
  });
  return absl::OkStatus();
}

// One pass over the training images, the minibatches of the first epoch. Each counts by its images.
// statistics: mean and variance of each BatchNorm of estimated_, [1, channels].
absl::Status Cifar::Estimate(Run* run, WeightSet set, std::vector<Tensor>* statistics) {
  TrainingBatches batches(&data_->training, data_->statistics, options_.augmentation,
                          options_.batch, options_.seed);
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

absl::Status Cifar::EstimateTrialStatistics(Run* run) {
  std::vector<Tensor> statistics;
  if (absl::Status status = Estimate(run, WeightSet::kCurrent, &statistics); !status.ok()) {
    return status;
  }
  TrialWeights::Plain plain;
  for (size_t i = 0; i < statistics.size(); ++i) {
    plain[estimated_.at(WeightSet::kCurrent)[i / 2].name + (i % 2 == 0 ? "/mean" : "/variance")] =
        statistics[i];
  }
  return trial_weights_->Assign(run, plain);
}

absl::Status Cifar::Batch(int64_t t, Run::Feeds* feeds) {
  const auto [pixels, labels] = FilledTensors(dtype_, batches_.Size(t), network_.side,
                                              [&](auto* p, int32_t* l) { batches_.Fill(t, p, l); });
  *feeds = {{"pixels", pixels}, {"labels", labels}};
  return absl::OkStatus();
}

double Cifar::items_per_step() const {
  return static_cast<double>(data_->training.count) / plan_.steps_per_epoch;
}

std::vector<Split> Cifar::splits() const {
  if (data_->validation.count == 0) return {Split::kTest};
  return {Split::kValidation, Split::kTest};
}

const LabelledImages& Cifar::ImagesOf(Split split) const {
  return split == Split::kTest ? data_->test : data_->validation;
}

absl::Status Cifar::Predict(Run* run, const LabelledImages& images, const Prediction& how,
                            std::vector<double>* probabilities) {
  const auto logits = logits_.find(how.set);
  if (logits == logits_.end()) {
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
    std::vector<Tensor> outputs;
    if (absl::Status status =
            run->Evaluate(how.set, {{name + "/pixels", pixels}, {name + "/member", which}},
                          {logits->second}, &outputs);
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

Figures Cifar::FiguresOf(const std::vector<double>& probabilities, Split split) const {
  const LabelledImages& images = ImagesOf(split);
  ClassificationFigures figures(data_->classes);
  for (int64_t i = 0; i < images.count; ++i) {
    figures.Add(&probabilities[i * data_->classes], images.labels[i]);
  }
  return {{"accuracy", figures.accuracy()},
          {"nll", figures.nll()},
          {"ece", figures.ece()},
          {"brier", figures.brier()}};
}

absl::Status Cifar::Evaluate(Run* run, Split split, WeightSet set, int32_t member,
                             Figures* figures) {
  std::vector<double> probabilities;
  if (absl::Status status = Predict(run, ImagesOf(split), {set, member}, &probabilities);
      !status.ok()) {
    return status;
  }
  *figures = FiguresOf(probabilities, split);
  return absl::OkStatus();
}

absl::Status Cifar::EvaluateMembers(Run* run, Split split, std::vector<Figures>* members,
                                    Figures* ensemble) {
  const int32_t K = static_cast<int32_t>(plan_.late_phase.members);
  std::vector<double> one, mean;
  members->clear();
  for (int32_t k = 0; k < K; ++k) {
    if (absl::Status status = Predict(run, ImagesOf(split), {WeightSet::kCurrent, k}, &one);
        !status.ok()) {
      return status;
    }
    members->push_back(FiguresOf(one, split));
    mean.resize(one.size());
    for (size_t i = 0; i < one.size(); ++i) mean[i] += one[i] / K;
  }
  *ensemble = FiguresOf(mean, split);
  return absl::OkStatus();
}

}  // namespace late_phase

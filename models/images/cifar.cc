#include "models/images/cifar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/images/image_tensors.h"
#include "models/training/memory.h"
#include "ops/softmax_cross_entropy.h"
#include "optimizers/number_text.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

namespace {

double MemoryBytes(const CifarOptions& options, const CifarData& data, const NetworkSize& size,
                   const LatePhaseOptions& late_phase) {
  TrainingNumbers numbers;
  numbers.members = options.parts.all ? size.parameters : size.member_parameters;
  numbers.base = size.parameters - numbers.members;
  numbers.slots = 1;
  // A BatchEnsemble also keeps the inputs of its factors.
  const double kept = options.batch_ensemble() ? 2 * size.kept : size.kept;
  numbers.minibatch = kept * options.share().Size(options.batch);
  // Everything that was read stays in memory, even images that no split uses.
  const double pixels =
      ImageView(data.images->training).bytes() + 1.0 * ImageView(data.images->test).bytes();
  return TrainingBytes(numbers, late_phase, options.dtype == "float64" ? 8 : 4, pixels);
}

// The form of kernels that the options select; at most one may be selected.
absl::StatusOr<KernelForm> ChooseKernelForm(const CifarOptions& options) {
  std::vector<std::string> asked;
  KernelForm form = KernelForm::kPlain;
  auto consider = [&](bool on, KernelForm wanted, const char* name) {
    if (!on) return;
    asked.push_back(name);
    form = wanted;
  };
  consider(options.parts.all, KernelForm::kPlain, "late_all=true");
  consider(options.late_rank1, KernelForm::kRank1, "late_rank1=true");
  consider(options.hypernetwork, KernelForm::kHypernetwork, "hypernetwork=true");
  consider(options.batch_ensemble(), KernelForm::kBatchEnsemble, "model=batch-ensemble");
  if (asked.size() < 2) return form;
  return absl::InvalidArgumentError(
      absl::StrCat("at most one of `late_all`, `late_rank1`, `hypernetwork` and the model "
                   "batch-ensemble must be chosen. Received: ",
                   absl::StrJoin(asked, ", ")));
}

// Annealed linearly, or in steps.
Schedule LearningRate(const CifarOptions& options, int64_t steps_per_epoch) {
  const double steps = static_cast<double>(steps_per_epoch);
  double rate = options.learning_rate;
  std::vector<Schedule::Knot> knots = {{0, rate}};
  for (const int64_t epoch : options.drop_epochs) {
    if (epoch == 0) continue;
    const double at = static_cast<double>(epoch);
    knots.push_back({at, rate});
    knots.push_back({at, rate *= options.drop_factor});
  }
  if (knots.size() == 1) {
    knots = {{options.anneal_start, rate}, {options.anneal_end, options.final_learning_rate}};
  }
  return Schedule::Epochs(steps, knots).ByEpoch(steps);
}

}  // namespace

absl::StatusOr<CifarData> CifarData::Divide(std::shared_ptr<const CifarImages> all,
                                            int64_t train_images, int64_t validation_images,
                                            int64_t test_images) {
  const ImageView for_training = all->training, for_test = all->test;
  const int64_t most = for_training.count - validation_images;
  if (most < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`validation_images` must be less than ", for_training.count,
                     ", the training images. Received: validation_images=", validation_images));
  }
  if (train_images > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`train_images` must be at most ", most,
        ", the training images that are not held out for validation. Received: train_images=",
        train_images));
  }
  if (test_images > for_test.count) {
    return absl::InvalidArgumentError(absl::StrCat("`test_images` must be at most ", for_test.count,
                                                   ". Received: test_images=", test_images));
  }
  CifarData data;
  data.classes = all->classes;
  data.test = for_test.Part(0, test_images > 0 ? test_images : for_test.count);
  data.validation = for_training.Part(most, validation_images);
  data.training = for_training.Part(0, train_images > 0 ? train_images : most);
  data.statistics = ComputeStatistics(data.training);
  data.images = std::move(all);
  return data;
}

Cifar::Cifar(const CifarOptions& options, const CifarData* data)
    : options_(options),
      data_(data),
      network_{options.network, options.depth, options.width, data->classes, data->training.side},
      dtype_(options.dtype == "float64" ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT),
      scope_(tensorflow::Scope::NewRootScope()),
      batches_(data->training, data->statistics, options.augmentation, options.batch,
               options.seed) {}

absl::StatusOr<std::unique_ptr<Cifar>> Cifar::Create(const CifarOptions& options,
                                                     const CifarData* data) {
  std::unique_ptr<Cifar> task(new Cifar(options, data));
  TF_RETURN_IF_ERROR(task->Build());
  return task;
}

absl::Status Cifar::Build() {
  if (const std::string complaint = batches_.Check(options_.share()); !complaint.empty()) {
    return absl::InvalidArgumentError(complaint);
  }
  TF_RETURN_IF_ERROR(Plan());
  TF_RETURN_IF_ERROR(BuildTraining());
  for (const WeightSet set : {WeightSet::kCurrent, WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (set == WeightSet::kSwa && plan_.late_phase.swa_start < 0) continue;
    networks_[set] = BuildEvaluation(set);
  }
  if (scope_.ok()) BuildTrialWeights();
  return scope_.status();
}

absl::Status Cifar::Plan() {
  if (options_.anneal_end < options_.anneal_start) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`anneal_end` must be at least `anneal_start`. Received: anneal_end=", options_.anneal_end,
        ", anneal_start=", options_.anneal_start));
  }
  network_.dropout = options_.dropout;
  network_.alpha = options_.alpha;
  network_.shakedrop = options_.shakedrop;
  network_.ensemble = options_.members;
  TF_ASSIGN_OR_RETURN(network_.kernels, ChooseKernelForm(options_));
  // A BatchEnsemble's members share BatchNorm, and have their own rows of everything else without
  // being late-phase. Where gradients are accumulated, all weights take the same infrequent steps.
  const bool accumulates = options_.at_t0() == AtT0::kAccumulate;
  if (options_.batch_ensemble() || accumulates) options_.parts = {false, false, false};
  // The mean gradient of K minibatches has 1/K of their variance, and so has SGD at 1/K of the
  // rate.
  if (options_.late_rate == 0) options_.late_rate = 1.0 / options_.members;
  if (accumulates && network_.kernels != KernelForm::kPlain) {
    return absl::InvalidArgumentError(
        "the control accumulation must have plain kernels, whose weights have no members. "
        "Received: late_rank1 or hypernetwork");
  }
  TF_ASSIGN_OR_RETURN(plan_, PlanTraining(options_, batches_.steps_per_epoch()));
  TF_ASSIGN_OR_RETURN(size_, MeasureNetwork(network_));
  plan_.bytes = MemoryBytes(options_, *data_, size_, plan_.late_phase);
  return CheckFitsMemory(
      plan_.bytes,
      absl::StrFormat("depth=%d, width=%d, batch=%d, members=%d, swag_rank=%d", options_.depth,
                      options_.width, options_.batch, members(), options_.swag_rank));
}

void Cifar::DeclareStoredStatistics(const DeclaredWeights& declared) {
  for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (!Reestimates(set)) continue;
    for (const auto& norm : declared.norms()) {
      for (const char* statistic : {"mean", "variance"}) {
        weights_->AddState(StoredStatistic(norm.name, statistic, set),
                           InitialValue::Zero(dtype_, {1, norm.channels}));
      }
    }
  }
}

Schedule Cifar::MemberDecay() const {
  if (options_.member_weight_decay < 0 || !options_.late_phase()) return options_.weight_decay;
  const double t0 = static_cast<double>(plan_.late_phase.start);
  return Schedule::PiecewiseLinear({{0, options_.weight_decay},
                                    {t0, options_.weight_decay},
                                    {t0, options_.member_weight_decay}});
}

absl::Status Cifar::BuildTraining() {
  if (!options_.device.empty()) scope_ = scope_.WithDevice("/device:" + options_.device);
  weights_ = std::make_unique<LatePhase>(scope_, plan_.late_phase, dtype_, options_.workers);
  const Output pixels = tf_ops::Placeholder(
                   scope_.WithOpName("pixels"), dtype_,
                   tf_ops::Placeholder::Shape({-1, network_.side, network_.side, 3})),
               labels = tf_ops::Placeholder(scope_.WithOpName("labels"), tensorflow::DT_INT32,
                                            tf_ops::Placeholder::Shape({-1}));
  if (!scope_.ok()) return scope_.status();
  DeclaredWeights declared(weights_.get(), network_, options_.parts, dtype_, options_.seed,
                           options_.joint_batch_norm);
  const ImageNetwork network = BuildImageNetwork(scope_, network_, pixels, &declared);
  if (!scope_.ok()) return scope_.status();
  const ops::SoftmaxCrossEntropy entropy(scope_, network.features, network.kernel, network.bias,
                                         labels);
  const Output loss = tf_ops::Mean(scope_.WithOpName("loss"), entropy.loss, 0);
  if (!scope_.ok()) return scope_.status();
  const std::vector<Output> joint = weights_->MeanOverWorkers({loss});
  if (!scope_.ok()) return scope_.status();
  const EpochMean epoch(weights_.get(), joint[0], plan_.steps_per_epoch);
  DeclareStoredStatistics(declared);
  pixels_ = pixels.node()->name();
  labels_ = labels.node()->name();
  loss_ = joint[0].name();
  epoch_loss_ = epoch.mean.name();

  const UpdateRule sgd =
      UpdateRule::Momentum(LearningRate(options_, plan_.steps_per_epoch), options_.momentum);
  std::vector<tensorflow::Operation> before = declared.updates();
  before.push_back(epoch.update);
  return weights_->Minimize(loss, sgd.WithDecay(options_.weight_decay),
                            sgd.WithDecay(MemberDecay()), before);
}

absl::StatusOr<std::unique_ptr<Run>> Cifar::MakeRun(int threads) {
  // What determines the minibatches; the rest is in the graph.
  const Augmentation& augmentation = options_.augmentation;
  Settings settings = {{"steps_per_epoch", absl::StrCat(plan_.steps_per_epoch)},
                       {"dataset", options_.dataset},
                       {"train_images", absl::StrCat(data_->training.count)},
                       {"batch", absl::StrCat(options_.batch)},
                       {"pad", absl::StrCat(augmentation.pad)},
                       {"flip", absl::StrCat(augmentation.flip)},
                       {"cutout", absl::StrCat(augmentation.cutout)},
                       {"data_seed", absl::StrCat(options_.seed)}};
  if (network_.dropout > 0) settings.push_back({"dropout", NumberText(network_.dropout)});
  if (network_.name == "pyramidnet") {
    settings.push_back({"shakedrop", NumberText(network_.shakedrop)});
  }
  TF_ASSIGN_OR_RETURN(std::unique_ptr<Run> run, Run::Create(*weights_, threads, settings));
  run->OnEvaluation([this](Run* evaluated, WeightSet set) {
    return Reestimates(set) ? Reestimate(evaluated, set) : absl::OkStatus();
  });
  return run;
}

absl::StatusOr<Run::Feeds> Cifar::Batch(int64_t t) {
  const Share share = options_.share();
  const auto [pixels, labels] =
      FilledTensors(dtype_, share.Size(batches_.Size(t)), network_.side,
                    [&](auto* p, int32_t* l) { batches_.Fill(t, p, l, share); });
  return Run::Feeds{{pixels_, pixels}, {labels_, labels}};
}

double Cifar::items_per_step() const {
  return static_cast<double>(data_->training.count) / plan_.steps_per_epoch;
}

std::vector<Split> Cifar::splits() const {
  if (data_->validation.count == 0) return {Split::kTest};
  return {Split::kValidation, Split::kTest};
}

}  // namespace late_phase

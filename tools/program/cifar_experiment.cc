#include "tools/program/cifar_experiment.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/program/digest.h"
#include "tools/program/image_evaluation.h"
#include "tools/program/session.h"

namespace late_phase {

const ExperimentInfo& CifarExperiment::info() const {
  static const auto* const info = new ExperimentInfo{
      /*name=*/"cifar",
      /*description=*/
      "Trains the paper's image networks on CIFAR, plain and with late-phase weights.",
      /*data_help=*/
      "CIFAR's binary version: its folder, its .tar.gz, or a folder that holds either; default: "
      "LATE_PHASE_DATA, then the cache",
      /*preset=*/"convnet-quick",
      /*items=*/"images",
      /*models=*/
      {{"base", "", "all"},
       {"lower-rate", "base", "all-controls"},
       {"accumulation", "base", "all"},
       {"late-phase", "base", "all"},
       {"batch-ensemble", "", ""}},
      /*progress=*/ProgressColumn("loss"),
      /*columns=*/
      {MetricColumn("accuracy"), MetricColumn("nll"), MetricColumn("ece"), MetricColumn("brier")},
      /*network_settings=*/{"dataset", "network", "depth", "width"}};
  return *info;
}

namespace {

bool IsBelowOne(double x) { return x >= 0 && x < 1; }

SettingList DataAndNetworkSettings(CifarOptions* o) {
  return {
      Choice("dataset", "the data set", {"cifar10", "cifar100"}, &o->dataset),
      Integer("train_images", "use only the first N training images; 0: all", 0, kMany,
              &o->train_images),
      Integer("validation_images", "hold out the last N training images", 0, kMany,
              &o->validation_images),
      Integer("test_images", "use only the first N test images; 0: all", 0, kMany, &o->test_images),
      Choice("network", "wide residual network, LeNet-5 with BatchNorm, or PyramidNet",
             {"wrn", "convnet", "pyramidnet"}, &o->network),
      Integer("depth", "layers of a WRN: 10, 16, 22, …; of a PyramidNet: 11, 20, 29, …", 10, 1000,
              &o->depth),
      Integer("width", "width of a WRN, in multiples of 16 channels", 1, 1000, &o->width),
      Real(
          "alpha", "channels that a PyramidNet's blocks add in all", "a number in [0, 10000]",
          [](double x) { return x >= 0 && x <= 10000; }, &o->alpha),
      Real(
          "shakedrop", "death rate of a PyramidNet's last block; 0: no ShakeDrop",
          "a number in [0, 1]", [](double x) { return x >= 0 && x <= 1; }, &o->shakedrop),
      Real("dropout",
           "probability of dropping an activation: in a WRN's blocks, after a ConvNet's dense "
           "layers",
           "a number in [0, 1)", IsBelowOne, &o->dropout),
      Boolean("hypernetwork", "a hypernetwork makes a WRN's kernels; its embeddings are late-phase",
              &o->hypernetwork),
      Boolean("late_batch_norm", "BatchNorm is late-phase", &o->parts.batch_norm),
      Boolean("late_head", "the last layer is late-phase", &o->parts.head),
      Boolean("late_rank1", "hidden kernels are scaled by rank-1 factors, which are late-phase",
              &o->late_rank1),
      Boolean("late_all", "every weight is late-phase", &o->parts.all),
  };
}

SettingList TrainingSettings(CifarOptions* o) {
  return {
      Integer("batch", "images per minibatch", 1, 1000000, &o->batch),
      Integer("pad", "pixels of padding around an image before it is cropped at random", 0, 1000,
              &o->augmentation.pad),
      Boolean("flip", "images are mirrored at random", &o->augmentation.flip),
      Integer("cutout", "side of the square that is blanked out at random; 0: none", 0, 1000,
              &o->augmentation.cutout),
      Positive("learning_rate", "learning rate of SGD until anneal_start", &o->learning_rate),
      Positive("final_learning_rate",
               "learning rate from anneal_end on; in between it falls linearly from epoch to epoch",
               &o->final_learning_rate),
      NotNegative("anneal_start", "epoch at which annealing starts", &o->anneal_start),
      NotNegative("anneal_end", "epoch at which annealing ends", &o->anneal_end),
      AscendingIntegers(
          "drop_epochs",
          "epochs at which the rate is multiplied by drop_factor, instead of annealing; 0: none", 0,
          kMany, &o->drop_epochs),
      Positive("drop_factor", "factor on the learning rate at each of drop_epochs",
               &o->drop_factor),
      Real("momentum", "Nesterov momentum of SGD", "a number in [0, 1)", IsBelowOne, &o->momentum),
      NotNegative("weight_decay", "weight decay of SGD", &o->weight_decay),
      Real(
          "member_weight_decay",
          "weight decay of the members once they are spawned; -1: same as weight_decay",
          "a number >= 0, or -1", [](double x) { return x >= 0 || x == -1; },
          &o->member_weight_decay),
      Formerly("reestimate", {{"false", "mean"}, {"true", "reestimated"}},
               Choice("batch_norm_collapse",
                      "how BatchNorm is averaged over members: \"mean\" of weights and statistics, "
                      "\"affine\" mean of their outputs, \"reestimated\" mean of weights with "
                      "statistics re-estimated, as SWA's always are",
                      {"mean", "affine", "reestimated"}, &o->batch_norm_collapse)),
      Boolean("joint_batch_norm",
              "with several workers, BatchNorm's statistics in training are those of the whole "
              "minibatch instead of each worker's share: exact, and slow",
              &o->joint_batch_norm),
  };
}

}  // namespace

SettingList CifarExperiment::OwnSettings() {
  SettingList settings = DataAndNetworkSettings(&options_);
  const SettingList training = TrainingSettings(&options_);
  settings.insert(settings.end(), training.begin(), training.end());
  return settings;
}

std::unique_ptr<Experiment> CifarExperiment::Copy() const {
  return std::make_unique<CifarExperiment>(*this);
}

void CifarExperiment::OpenData(const std::string& path, DataFiles* files) {
  const char* elsewhere = std::getenv("LATE_PHASE_DATA");
  std::shared_ptr<const CifarImages> images =
      files->Cifar(options_.dataset == "cifar10" ? CifarSet::kCifar10 : CifarSet::kCifar100,
                   path.empty() && elsewhere != nullptr ? elsewhere : path);
  data_ = std::make_shared<const CifarData>(Require(CifarData::Divide(
      std::move(images), options_.train_images, options_.validation_images, options_.test_images)));
}

std::unique_ptr<Task> CifarExperiment::MakeTask() const {
  return Require(Cifar::Create(options_, data_.get()));
}

Evaluation CifarExperiment::Evaluate(const std::vector<EvaluatedRun>& runs,
                                     const EvaluationOptions& options) const {
  return EvaluateImages(runs, options);
}

std::string CifarExperiment::DataDigest() const {
  Digest digest;
  for (const ImageView& images : {data_->training, data_->validation, data_->test}) {
    digest.Add(images.pixels, images.bytes());
    for (int64_t i = 0; i < images.count; ++i) {
      const auto label = static_cast<uint8_t>(images.labels[i]);
      digest.Add(&label, 1);
    }
  }
  return digest.Text();
}

std::string CifarExperiment::Advice() const {
  return absl::StrCat("Start again with a lower --learning-rate (now ", options_.learning_rate,
                      ").");
}

}  // namespace late_phase

// The paper's CIFAR experiments as a Task: an image network trained by SGD with Nesterov momentum,
// with members of its BatchNorm and last layer, measured by accuracy, NLL and calibration.
//
// Three models: "base" has one member; "late-phase" is base until T0 and has K members from then
// on; "batch-ensemble" has K members from the start, among which each minibatch is divided. The
// controls "accumulation" and "lower-rate" of base: models/training/recipe.h.
#ifndef LATE_PHASE_MODELS_IMAGES_CIFAR_H_
#define LATE_PHASE_MODELS_IMAGES_CIFAR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/images/cifar_images.h"
#include "models/images/image_batches.h"
#include "models/images/networks/image_network.h"
#include "models/images/networks/image_weights.h"
#include "models/images/trial_weights.h"
#include "models/training/recipe.h"
#include "models/training/trainer.h"
#include "optimizers/late_phase.h"

namespace late_phase {

struct CifarOptions : Recipe {
  std::string dataset = "cifar10";      // or cifar100
  int64_t train_images = 0;             // the first of the training set; 0: all
  int64_t validation_images = 0;        // the last of the training set, held out
  int64_t test_images = 0;              // the first of the test set; 0: all
  std::string network = "wrn";          // or convnet, pyramidnet
  int64_t depth = 28, width = 10;       // of a WRN; a PyramidNet has a depth
  double alpha = 200, shakedrop = 0.5;  // of a PyramidNet
  double dropout = 0;
  LatePhaseParts parts;       // which have members
  bool late_rank1 = false;    // rank-1 factors of the kernels have members, too
  bool hypernetwork = false;  // it makes the kernels of a WRN; its embeddings have members
  int64_t batch = 128;
  Augmentation augmentation;
  // Constant until anneal_start, then linear from epoch to epoch down to final_learning_rate, which
  // it reaches at anneal_end.
  double learning_rate = 0.1, final_learning_rate = 0.001;
  double anneal_start = 100, anneal_end = 180;  // epochs
  // Or in steps: multiplied by drop_factor at each of these epochs; 0 alone: annealed.
  std::vector<int64_t> drop_epochs = {0};
  double drop_factor = 0.2;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  double member_weight_decay = -1;  // of the members, from T0 on; -1: same as weight_decay
  // How BatchNorm is collapsed: "mean" averages scale, offset and statistics; "affine" averages
  // the members' maps (AffineNorm); "reestimated" is like "mean", but re-estimates the statistics
  // for the averaged weights. Those of SWA are always re-estimated.
  std::string batch_norm_collapse = "mean";
  // With several workers: BatchNorm's statistics in training are those of the whole minibatch,
  // instead of each worker's share. Exact and slow.
  bool joint_batch_norm = false;

  bool batch_ensemble() const { return model == "batch-ensemble"; }
};

// The images of a run, in splits.
struct CifarData {
  int64_t classes = 0;
  std::shared_ptr<const CifarImages> images;  // which other runs may share
  ImageView training, validation, test;       // of them
  ChannelStatistics statistics;               // of the training images

  static absl::StatusOr<CifarData> Divide(std::shared_ptr<const CifarImages> all,
                                          int64_t train_images, int64_t validation_images,
                                          int64_t test_images);
};

// Networks that trial_weights() can read besides those named after a weight set: the collapsed one,
// whatever CifarOptions::batch_norm_collapse is.
inline constexpr char kCollapsedMean[] = "collapsed-mean", kCollapsedAffine[] = "collapsed-affine";

using Probabilities = std::vector<double>;  // [images, classes]

// Which network makes a prediction.
struct Prediction {
  WeightSet set = WeightSet::kCollapsed;
  int32_t member = 0;  // of kCurrent
  // If not negative, dropout stays on in the prediction, with the masks of this sample: MC-dropout.
  int64_t dropout_sample = -1;
};

class Cifar : public Task {
 public:
  // Builds the graph. The data must outlive the task.
  static absl::StatusOr<std::unique_ptr<Cifar>> Create(const CifarOptions& options,
                                                       const CifarData* data);

  const TrainPlan& plan() const override { return plan_; }
  int64_t MembersAt(int64_t step) const override;
  int64_t parameters() const override { return size_.parameters; }
  double items_per_step() const override;
  std::vector<Split> splits() const override;
  Split watched() const override { return splits().front(); }
  std::string loss() const override { return loss_; }
  std::string epoch_loss() const override { return epoch_loss_; }
  absl::StatusOr<std::unique_ptr<Run>> MakeRun(int threads) override;
  absl::StatusOr<Run::Feeds> Batch(int64_t t) override;
  const LatePhase& weights() const override { return *weights_; }
  Metrics LossMetrics(double loss) const override { return {{"loss", loss}}; }
  absl::StatusOr<Metrics> Evaluate(Run* run, Split split, WeightSet set, int32_t member) override;
  absl::StatusOr<MemberMetrics> EvaluateMembers(Run* run, Split split) override;

  // The probabilities of any images. A BatchEnsemble is not one network: except for kCurrent, its
  // prediction is the mean of its members'.
  absl::StatusOr<Probabilities> Predict(Run* run, const ImageView& images, const Prediction& how);

  // For evaluating other weights in place of this network's.
  TrialWeights* trial_weights() { return trial_weights_.get(); }
  absl::StatusOr<Probabilities> PredictTrial(Run* run, const ImageView& images);
  // The BatchNorm statistics of the assigned weights, estimated in one pass over the training
  // images; they are to be assigned as well.
  absl::StatusOr<TrialWeights::Plain> EstimateTrialStatistics(Run* run);

 private:
  // A BatchNorm whose statistics are estimated from minibatches.
  struct Estimated {
    std::string name;  // of the BatchNorm
    int64_t channels;
    std::string mean, variance;  // outputs
  };
  // The network with one set of weights: what is fed, and what is fetched.
  struct EvaluatedNetwork {
    std::string pixels, member;
    std::string noise;                   // of a dropout network
    std::string logits, sampled_logits;  // sampled: with MC-dropout
    std::vector<Estimated> norms;
  };
  // Each member's probabilities, and their mean.
  struct MemberProbabilities {
    std::vector<Probabilities> members;
    Probabilities mean;
  };

  Cifar(const CifarOptions& options, const CifarData* data);
  [[nodiscard]] absl::Status Build();
  [[nodiscard]] absl::Status Plan();
  [[nodiscard]] absl::Status BuildTraining();
  EvaluatedNetwork BuildEvaluation(WeightSet set);
  void BuildTrialWeights();
  // States for the estimated statistics.
  void DeclareStoredStatistics(const DeclaredWeights& declared);
  // Of the members.
  Schedule MemberDecay() const;

  // Where the statistics of a set's network come from, and whether they are estimated.
  Statistics EvaluationStatistics(WeightSet set) const;
  // kAffine if BatchNorm has members to be averaged, else what is the same: kRunning.
  Statistics AffineStatistics() const;
  bool Reestimates(WeightSet set) const;
  [[nodiscard]] absl::Status Reestimate(Run* run, WeightSet set);
  // Mean and variance of each BatchNorm of the set's network, [1, channels].
  absl::StatusOr<std::vector<tensorflow::Tensor>> Estimate(Run* run, WeightSet set);
  absl::StatusOr<Probabilities> PredictByOne(Run* run, const ImageView& images,
                                             const Prediction& how);
  absl::StatusOr<MemberProbabilities> PredictByMembers(Run* run, const ImageView& images,
                                                       Prediction how);
  const ImageView& SplitImages(Split split) const;
  Metrics SplitMetrics(const Probabilities& probabilities, Split split) const;

  CifarOptions options_;
  const CifarData* data_;
  ImageNetworkOptions network_;
  NetworkSize size_;
  TrainPlan plan_;
  tensorflow::DataType dtype_;
  tensorflow::Scope scope_;
  std::unique_ptr<LatePhase> weights_;
  TrainingBatches batches_;        // of Batch
  std::string pixels_, labels_;    // fed in training
  std::string loss_, epoch_loss_;  // fetched
  std::map<WeightSet, EvaluatedNetwork> networks_;
  std::unique_ptr<TrialWeights> trial_weights_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_CIFAR_H_

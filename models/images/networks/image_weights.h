// Where an image network's weights come from: declared for training, read for an evaluation.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_WEIGHTS_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/images/networks/layer_weights.h"
#include "optimizers/late_phase.h"

namespace late_phase {

// Which parts of the network have members.
struct LatePhaseParts {
  bool batch_norm = true, head = true;
  bool all = false;  // every weight: the members are whole networks

  bool norms() const { return batch_norm || all; }  // those of BatchNorm
};

// Declares every weight it is asked for. Initial values are functions of the seed and of how many
// weights were asked for before; the numbers of random layers are functions of the seed and t.
class DeclaredWeights : public LayerWeights {
 public:
  // joint_norms: with several workers, BatchNorm's statistics are those of all of them together
  // (models/images/networks/joint_batch_norm.h).
  DeclaredWeights(LatePhase* late_phase, const ImageNetworkOptions& network,
                  const LatePhaseParts& parts, tensorflow::DataType dtype, int64_t seed,
                  bool joint_norms = false);

  // Running statistics are the states NAME/mean and NAME/variance, a row per member.
  tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x, int64_t channels,
                               Activation activation) override;

  // The operations that write the running statistics back, averaged over the workers; to be passed
  // to Minimize. Call once, when the network is built.
  std::vector<tensorflow::Operation> updates();

  struct Norm {
    std::string name;
    int64_t channels;
  };
  const std::vector<Norm>& norms() const { return norms_; }

 protected:
  tensorflow::Output Weight(Part part, const std::string& name,
                            const tensorflow::TensorShape& shape, const Initial& initial) override;
  tensorflow::Output ImageMembers(tensorflow::Output x) override { return DividedAmongMembers(x); }

 private:
  // A BatchNorm's variable that is to get a new row.
  struct Running {
    tensorflow::Output handle, member, row;
  };
  void KeepRow(tensorflow::Output handle, tensorflow::Output member, tensorflow::Output row);
  InitialValue Start(const tensorflow::TensorShape& shape, const Initial& initial);
  void Orthogonalize(const Initial& initial, tensorflow::Tensor* columns);

  LatePhase* late_phase_;
  LatePhaseParts parts_;
  tensorflow::DataType dtype_;
  int64_t seed_;
  int64_t count_ = 0;
  std::map<std::string, std::vector<std::vector<double>>> columns_;  // of each group, of length 1
  bool joint_norms_;
  std::vector<tensorflow::Operation> updates_;
  std::vector<Running> running_;  // of several workers, to be averaged
  std::vector<Norm> norms_;
};

// Where an evaluation's BatchNorm statistics come from.
enum class Statistics {
  kRunning,   // as training left them: the member's, or the members' mean
  kAffine,    // the same, with the scale and offset of an AffineNorm
  kStored,    // the states NAME/mean/SET and NAME/variance/SET
  kMinibatch  // those of the current images, for estimating what is to be stored
};

// The scale and offset, [1, channels], with which a single BatchNorm that has the members' mean
// statistics μ̄ and σ̄² outputs the mean of the members' own outputs, x -> a x + b, where
//   a = mean_k γ_k / √(σ²_k + ε),   b = mean_k (β_k − μ_k γ_k / √(σ²_k + ε)),
//   scale = a √(σ̄² + ε),            offset = b + a μ̄.
struct AffineNorm {
  AffineNorm(LatePhase* late_phase, const std::string& batch_norm);
  tensorflow::Output scale, offset;
};

// The name of a state of Statistics::kStored, [1, channels].
std::string StoredStatistic(const std::string& batch_norm, const char* statistic, WeightSet set);

// Reads the weights of a set; `member` is used by kCurrent, and by a BatchEnsemble, whose images
// all belong to it. With `noise`, int64 [2], random layers draw from it; without, they use their
// mean.
class EvaluatedWeights : public LayerWeights {
 public:
  EvaluatedWeights(LatePhase* late_phase, const ImageNetworkOptions& network,
                   const LatePhaseParts& parts, tensorflow::DataType dtype, WeightSet set,
                   tensorflow::Output member, Statistics statistics,
                   tensorflow::Output noise = tensorflow::Output())
      : LayerWeights(late_phase->scope(), network, dtype, noise),
        late_phase_(late_phase),
        parts_(parts),
        dtype_(dtype),
        set_(set),
        member_(member),
        statistics_(statistics) {}

  tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x, int64_t channels,
                               Activation activation) override;

  // Of kMinibatch: the mean and the unbiased variance of each BatchNorm's input, [channels].
  struct Estimate {
    std::string batch_norm;
    int64_t channels;
    tensorflow::Output mean, variance;
  };
  const std::vector<Estimate>& estimates() const { return estimates_; }

 protected:
  tensorflow::Output Weight(Part part, const std::string& name,
                            const tensorflow::TensorShape& shape, const Initial& initial) override;
  tensorflow::Output ImageMembers(tensorflow::Output x) override;

 private:
  tensorflow::Output Row(const std::string& name);

  LatePhase* late_phase_;
  LatePhaseParts parts_;
  tensorflow::DataType dtype_;
  WeightSet set_;
  tensorflow::Output member_;
  Statistics statistics_;
  std::vector<Estimate> estimates_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_IMAGE_WEIGHTS_H_

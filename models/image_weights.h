// Where an image network's weights come from: declared for training, read for an evaluation.
#ifndef LATE_PHASE_MODELS_IMAGE_WEIGHTS_H_
#define LATE_PHASE_MODELS_IMAGE_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/image_network.h"
#include "optimizers/late_phase.h"

namespace late_phase {

// Which parts of the network have members.
struct LatePhaseParts {
  bool batch_norm = true, head = true;
};

// Declares every weight it is asked for. Initial values are functions of the seed and of how many
// were asked for before.
class DeclaredWeights : public NetworkWeights {
 public:
  DeclaredWeights(LatePhase* late_phase, const LatePhaseParts& parts, tensorflow::DataType dtype,
                  int64_t seed)
      : late_phase_(late_phase), parts_(parts), dtype_(dtype), seed_(seed) {}

  tensorflow::Output Weight(const std::string& name, const tensorflow::TensorShape& shape,
                            int64_t fan_in) override;
  tensorflow::Output HeadWeight(const std::string& name, const tensorflow::TensorShape& shape,
                                int64_t fan_in) override;
  // Running statistics are the states NAME/mean and NAME/variance, a row per member.
  tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x, int64_t channels,
                               Activation activation) override;

  // Writing the minibatch's running statistics back; to be passed to Minimize.
  const std::vector<tensorflow::Operation>& updates() const { return updates_; }

  struct Norm {
    std::string name;
    int64_t channels;
  };
  const std::vector<Norm>& norms() const { return norms_; }

 private:
  tensorflow::Tensor Initial(const tensorflow::TensorShape& shape, int64_t fan_in);

  LatePhase* late_phase_;
  LatePhaseParts parts_;
  tensorflow::DataType dtype_;
  int64_t seed_;
  int64_t count_ = 0;
  std::vector<tensorflow::Operation> updates_;
  std::vector<Norm> norms_;
};

// Where an evaluation's BatchNorm statistics come from.
enum class Statistics {
  kRunning,   // what training left: of the member, or the members' mean
  kStored,    // the states NAME/mean/SET and NAME/variance/SET
  kMinibatch  // of the images at hand: to estimate what is to be stored
};

// The name of a state of Statistics::kStored, [1, channels].
std::string StoredStatistic(const std::string& batch_norm, const char* statistic, WeightSet set);

// Reads the weights of a set; `member` is used by kCurrent.
class EvaluatedWeights : public NetworkWeights {
 public:
  EvaluatedWeights(LatePhase* late_phase, const LatePhaseParts& parts, tensorflow::DataType dtype,
                   WeightSet set, tensorflow::Output member, Statistics statistics)
      : late_phase_(late_phase),
        parts_(parts),
        dtype_(dtype),
        set_(set),
        member_(member),
        statistics_(statistics) {}

  tensorflow::Output Weight(const std::string& name, const tensorflow::TensorShape& shape,
                            int64_t fan_in) override;
  tensorflow::Output HeadWeight(const std::string& name, const tensorflow::TensorShape& shape,
                                int64_t fan_in) override;
  tensorflow::Output BatchNorm(const std::string& name, tensorflow::Output x, int64_t channels,
                               Activation activation) override;

  // Of kMinibatch: the mean and the unbiased variance of each BatchNorm's input, [channels].
  struct Estimate {
    std::string batch_norm;
    tensorflow::Output mean, variance;
  };
  const std::vector<Estimate>& estimates() const { return estimates_; }

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

#endif  // LATE_PHASE_MODELS_IMAGE_WEIGHTS_H_

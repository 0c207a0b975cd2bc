// The layers of an image network in terms of single weights: every form of kernel is written once,
// here, for weights that are declared, read (models/images/networks/image_weights.h) or only
// counted.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_LAYER_WEIGHTS_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_LAYER_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "models/images/networks/image_network.h"

namespace late_phase {

// The role of a weight in the network, which determines members and weight decay.
enum class Part {
  kBody,       // kernels and biases
  kHead,       // the last layer's
  kFactor,     // u and v of a rank-1 kernel: has members
  kEmbedding,  // of a hypernetwork: has members, and is not decayed
  kRows        // u and v of a BatchEnsemble, all rows in one weight: is not decayed
};

// How a weight starts.
struct Initial {
  enum class Kind { kConstant, kNormal, kSigns, kOrthogonal };
  static Initial Constant(double value) { return {Kind::kConstant, value, ""}; }
  static Initial Normal(double deviation) { return {Kind::kNormal, deviation, ""}; }
  static Initial Signs() { return {Kind::kSigns, 1, ""}; }  // 1 or -1, equally likely
  // Columns of the given length, orthogonal to each other and to those that the group already has.
  // Only E columns of E numbers can be orthogonal; after that a new set begins.
  static Initial Orthogonal(std::string group, double length) {
    return {Kind::kOrthogonal, length, std::move(group)};
  }

  Kind kind;
  double value;
  std::string group;
};

class LayerWeights : public NetworkWeights {
 public:
  tensorflow::Output Linear(const std::string& name, tensorflow::Output x,
                            const tensorflow::TensorShape& shape, bool bias,
                            const Product& product) final;
  LastLayer Head(const std::string& name, tensorflow::Output features, int64_t size,
                 int64_t classes) final;
  tensorflow::Output Uniform(tensorflow::Output shape) final;

 protected:
  // `noise`, int64 [2], determines all random numbers; empty: none are drawn.
  LayerWeights(const tensorflow::Scope& scope, const ImageNetworkOptions& network,
               tensorflow::DataType dtype, tensorflow::Output noise)
      : scope_(scope),
        form_(network.kernels),
        ensemble_(network.ensemble),
        dtype_(dtype),
        noise_(noise) {}

  // A weight of `shape`, which is one member's if it has members.
  virtual tensorflow::Output Weight(Part part, const std::string& name,
                                    const tensorflow::TensorShape& shape,
                                    const Initial& initial) = 0;
  // Of a BatchEnsemble: which of the K members each image of x [n, …] belongs to, as ones in
  // [n, K], or in [1, K] if all belong to the same.
  virtual tensorflow::Output ImageMembers(tensorflow::Output x) = 0;
  // Image i of n belongs to member floor(i·K / n).
  tensorflow::Output DividedAmongMembers(tensorflow::Output x);
  int64_t ensemble() const { return ensemble_; }

 private:
  tensorflow::Output Kernel(const std::string& name, const tensorflow::TensorShape& shape);
  tensorflow::Output Generated(const std::string& name, const tensorflow::TensorShape& shape);
  tensorflow::Output EnsembleLayer(const std::string& name, tensorflow::Output x,
                                   const tensorflow::TensorShape& shape, bool bias,
                                   const Product& product);

  tensorflow::Scope scope_;
  KernelForm form_;
  int64_t ensemble_;
  tensorflow::DataType dtype_;
  tensorflow::Output noise_;
  int64_t draws_ = 0;                                        // so far
  tensorflow::Output members_;                               // ImageMembers of the network
  std::map<std::string, tensorflow::Output> hypernetworks_;  // of each group
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_LAYER_WEIGHTS_H_

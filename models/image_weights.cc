#include "models/image_weights.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/normals.h"
#include "ops/batch_norm.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/cc/ops/state_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

const char* ActivationName(Activation activation) {
  return activation == Activation::kRelu ? "Relu" : "Identity";
}

// Double weights get the same values as float ones.
template <typename T>
void FillNormal(int64_t seed, int64_t stream, double deviation, Tensor* tensor) {
  // Streams of the members' noise have smaller numbers.
  const NormalStream normals = MakeNormalStream(seed, (int64_t{1} << 32) + stream);
  auto values = tensor->flat<T>();
  float chunk[kNormalChunk];
  for (int64_t i = 0; i < values.size(); ++i) {
    if (i % kNormalChunk == 0) FillNormals(normals, 0, i / kNormalChunk, 1, chunk);
    values(i) = static_cast<T>(static_cast<float>(deviation) * chunk[i % kNormalChunk]);
  }
}

}  // namespace

Tensor DeclaredWeights::Initial(const TensorShape& shape, int64_t fan_in) {
  Tensor tensor = Zeros(dtype_, shape);
  const int64_t stream = count_++;
  if (fan_in == 0) return tensor;
  const double deviation = std::sqrt(2.0 / fan_in);
  dtype_ == tensorflow::DT_DOUBLE ? FillNormal<double>(seed_, stream, deviation, &tensor)
                                  : FillNormal<float>(seed_, stream, deviation, &tensor);
  return tensor;
}

Output DeclaredWeights::Weight(const std::string& name, const TensorShape& shape, int64_t fan_in) {
  return late_phase_->AddBase(name, Initial(shape, fan_in));
}

Output DeclaredWeights::HeadWeight(const std::string& name, const TensorShape& shape,
                                   int64_t fan_in) {
  const Tensor initial = Initial(shape, fan_in);
  return parts_.head ? late_phase_->AddMembers(name, initial, MemberRead::kRow)
                     : late_phase_->AddBase(name, initial);
}

Output DeclaredWeights::BatchNorm(const std::string& name, Output x, int64_t channels,
                                  Activation activation) {
  const tensorflow::Scope& scope = late_phase_->scope();
  if (!scope.ok()) return Output();
  const bool members = parts_.batch_norm;
  const TensorShape row({channels}), stack({1, channels});
  auto weight = [&](const char* what, double initial) -> Output {
    const std::string path = absl::StrCat(name, "/", what);
    return members ? late_phase_->AddMembers(path, Filled(dtype_, row, initial), MemberRead::kStack)
                   : late_phase_->AddBase(path, Filled(dtype_, stack, initial));
  };
  auto state = [&](const char* what, double initial) -> Output {
    const std::string path = absl::StrCat(name, "/", what);
    return members ? late_phase_->AddMemberState(path, Filled(dtype_, row, initial))
                   : late_phase_->AddState(path, Filled(dtype_, stack, initial), StateOf::kModel);
  };
  const Output scale = weight("scale", 1), offset = weight("offset", 0), mean = state("mean", 0),
               variance = state("variance", 1);
  if (!scope.ok()) return Output();
  const Output member =
      members ? late_phase_->member() : Output(tf_ops::Const<int32_t>(scope, 0, {}));
  ops::BatchNorm::Attrs attrs;
  attrs.activation = ActivationName(activation);
  const ops::BatchNorm norm(scope, x, scale, offset, tf_ops::ReadVariableOp(scope, mean, dtype_),
                            tf_ops::ReadVariableOp(scope, variance, dtype_), member, attrs);
  updates_.push_back(
      tf_ops::ResourceScatterUpdate(scope, mean, member, norm.running_mean).operation);
  updates_.push_back(
      tf_ops::ResourceScatterUpdate(scope, variance, member, norm.running_variance).operation);
  norms_.push_back({name, channels});
  return norm.y;
}

std::string StoredStatistic(const std::string& batch_norm, const char* statistic, WeightSet set) {
  return absl::StrCat(batch_norm, "/", statistic, "/", WeightSetName(set));
}

Output EvaluatedWeights::Weight(const std::string& name, const TensorShape&, int64_t) {
  return late_phase_->Read(name, set_, member_);
}

Output EvaluatedWeights::HeadWeight(const std::string& name, const TensorShape&, int64_t) {
  return late_phase_->Read(name, set_, member_);
}

// [1, channels]: the op takes stacks, a set has one row.
Output EvaluatedWeights::Row(const std::string& name) {
  const Output value = late_phase_->Read(name, set_, member_);
  return parts_.batch_norm ? Output(tf_ops::ExpandDims(late_phase_->scope(), value, 0)) : value;
}

Output EvaluatedWeights::BatchNorm(const std::string& name, Output x, int64_t channels,
                                   Activation activation) {
  const tensorflow::Scope& scope = late_phase_->scope();
  if (!scope.ok()) return Output();
  auto statistic = [&](const char* what) -> Output {
    switch (statistics_) {
      case Statistics::kRunning:
        return Row(absl::StrCat(name, "/", what));
      case Statistics::kStored:
        // A state belongs to no set of weights: its name says which one it was made for.
        return late_phase_->Read(StoredStatistic(name, what, set_), WeightSet::kCurrent);
      case Statistics::kMinibatch:
        return tf_ops::Const(scope, Zeros(dtype_, {1, channels}));
    }
    return Output();
  };
  ops::BatchNorm::Attrs attrs;
  attrs.activation = ActivationName(activation);
  attrs.is_training = statistics_ == Statistics::kMinibatch;
  attrs.momentum = 1;  // the minibatch's statistics alone
  const Output mean = statistic("mean"), variance = statistic("variance"),
               scale = Row(name + "/scale"), offset = Row(name + "/offset");
  if (!scope.ok()) return Output();
  const ops::BatchNorm norm(scope, x, scale, offset, mean, variance, 0, attrs);
  estimates_.push_back({name, norm.running_mean, norm.running_variance});
  return norm.y;
}

}  // namespace late_phase

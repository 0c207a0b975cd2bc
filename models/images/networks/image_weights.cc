#include "models/images/networks/image_weights.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/normals.h"
#include "models/images/networks/joint_batch_norm.h"
#include "ops/batch_norm.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
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
  const NormalStream normals = MakeNormalStream(Normals::kInitialWeights, seed, stream);
  auto values = tensor->flat<T>();
  float chunk[kNormalChunk];
  for (int64_t i = 0; i < values.size(); ++i) {
    if (i % kNormalChunk == 0) FillNormals(normals, 0, i / kNormalChunk, 1, chunk);
    values(i) = static_cast<T>(static_cast<float>(deviation) * chunk[i % kNormalChunk]);
  }
}

Tensor NormalNumbers(tensorflow::DataType dtype, const TensorShape& shape, int64_t seed,
                     int64_t stream, double deviation) {
  Tensor tensor(dtype, shape);
  dtype == tensorflow::DT_DOUBLE ? FillNormal<double>(seed, stream, deviation, &tensor)
                                 : FillNormal<float>(seed, stream, deviation, &tensor);
  return tensor;
}

Tensor Signs(Tensor numbers) {
  for (int64_t i = 0; i < numbers.NumElements(); ++i) {
    SetElement(&numbers, i, GetElement(numbers, i) < 0 ? -1 : 1);
  }
  return numbers;
}

InitialValue Constant(tensorflow::DataType dtype, const TensorShape& shape, double value) {
  if (value == 0) return InitialValue::Zero(dtype, shape);
  return InitialValue(dtype, shape, [=] { return Filled(dtype, shape, value); });
}

// Minibatch t's random numbers, of every worker its own: each has other images.
Output TrainingNoise(LatePhase* late_phase, int64_t seed) {
  const tensorflow::Scope host = late_phase->scope().WithDevice("/device:CPU:0");
  if (late_phase->workers() != nullptr) seed += late_phase->workers()->share().task << 40;
  return tf_ops::Stack(host, {Output(tf_ops::Const(host, seed)), late_phase->step()});
}

}  // namespace

DeclaredWeights::DeclaredWeights(LatePhase* late_phase, const ImageNetworkOptions& network,
                                 const LatePhaseParts& parts, tensorflow::DataType dtype,
                                 int64_t seed, bool joint_norms)
    : LayerWeights(late_phase->scope(), network, dtype, TrainingNoise(late_phase, seed)),
      late_phase_(late_phase),
      parts_(parts),
      dtype_(dtype),
      seed_(seed),
      joint_norms_(joint_norms && late_phase->workers() != nullptr) {}

InitialValue DeclaredWeights::Start(const TensorShape& shape, const Initial& initial) {
  const double deviation = initial.kind == Initial::Kind::kNormal ? initial.value : 1;
  auto normal = [dtype = dtype_, shape, seed = seed_, stream = count_++, deviation] {
    return NormalNumbers(dtype, shape, seed, stream, deviation);
  };
  switch (initial.kind) {
    case Initial::Kind::kConstant:
      return Constant(dtype_, shape, initial.value);
    case Initial::Kind::kNormal:
      return InitialValue(dtype_, shape, normal);
    case Initial::Kind::kSigns:
      return InitialValue(dtype_, shape, [normal] { return Signs(normal()); });
    case Initial::Kind::kOrthogonal: {
      // Depends on earlier embeddings, and is small.
      Tensor columns = normal();
      Orthogonalize(initial, &columns);
      return columns;
    }
  }
  return Constant(dtype_, shape, 0);
}

// Gram-Schmidt on columns [E, count] of normal numbers.
void DeclaredWeights::Orthogonalize(const Initial& initial, Tensor* columns) {
  const int64_t E = columns->dim_size(0), count = columns->dim_size(1);
  std::vector<std::vector<double>>& others = columns_[initial.group];
  for (int64_t c = 0; c < count; ++c) {
    std::vector<double> column(E);
    for (int64_t e = 0; e < E; ++e) column[e] = GetElement(*columns, e * count + c);
    auto product = [&](const std::vector<double>& other) {
      return std::inner_product(column.begin(), column.end(), other.begin(), 0.0);
    };
    for (size_t i = others.size() / E * E; i < others.size(); ++i) {
      const double along = product(others[i]);
      for (int64_t e = 0; e < E; ++e) column[e] -= along * others[i][e];
    }
    const double length = std::sqrt(product(column));
    for (int64_t e = 0; e < E; ++e) {
      column[e] /= length;
      SetElement(columns, e * count + c, initial.value * column[e]);
    }
    others.push_back(column);
  }
}

Output DeclaredWeights::Weight(Part part, const std::string& name, const TensorShape& shape,
                               const Initial& initial) {
  const bool members = parts_.all || part == Part::kFactor || part == Part::kEmbedding ||
                       (part == Part::kHead && parts_.head);
  const InitialValue start = Start(shape, initial);
  const Output weight = members ? late_phase_->AddMembers(name, start, MemberRead::kRow)
                                : late_phase_->AddBase(name, start);
  if (part == Part::kEmbedding || part == Part::kRows) late_phase_->ExemptFromDecay(name);
  return weight;
}

Output DeclaredWeights::BatchNorm(const std::string& name, Output x, int64_t channels,
                                  Activation activation) {
  const tensorflow::Scope& scope = late_phase_->scope();
  if (!scope.ok()) return Output();
  const bool members = parts_.norms();
  const TensorShape row({channels}), stack({1, channels});
  auto weight = [&](const char* what, double initial) -> Output {
    const std::string path = absl::StrCat(name, "/", what);
    return members
               ? late_phase_->AddMembers(path, Constant(dtype_, row, initial), MemberRead::kStack)
               : late_phase_->AddBase(path, Constant(dtype_, stack, initial));
  };
  auto state = [&](const char* what, double initial) -> Output {
    const std::string path = absl::StrCat(name, "/", what);
    return members
               ? late_phase_->AddMemberState(path, Constant(dtype_, row, initial))
               : late_phase_->AddState(path, Constant(dtype_, stack, initial), StateKind::kModel);
  };
  const Output scale = weight("scale", 1), offset = weight("offset", 0), mean = state("mean", 0),
               variance = state("variance", 1);
  if (!scope.ok()) return Output();
  const Output member =
      members ? late_phase_->member() : Output(tf_ops::Const<int32_t>(scope, 0, {}));
  ops::BatchNorm::Attrs attrs;
  attrs.activation = ActivationName(activation);
  const auto old_mean = tf_ops::ReadVariableOp(scope, mean, dtype_),
             old_variance = tf_ops::ReadVariableOp(scope, variance, dtype_);
  norms_.push_back({name, channels});
  if (joint_norms_) {
    const JointBatchNorm norm(late_phase_, x, scale, offset, old_mean, old_variance, member, attrs);
    KeepRow(mean, member, norm.running_mean);
    KeepRow(variance, member, norm.running_variance);
    return norm.y;
  }
  const ops::BatchNorm norm(scope, x, scale, offset, old_mean, old_variance, member, attrs);
  KeepRow(mean, member, norm.running_mean);
  KeepRow(variance, member, norm.running_variance);
  return norm.y;
}

void DeclaredWeights::KeepRow(Output handle, Output member, Output row) {
  const tensorflow::Scope& scope = late_phase_->scope();
  if (late_phase_->workers() == nullptr) {
    updates_.push_back(tf_ops::ResourceScatterUpdate(scope, handle, member, row).operation);
  } else {
    running_.push_back({handle, member, row});
  }
}

std::vector<tensorflow::Operation> DeclaredWeights::updates() {
  const tensorflow::Scope& scope = late_phase_->scope();
  std::vector<Output> rows;
  for (const Running& one : running_) rows.push_back(one.row);
  rows = late_phase_->MeanOverWorkers(rows);
  if (!scope.ok()) return {};
  for (size_t i = 0; i < running_.size(); ++i) {
    updates_.push_back(
        tf_ops::ResourceScatterUpdate(scope, running_[i].handle, running_[i].member, rows[i])
            .operation);
  }
  return updates_;
}

std::string StoredStatistic(const std::string& batch_norm, const char* statistic, WeightSet set) {
  return absl::StrCat(batch_norm, "/", statistic, "/", WeightSetName(set));
}

AffineNorm::AffineNorm(LatePhase* late_phase, const std::string& batch_norm) {
  const tensorflow::Scope& scope = late_phase->scope();
  const Output gamma = late_phase->ReadMembers(batch_norm + "/scale"),
               beta = late_phase->ReadMembers(batch_norm + "/offset"),
               mean = late_phase->ReadMembers(batch_norm + "/mean"),
               variance = late_phase->ReadMembers(batch_norm + "/variance");
  if (!scope.ok()) return;
  const double epsilon = ops::BatchNorm::Attrs().epsilon;
  auto deviation = [&](Output square) -> Output {
    return tf_ops::Sqrt(scope,
                        tf_ops::Add(scope, square, tf_ops::Cast(scope, epsilon, square.type())));
  };
  auto over_members = [&](Output rows) -> Output {
    return tf_ops::Mean(scope, rows, 0, tf_ops::Mean::KeepDims(true));
  };
  const Output slopes = tf_ops::Div(scope, gamma, deviation(variance));
  const Output a = over_members(slopes),
               b = over_members(tf_ops::Sub(scope, beta, tf_ops::Mul(scope, mean, slopes)));
  scale = tf_ops::Mul(scope, a, deviation(over_members(variance)));
  offset = tf_ops::Add(scope, b, tf_ops::Mul(scope, a, over_members(mean)));
}

Output EvaluatedWeights::Weight(Part, const std::string& name, const TensorShape&, const Initial&) {
  return late_phase_->Read(name, set_, member_);
}

// Statistics are estimated as in training, from images that are divided among the members.
Output EvaluatedWeights::ImageMembers(Output x) {
  if (statistics_ == Statistics::kMinibatch) return DividedAmongMembers(x);
  const tensorflow::Scope& scope = late_phase_->scope();
  const auto one =
      tf_ops::OneHot(scope, member_, static_cast<int32_t>(ensemble()),
                     tf_ops::Cast(scope, 1.0, dtype_), tf_ops::Cast(scope, 0.0, dtype_));
  return tf_ops::ExpandDims(scope, one, 0);
}

// [1, channels]: the op takes stacks, a set has one row.
Output EvaluatedWeights::Row(const std::string& name) {
  const Output value = late_phase_->Read(name, set_, member_);
  const bool members = parts_.norms();
  return members ? Output(tf_ops::ExpandDims(late_phase_->scope(), value, 0)) : value;
}

Output EvaluatedWeights::BatchNorm(const std::string& name, Output x, int64_t channels,
                                   Activation activation) {
  const tensorflow::Scope& scope = late_phase_->scope();
  if (!scope.ok()) return Output();
  auto statistic = [&](const char* what) -> Output {
    switch (statistics_) {
      case Statistics::kRunning:
      case Statistics::kAffine:
        return Row(absl::StrCat(name, "/", what));
      case Statistics::kStored:
        // A state does not belong to a set of weights: its name says which one it was made for.
        return late_phase_->Read(StoredStatistic(name, what, set_), WeightSet::kCurrent);
      case Statistics::kMinibatch:
        return tf_ops::Const(scope, Zeros(dtype_, {1, channels}));
    }
    return Output();
  };
  ops::BatchNorm::Attrs attrs;
  attrs.activation = ActivationName(activation);
  attrs.is_training = statistics_ == Statistics::kMinibatch;
  attrs.momentum = 1;  // only the minibatch's own statistics
  const Output mean = statistic("mean"), variance = statistic("variance");
  Output scale = Row(name + "/scale"), offset = Row(name + "/offset");
  if (statistics_ == Statistics::kAffine) {
    const AffineNorm affine(late_phase_, name);
    scale = affine.scale;
    offset = affine.offset;
  }
  if (!scope.ok()) return Output();
  const ops::BatchNorm norm(scope, x, scale, offset, mean, variance, 0, attrs);
  estimates_.push_back({name, channels, norm.running_mean, norm.running_variance});
  return norm.y;
}

}  // namespace late_phase

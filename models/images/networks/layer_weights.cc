#include "models/images/networks/layer_weights.h"

#include <cmath>

#include "models/images/networks/hypernetwork.h"
#include "ops/add_node.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::TensorShape;

namespace {

int64_t Inputs(const TensorShape& kernel) { return kernel.dim_size(kernel.dims() - 2); }
int64_t Outputs(const TensorShape& kernel) { return kernel.dim_size(kernel.dims() - 1); }

Initial Kaiming(const TensorShape& kernel) {
  return Initial::Normal(std::sqrt(2.0 * Outputs(kernel) / kernel.num_elements()));
}

}  // namespace

Output LayerWeights::Linear(const std::string& name, Output x, const TensorShape& shape, bool bias,
                            const Product& product) {
  if (form_ == KernelForm::kBatchEnsemble) return EnsembleLayer(name, x, shape, bias, product);
  const Output kernel = Kernel(name, shape);
  if (!scope_.ok()) return Output();
  const Output y = product(x, kernel);
  if (!bias) return y;
  const Output added = Weight(Part::kBody, name + "/bias", {Outputs(shape)}, Initial::Constant(0));
  return scope_.ok() ? Output(tf_ops::BiasAdd(scope_, y, added)) : Output();
}

Output LayerWeights::Kernel(const std::string& name, const TensorShape& shape) {
  if (form_ == KernelForm::kHypernetwork) return Generated(name, shape);
  const Output kernel = Weight(Part::kBody, name + "/kernel", shape, Kaiming(shape));
  if (form_ == KernelForm::kPlain) return kernel;
  const Output u = Weight(Part::kFactor, name + "/u", {Inputs(shape)}, Initial::Constant(1)),
               v = Weight(Part::kFactor, name + "/v", {Outputs(shape)}, Initial::Constant(1));
  if (!scope_.ok()) return Output();
  // A minibatch has one member, and scaling a kernel is cheaper than scaling the images.
  const auto scale = tf_ops::Mul(scope_, tf_ops::ExpandDims(scope_, u, 1), v);  // [in, out]
  return tf_ops::Mul(scope_, kernel, scale);
}

Output LayerWeights::Generated(const std::string& name, const TensorShape& shape) {
  const HypernetworkLayer layer = MakeHypernetworkLayer(name, shape);
  Output& hypernetwork = hypernetworks_[layer.group];
  if (hypernetwork.node() == nullptr) {
    TensorShape all = layer.chunk;
    all.InsertDim(0, layer.embedding);
    hypernetwork = Weight(Part::kBody, "hypernetwork/" + layer.group, all, Kaiming(layer.chunk));
  }
  // With this length a generated kernel starts with the variance of a plain one.
  const Output embedding =
      Weight(Part::kEmbedding, name + "/embedding", {layer.embedding, layer.chunks},
             Initial::Orthogonal(layer.group, 1 / std::sqrt(static_cast<double>(layer.chunks))));
  return GeneratedKernel(scope_, layer, hypernetwork, embedding);
}

// product(x ∘ u, kernel) ∘ v + bias, with the rows of each image's member.
Output LayerWeights::EnsembleLayer(const std::string& name, Output x, const TensorShape& shape,
                                   bool bias, const Product& product) {
  if (members_.node() == nullptr && scope_.ok()) members_ = ImageMembers(x);
  auto rows = [&](Part part, const char* what, int64_t size, const Initial& initial) -> Output {
    const Output weight = Weight(part, name + "/" + what, TensorShape({ensemble_, size}), initial);
    if (!scope_.ok()) return Output();
    // A product, not a gather: its gradient sums in the same order in every run.
    const Output of_images = tf_ops::MatMul(scope_, members_, weight);  // [n or 1, size]
    if (shape.dims() == 2) return of_images;
    return tf_ops::Reshape(scope_, of_images, {-1, 1, 1, static_cast<int32_t>(size)});
  };
  const Output kernel = Weight(Part::kBody, name + "/kernel", shape, Kaiming(shape)),
               u = rows(Part::kRows, "u", Inputs(shape), Initial::Signs()),
               v = rows(Part::kRows, "v", Outputs(shape), Initial::Signs());
  if (!scope_.ok()) return Output();
  const Output y = tf_ops::Mul(scope_, product(tf_ops::Mul(scope_, x, u), kernel), v);
  if (!bias) return y;
  const Output added = rows(Part::kBody, "bias", Outputs(shape), Initial::Constant(0));
  return scope_.ok() ? Output(tf_ops::AddV2(scope_, y, added)) : Output();
}

LastLayer LayerWeights::Head(const std::string& name, Output features, int64_t size,
                             int64_t classes) {
  if (form_ == KernelForm::kBatchEnsemble) {
    // Its logits, in the form in which a builder returns them.
    const Output logits = EnsembleLayer(
        name, features, TensorShape({size, classes}), true,
        [&](Output x, Output kernel) -> Output { return tf_ops::MatMul(scope_, x, kernel); });
    tensorflow::Tensor identity = Zeros(dtype_, {classes, classes});
    for (int64_t i = 0; i < classes; ++i) SetElement(&identity, i * (classes + 1), 1);
    return {logits, tf_ops::Const(scope_, identity),
            tf_ops::Const(scope_, Zeros(dtype_, {classes}))};
  }
  const TensorShape shape({size, classes});
  const Output kernel = Weight(Part::kHead, name + "/kernel", shape, Kaiming(shape)),
               bias = Weight(Part::kHead, name + "/bias", {classes}, Initial::Constant(0));
  return {features, kernel, bias};
}

Output LayerWeights::Uniform(Output shape) {
  if (noise_.node() == nullptr || !scope_.ok()) return Output();
  const tensorflow::Scope host = scope_.WithDevice("/device:CPU:0");
  const auto layer = tf_ops::Const(host, {int64_t{0}, LayerOffset(draws_++)}, {2});
  const Output numbers = GetOutput(
      AddNode(
          scope_, "StatelessRandomUniform", "Uniform", {shape, tf_ops::Add(host, noise_, layer)},
          [](tensorflow::NodeBuilder* builder) { builder->Attr("dtype", tensorflow::DT_FLOAT); }),
      0);
  // Shapes come from activations, but no gradient goes back that way.
  return scope_.ok() ? Output(tf_ops::StopGradient(scope_, numbers)) : Output();
}

Output LayerWeights::DividedAmongMembers(Output x) {
  const Output n =
      tf_ops::Squeeze(scope_, tf_ops::Slice(scope_, tf_ops::Shape(scope_, x), {0}, {1}));
  const auto image = tf_ops::Range(scope_, 0, n, 1);
  const auto member =
      tf_ops::FloorDiv(scope_, tf_ops::Mul(scope_, image, static_cast<int32_t>(ensemble_)), n);
  return tf_ops::OneHot(scope_, member, static_cast<int32_t>(ensemble_),
                        tf_ops::Cast(scope_, 1.0, dtype_), tf_ops::Cast(scope_, 0.0, dtype_));
}

}  // namespace late_phase

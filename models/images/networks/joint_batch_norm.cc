#include "models/images/networks/joint_batch_norm.h"

#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/nn_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

JointBatchNorm::JointBatchNorm(LatePhase* late_phase, Output x, Output scale, Output offset,
                               Output mean, Output variance, Output member,
                               const ops::BatchNormAttrs& attrs) {
  const tensorflow::Scope& scope = late_phase->scope();
  if (!scope.ok()) return;
  const tensorflow::DataType dtype = x.type();
  auto number = [&](double value) -> Output {
    return tf_ops::Cast(scope, tf_ops::Const(scope, value), dtype);
  };
  // [channels], the member's row of a stack, as a product with ones and zeros: its gradient is a
  // stack again.
  const Output rows = tf_ops::Slice(scope, tf_ops::Shape(scope, scale), {0}, {1});
  // Neither this nor n below has a gradient, although both follow from shapes.
  const Output one_hot = tf_ops::StopGradient(
      scope, tf_ops::OneHot(scope, member, tf_ops::Squeeze(scope, rows), number(1), number(0)));
  auto row = [&](Output stack) -> Output {
    return tf_ops::Sum(scope, tf_ops::Mul(scope, stack, tf_ops::ExpandDims(scope, one_hot, 1)), 0);
  };
  auto sum = [&](Output values) -> Output {
    return late_phase->workers()->Sum(scope, tf_ops::Sum(scope, values, 0));
  };

  // [pixels, channels]
  const Output shape = tf_ops::Shape(scope, x);
  const Output channels = tf_ops::Slice(scope, tf_ops::Shape(scope, scale), {1}, {1});
  const Output flat = tf_ops::Reshape(
      scope, x, tf_ops::Concat(scope, {Output(tf_ops::Const(scope, {-1})), channels}, 0));
  const Output own = tf_ops::Slice(scope, tf_ops::Shape(scope, flat), {0}, {1});
  const Output n = tf_ops::StopGradient(
      scope, tf_ops::Mul(scope, tf_ops::Cast(scope, tf_ops::Squeeze(scope, own), dtype),
                         number(static_cast<double>(late_phase->workers()->share().workers))));

  //   μ = Σ x / n,   σ² = Σ (x − μ)² / n,   y = (x − μ) γ / √(σ² + ε) + β
  const Output mu = tf_ops::Div(scope, sum(flat), n);
  const Output centred = tf_ops::Sub(scope, flat, mu);
  const Output square = tf_ops::Div(scope, sum(tf_ops::Square(scope, centred)), n);
  const Output slope = tf_ops::Div(
      scope, row(scale), tf_ops::Sqrt(scope, tf_ops::Add(scope, square, number(attrs.epsilon))));
  const Output normalised = tf_ops::Add(scope, tf_ops::Mul(scope, centred, slope), row(offset));
  y = tf_ops::Reshape(scope, normalised, shape);
  if (attrs.activation == "Relu") y = tf_ops::Relu(scope, y);

  const double momentum = attrs.momentum;
  auto advance = [&](Output old, Output batch) -> Output {
    return tf_ops::Add(scope, tf_ops::Mul(scope, row(old), number(1 - momentum)),
                       tf_ops::Mul(scope, batch, number(momentum)));
  };
  const Output unbiased =
      tf_ops::Div(scope, n, tf_ops::Maximum(scope, tf_ops::Sub(scope, n, number(1)), number(1)));
  running_mean = advance(mean, mu);
  running_variance = advance(variance, tf_ops::Mul(scope, square, unbiased));
}

}  // namespace late_phase

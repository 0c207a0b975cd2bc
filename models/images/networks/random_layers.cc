#include "models/images/networks/random_layers.h"

#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

namespace {

Output Number(const tensorflow::Scope& scope, double value, tensorflow::DataType dtype) {
  return tf_ops::Cast(scope, tf_ops::Const(scope, value), dtype);
}

// 1 where u >= rate, else 0.
Output Survives(const tensorflow::Scope& scope, Output u, double rate, tensorflow::DataType dtype) {
  const auto lives = tf_ops::GreaterEqual(scope, u, static_cast<float>(rate));
  return tf_ops::Cast(scope, lives, dtype);
}

}  // namespace

Output Dropout(const tensorflow::Scope& scope, Output x, double rate, NetworkWeights* weights) {
  if (rate == 0 || !scope.ok()) return x;
  const Output u = weights->Uniform(tf_ops::Shape(scope, x));
  if (u.node() == nullptr) return x;
  const auto factor = tf_ops::Mul(scope, Survives(scope, u, rate, x.type()),
                                  Number(scope, 1 / (1 - rate), x.type()));
  return tf_ops::Mul(scope, x, factor);
}

Output ShakeDrop(const tensorflow::Scope& scope, Output x, double death, NetworkWeights* weights) {
  if (death == 0 || !scope.ok()) return x;
  const tensorflow::DataType dtype = x.type();
  const Output n = tf_ops::Slice(scope, tf_ops::Shape(scope, x), {0}, {1});
  const Output images = tf_ops::Concat(scope, {Output(n), Output(tf_ops::Const(scope, {1, 1, 1}))},
                                       0);  // [n, 1, 1, 1]
  const Output gate = weights->Uniform(tf_ops::Const(scope, {1, 1, 1, 1})),
               of_alpha = weights->Uniform(images), of_beta = weights->Uniform(images);
  if (gate.node() == nullptr) return tf_ops::Mul(scope, x, Number(scope, 1 - death, dtype));
  const Output one = Number(scope, 1, dtype), b = Survives(scope, gate, death, dtype),
               beta = tf_ops::Cast(scope, of_beta, dtype),
               alpha = tf_ops::Sub(scope,
                                   tf_ops::Mul(scope, tf_ops::Cast(scope, of_alpha, dtype),
                                               Number(scope, 2, dtype)),
                                   one);
  // b + z − bz is 1 if the block lives, else z.
  auto factor = [&](Output z) -> Output {
    return tf_ops::Add(scope, b, tf_ops::Mul(scope, tf_ops::Sub(scope, one, b), z));
  };
  const Output forward = factor(alpha), backward = factor(beta);
  // Its value is forward · x; the gradient sees only backward · x.
  const auto hidden =
      tf_ops::StopGradient(scope, tf_ops::Mul(scope, x, tf_ops::Sub(scope, forward, backward)));
  return tf_ops::AddV2(scope, tf_ops::Mul(scope, x, backward), hidden);
}

}  // namespace late_phase

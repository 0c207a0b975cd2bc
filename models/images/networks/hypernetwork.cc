#include "models/images/networks/hypernetwork.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/math_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;

HypernetworkLayer MakeHypernetworkLayer(const std::string& name,
                                        const tensorflow::TensorShape& kernel) {
  int group = 0, block = 0;
  // The names are the builder's own, and their numbers small.
  // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion)
  if (std::sscanf(name.c_str(), "group%d/block%d", &group, &block) < 2) {
    return {"g0", 10, 1, kernel};
  }
  if (absl::EndsWith(name, "/shortcut")) return {absl::StrCat("g", 5 + group), 7, 1, kernel};
  const bool first = block == 0 && absl::EndsWith(name, "/conv0");
  if (first && group == 0) return {"g1", 7, 1, kernel};
  HypernetworkLayer layer{absl::StrCat("g", 2 + group), 14, first ? 1 : 2, kernel};
  layer.chunk.set_dim(2, kernel.dim_size(2) / layer.chunks);
  return layer;
}

Output GeneratedKernel(const tensorflow::Scope& scope, const HypernetworkLayer& layer,
                       Output hypernetwork, Output embedding) {
  if (!scope.ok()) return Output();
  auto size = [&](int dim) { return static_cast<int32_t>(layer.chunk.dim_size(dim)); };
  const int32_t chunks = static_cast<int32_t>(layer.chunks);
  const auto matrix = tf_ops::Reshape(
      scope, hypernetwork,
      {static_cast<int32_t>(layer.embedding), static_cast<int32_t>(layer.chunk.num_elements())});
  const Output made =
      tf_ops::MatMul(scope, embedding, matrix, tf_ops::MatMul::TransposeA(true));  // [chunks, …]
  const auto apart = tf_ops::Reshape(scope, made, {chunks, size(0), size(1), size(2), size(3)});
  const auto together = tf_ops::Transpose(scope, apart, {1, 2, 3, 0, 4});
  return tf_ops::Reshape(scope, together, {size(0), size(1), size(2) * chunks, size(3)});
}

}  // namespace late_phase

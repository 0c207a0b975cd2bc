// Kernels of a wide residual network made by a linear hypernetwork: the layers of a group share a
// hypernetwork, and each has an embedding of its own. The groups are those of the paper's WRN
// 28-10, defined by their place in the network so that they fit every depth and width:
//
//   g0 the first convolution, embedding 10          g1 the first one of group 0, embedding 7
//   g2, g3, g4 all others of groups 0, 1, 2, embedding 14
//   g5, g6, g7 the 1×1 convolutions of the shortcuts of groups 0, 1, 2, embedding 7
//
// A kernel with twice the inputs of its group's hypernetwork has two embeddings, one per half.
#ifndef LATE_PHASE_MODELS_IMAGES_NETWORKS_HYPERNETWORK_H_
#define LATE_PHASE_MODELS_IMAGES_NETWORKS_HYPERNETWORK_H_

#include <cstdint>
#include <string>

#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace late_phase {

// How a layer's kernel is made: hypernetwork [embedding, height, width, in, out] by embeddings
// [embedding, chunks].
struct HypernetworkLayer {
  std::string group;              // "g0", …
  int64_t embedding;              // its size
  int64_t chunks;                 // embeddings of the layer
  tensorflow::TensorShape chunk;  // [height, width, in, out], in · chunks being the kernel's inputs
};

// Of a WRN's layer ("conv0", "group1/block0/shortcut", …) with the given kernel shape.
HypernetworkLayer MakeHypernetworkLayer(const std::string& name,
                                        const tensorflow::TensorShape& kernel);

// The kernel: its input i · chunks + c is input i of the part made from embedding c.
tensorflow::Output GeneratedKernel(const tensorflow::Scope& scope, const HypernetworkLayer& layer,
                                   tensorflow::Output hypernetwork, tensorflow::Output embedding);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_NETWORKS_HYPERNETWORK_H_

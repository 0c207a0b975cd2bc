// The published networks: their sizes, and what is said about those that cannot be built.
#include "models/images/networks/image_network.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/images/networks/layer_weights.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/public/version.h"
#include "tests/support/status_matchers.h"

namespace late_phase {
namespace {

using test_util::IsOk;
using test_util::StatusIs;
using ::testing::EndsWith;

using tensorflow::Output;

struct Network {
  const char* what;
  ImageNetworkOptions options;
  int64_t parameters;
  int64_t batch_norm_channels;  // of all of them
  int64_t features;             // of the last layer
};

TEST(ImageNetworkTest, SizesAreThePublishedOnes) {
  // WRN d-w: conv0 and the first block read 16 channels, each block has two BatchNorms.
  const Network networks[] = {
      {"WRN 28-10, CIFAR-10", {"wrn", 28, 10, 10}, 36479194, 8976, 640},
      {"WRN 28-10, CIFAR-100", {"wrn", 28, 10, 100}, 36536884, 8976, 640},
      {"WRN 16-2, CIFAR-10", {"wrn", 16, 2, 10}, 691674, 912, 128},
      {"WRN 10-1, CIFAR-10", {"wrn", 10, 1, 10}, 77850, 240, 64},
      {"ConvNet, CIFAR-10", {"convnet", 0, 0, 10}, 62458, 6 + 16 + 120 + 84, 84},
      // Without BatchNorm 26.0 million, as published for depth 272 and alpha 200.
      {"PyramidNet 272, CIFAR-10", {"pyramidnet", 272, 0, 10}, 26210842, 105432, 864},
  };
  for (const Network& network : networks) {
    TF_ASSERT_OK_AND_ASSIGN(NetworkSize size, MeasureNetwork(network.options));
    EXPECT_EQ(size.parameters, network.parameters) << network.what;
    EXPECT_EQ(size.member_parameters,
              2 * network.batch_norm_channels + (network.features + 1) * network.options.classes)
        << network.what;
  }
}

// 32×32 images keep 16 channels of conv0; then per block the two BatchNorms and convolutions, and
// the shortcut where there is one; then the last BatchNorm. Where the resolution is halved the
// padded images are kept, too.
TEST(ImageNetworkTest, WhatIsKeptForTheBackwardPassIsCounted) {
  TF_ASSERT_OK_AND_ASSIGN(NetworkSize size, MeasureNetwork({"wrn", 10, 1, 10}));
  EXPECT_EQ(size.kept, 1024 * (16 + 4 * 16) + (1024 * 16 + 256 * 4 * 32) +
                           (256 * 32 + 64 * 4 * 64) + 64 * 64 + 34 * 34 * 16 + 18 * 18 * 32);
}

// Kernels have factors of their inputs and outputs; a BatchEnsemble has K rows of them, and of the
// biases.
TEST(ImageNetworkTest, FactorsAreCounted) {
  ImageNetworkOptions options{"convnet", 0, 0, 10};
  const int64_t factors = (3 + 6) + (6 + 16) + (400 + 120) + (120 + 84), head_factors = 84 + 10,
                biases = 6 + 16 + 120 + 84 + 10;
  NetworkSize size;
  options.kernels = KernelForm::kRank1;
  TF_ASSERT_OK_AND_ASSIGN(size, MeasureNetwork(options));
  EXPECT_EQ(size.parameters, 62458 + factors);
  EXPECT_EQ(size.member_parameters, 2 * (6 + 16 + 120 + 84) + 85 * 10 + factors);
  options.kernels = KernelForm::kBatchEnsemble;
  options.ensemble = 4;
  TF_ASSERT_OK_AND_ASSIGN(size, MeasureNetwork(options));
  EXPECT_EQ(size.parameters, 62458 + 4 * (factors + head_factors) + 3 * biases);
}

// Writes down which weights a network asks for, and the kernels that come of them.
class NotedWeights : public LayerWeights {
 public:
  NotedWeights(const tensorflow::Scope& scope, const ImageNetworkOptions& network)
      : LayerWeights(scope, network, tensorflow::DT_FLOAT, Output()), scope_(scope) {}

  Output BatchNorm(const std::string&, Output x, int64_t, Activation) override { return x; }
  std::map<std::string, std::string> shapes;  // of every weight

 protected:
  Output Weight(Part, const std::string& name, const tensorflow::TensorShape& shape,
                const Initial&) override {
    shapes[name] = shape.DebugString();
    return tensorflow::ops::Placeholder(scope_, tensorflow::DT_FLOAT,
                                        tensorflow::ops::Placeholder::Shape(shape));
  }
  Output ImageMembers(Output) override { return Output(); }

 private:
  const tensorflow::Scope& scope_;
};

// The paper's table of WRN 28-10: Hnet-PS [out, k, k, in, embedding] and Emb-PS. Kernels here are
// [k, k, in, out], and the hypernetworks accordingly.
TEST(ImageNetworkTest, HypernetworkGroupsAreThePublishedOnes) {
  const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  ImageNetworkOptions options{"wrn", 28, 10, 10};
  options.kernels = KernelForm::kHypernetwork;
  NotedWeights weights(scope, options);
  BuildImageNetwork(
      scope, options,
      tensorflow::ops::Placeholder(scope, tensorflow::DT_FLOAT,
                                   tensorflow::ops::Placeholder::Shape({2, 32, 32, 3})),
      &weights);
  ASSERT_THAT(scope.status(), IsOk());
  std::map<std::string, std::string> expected = {{"hypernetwork/g0", "[10,3,3,3,16]"},
                                                 {"hypernetwork/g1", "[7,3,3,16,160]"},
                                                 {"hypernetwork/g2", "[14,3,3,80,160]"},
                                                 {"hypernetwork/g3", "[14,3,3,160,320]"},
                                                 {"hypernetwork/g4", "[14,3,3,320,640]"},
                                                 {"hypernetwork/g5", "[7,1,1,16,160]"},
                                                 {"hypernetwork/g6", "[7,1,1,160,320]"},
                                                 {"hypernetwork/g7", "[7,1,1,320,640]"},
                                                 {"conv0/embedding", "[10,1]"},
                                                 {"head/kernel", "[640,10]"},
                                                 {"head/bias", "[10]"}};
  for (int group = 0; group < 3; ++group) {
    const std::string name = absl::StrCat("group", group, "/block");
    expected[name + "0/shortcut/embedding"] = "[7,1]";
    for (int block = 0; block < 4; ++block) {
      for (const char* layer : {"/conv0/embedding", "/conv1/embedding"}) {
        expected[absl::StrCat(name, block, layer)] = "[14,2]";
      }
    }
    expected[name + "0/conv0/embedding"] = group == 0 ? "[7,1]" : "[14,1]";
  }
  EXPECT_EQ(weights.shapes, expected);
  TF_ASSERT_OK_AND_ASSIGN(NetworkSize size, MeasureNetwork(options));
  // Hypernetworks, embeddings, BatchNorm, last layer.
  const int64_t embeddings = 10 + 7 + 7 * 28 + 2 * (14 + 7 * 28) + 3 * 7;
  EXPECT_EQ(size.parameters, 35844320 + embeddings + 2 * 8976 + 6410);
  EXPECT_EQ(size.member_parameters, embeddings + 2 * 8976 + 6410);
}

// Every kernel that is made has the shape of the plain network's, at other depths and widths, too.
TEST(ImageNetworkTest, GeneratedKernelsHaveTheShapesOfPlainOnes) {
  for (const auto& [depth, width] : {std::pair(28, 10), std::pair(16, 3), std::pair(10, 1)}) {
    const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
    const Output images = tensorflow::ops::Placeholder(
        scope, tensorflow::DT_FLOAT, tensorflow::ops::Placeholder::Shape({2, 32, 32, 3}));
    std::vector<std::string> kernels[2];
    for (const bool hypernetwork : {false, true}) {
      ImageNetworkOptions options{"wrn", depth, width, 10};
      if (hypernetwork) options.kernels = KernelForm::kHypernetwork;
      NotedWeights weights(scope, options);
      const int before = scope.graph()->num_node_ids();
      BuildImageNetwork(scope, options, images, &weights);
      ASSERT_THAT(scope.status(), IsOk());
      tensorflow::ShapeRefiner shapes(TF_GRAPH_DEF_VERSION, scope.graph()->op_registry());
      for (tensorflow::Node* node : scope.graph()->op_nodes()) {
        ASSERT_THAT(shapes.AddNode(node), IsOk());
      }
      for (int id = before; id < scope.graph()->num_node_ids(); ++id) {
        const tensorflow::Node* node = scope.graph()->FindNodeId(id);
        if (node == nullptr || node->type_string() != "Conv2D") continue;
        const tensorflow::Node* kernel = nullptr;
        ASSERT_THAT(node->input_node(1, &kernel), IsOk());
        auto* context = shapes.GetContext(kernel);
        kernels[hypernetwork].push_back(context->DebugString(context->output(0)));
      }
    }
    EXPECT_EQ(kernels[0].front(), "[3,3,3,16]");
    EXPECT_EQ(kernels[0], kernels[1]) << depth << "-" << width;
  }
}

TEST(ImageNetworkTest, WhatCannotBeBuiltIsAnError) {
  auto complaint = [](const ImageNetworkOptions& options) {
    const absl::Status status = MeasureNetwork(options).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(status.message());
  };
  for (const int64_t depth : {-2, 0, 4, 9, 12, 29}) {
    EXPECT_THAT(complaint({"wrn", depth, 1}), EndsWith(absl::StrCat("Received: depth=", depth)));
  }
  EXPECT_EQ(complaint({"vgg"}),
            "`network` must be wrn, convnet or pyramidnet. Received: network=vgg");
  EXPECT_EQ(complaint({"convnet", 0, 0, 10, 12}),
            "`side` must be at least 16, or no pixel is left. Received: side=12");
  for (const int64_t depth : {2, 10, 12, 28}) {
    EXPECT_THAT(complaint({"pyramidnet", depth}),
                EndsWith(absl::StrCat("Received: depth=", depth)));
  }
  ImageNetworkOptions options{"wrn", 10, 1};
  options.dropout = 1;
  EXPECT_EQ(complaint(options), "`dropout` must be in [0, 1). Received: dropout=1");
  options = {"pyramidnet", 11};
  options.dropout = 0.5;
  EXPECT_EQ(complaint(options),
            "`dropout` must be 0 for a pyramidnet, which has ShakeDrop instead. Received: "
            "dropout=0.5");
  options.dropout = 0;
  options.shakedrop = 1.5;
  EXPECT_EQ(complaint(options), "`shakedrop` must be in [0, 1]. Received: shakedrop=1.5");
  options = {"convnet"};
  options.kernels = KernelForm::kHypernetwork;
  EXPECT_EQ(complaint(options),
            "`network` must be wrn with a hypernetwork. Received: network=convnet");
}

}  // namespace
}  // namespace late_phase

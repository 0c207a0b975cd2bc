// The published networks: their sizes, and what is said about those that cannot be built.
#include "models/image_network.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace late_phase {
namespace {

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
  };
  for (const Network& network : networks) {
    NetworkSize size;
    ASSERT_EQ(SizeOf(network.options, &size), absl::OkStatus()) << network.what;
    EXPECT_EQ(size.parameters, network.parameters) << network.what;
    EXPECT_EQ(size.member_parameters,
              2 * network.batch_norm_channels + (network.features + 1) * network.options.classes)
        << network.what;
  }
}

// 32×32 images keep 16 channels of conv0; then per block the two BatchNorms and convolutions, and
// the shortcut where there is one; then the last BatchNorm.
TEST(ImageNetworkTest, WhatIsKeptForTheBackwardPassIsCounted) {
  NetworkSize size;
  ASSERT_EQ(SizeOf({"wrn", 10, 1, 10}, &size), absl::OkStatus());
  EXPECT_EQ(size.kept,
            1024 * (16 + 4 * 16) + (1024 * 16 + 256 * 4 * 32) + (256 * 32 + 64 * 4 * 64) + 64 * 64);
}

TEST(ImageNetworkTest, WhatCannotBeBuiltIsAnError) {
  auto complaint = [](const ImageNetworkOptions& options) {
    NetworkSize size;
    const absl::Status status = SizeOf(options, &size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const int64_t depth : {-2, 0, 4, 9, 12, 29}) {
    EXPECT_TRUE(
        absl::EndsWith(complaint({"wrn", depth, 1}), absl::StrCat("Received: depth=", depth)));
  }
  EXPECT_EQ(complaint({"vgg"}), "`network` must be wrn or convnet. Received: network=vgg");
  EXPECT_EQ(complaint({"convnet", 0, 0, 10, 12}),
            "`side` must be at least 16, or no pixel is left. Received: side=12");
}

}  // namespace
}  // namespace late_phase

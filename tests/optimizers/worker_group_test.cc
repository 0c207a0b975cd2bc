// Who the workers are, and what they share out.
#include "optimizers/worker_group.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace late_phase {
namespace {

TEST(WorkerGroupTest, AGroupOfDifferentAddressesIsGood) {
  EXPECT_EQ((WorkerGroup{{"a:1", "b.example:65535", "[::1]:2"}, 2}.Check()), "");
}

TEST(WorkerGroupTest, WhatIsNotAnAddressIsNamed) {
  for (const char* bad : {"host", ":1", "host:", "host:0", "host:65536", "host:1x", ""}) {
    EXPECT_EQ((WorkerGroup{{"a:1", bad}, 0}.Check()),
              "`workers` must be addresses of the form HOST:PORT. Received: " + std::string(bad));
  }
}

TEST(WorkerGroupTest, EachWorkerHasAnAddressOfItsOwn) {
  EXPECT_EQ((WorkerGroup{{"a:1", "b:1", "a:1"}, 0}.Check()),
            "`workers` must all be different. Received: a:1 more than once");
}

TEST(WorkerGroupTest, OneWorkerIsNoGroup) {
  EXPECT_EQ((WorkerGroup{{"a:1"}, 0}.Check()),
            "`workers` must be at least two addresses; one worker alone needs none. Received: 1");
}

TEST(WorkerGroupTest, TheTaskIsOneOfThem) {
  for (const int64_t task : {-1, 2}) {
    EXPECT_EQ((WorkerGroup{{"a:1", "b:1"}, task}.Check()),
              "`task` must be the place of this worker among the 2 of `workers`, counted from 0. "
              "Received: task=" +
                  std::to_string(task));
  }
}

TEST(ShareTest, SharesFollowOneAnother) {
  int64_t end = 0;
  for (int64_t task = 0; task < 3; ++task) {
    const Share share{task, 3};
    EXPECT_EQ(share.Begin(12), end);
    end += share.Size(12);
    EXPECT_TRUE(share.Has(3 + task));
    EXPECT_FALSE(share.Has(4 + task));
  }
  EXPECT_EQ(end, 12);
}

TEST(ShareTest, UnequalSharesAreRefused) {
  EXPECT_EQ(CheckShares({0, 4}, "batch", 8), "");
  EXPECT_EQ(CheckShares({0, 4}, "batch", 6),
            "`batch` must be a multiple of 4, the workers, so that all have equal shares. "
            "Received: batch=6");
}

}  // namespace
}  // namespace late_phase

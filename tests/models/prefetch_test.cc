#include "models/training/prefetch.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

TEST(PrefetcherTest, GivesEveryItemInOrder) {
  Prefetcher<int64_t> items([](int64_t i) { return i * i; }, 3, 100);
  for (int64_t i = 3; i < 100; ++i) EXPECT_EQ(items.Next(), i * i);
}

TEST(PrefetcherTest, WorksAheadButNotFurtherThanAsked) {
  std::atomic<int> made{0};
  Prefetcher<int> items([&](int64_t i) { return ++made, static_cast<int>(i); }, 0, 100, 2);
  while (made < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(made, 2);
  EXPECT_EQ(items.Next(), 0);
  while (made < 3) std::this_thread::yield();
}

TEST(PrefetcherTest, EndsWhenNobodyWantsTheRest) {
  std::atomic<int> made{0};
  {
    Prefetcher<int> items([&](int64_t) { return ++made; }, 0, 1000000000000);
    items.Next();
  }
  EXPECT_LE(made, 4);
  Prefetcher<int> none([&](int64_t) { return ++made; }, 7, 7);
}

TEST(PrefetcherTest, CountsTheTimeItMadeOthersWait) {
  std::atomic<int> made{0};
  const auto slow = [&](int64_t i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    ++made;
    return i;
  };
  Prefetcher<int64_t> items(slow, 0, 2, 1);
  items.Next();
  EXPECT_GE(items.waited(), 0.2);
  const double waited = items.waited();
  while (made < 2) std::this_thread::yield();
  items.Next();  // ready, or about to be put there
  EXPECT_LE(items.waited() - waited, 0.2);
}

}  // namespace
}  // namespace late_phase

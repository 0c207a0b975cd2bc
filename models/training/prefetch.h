// Prepares items on a thread of its own, a few ahead of the one in use, so that the consumer finds
// the next one ready.
//
//   Prefetcher<Batch> batches([&](int64_t t) { return MakeBatch(t); }, first, last);
//   for (t = first; t < last; ++t) Use(batches.Next());
#ifndef LATE_PHASE_MODELS_TRAINING_PREFETCH_H_
#define LATE_PHASE_MODELS_TRAINING_PREFETCH_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace late_phase {

template <typename Item>
class Prefetcher {
 public:
  // Makes the items first, first + 1, …, last − 1, in this order, at most `ahead` before they are
  // asked for. `make` may not throw.
  Prefetcher(std::function<Item(int64_t)> make, int64_t first, int64_t last, size_t ahead = 2)
      : ahead_(ahead), thread_([this, make = std::move(make), first, last] {
          for (int64_t i = first; i < last && WaitForRoom(); ++i) Add(make(i));
        }) {}

  ~Prefetcher() {
    {
      const absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    thread_.join();
  }

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next item. REQUIRES: fewer than last − first calls so far.
  Item Next() {
    const auto begin = std::chrono::steady_clock::now();
    const absl::MutexLock lock(&mutex_, absl::Condition(this, &Prefetcher::HasItem));
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Item item = std::move(ready_.front());
    ready_.pop_front();
    return item;
  }

  // Seconds that Next has spent waiting in all.
  double waited() const { return waited_; }

 private:
  bool HasItem() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !ready_.empty(); }
  bool HasRoomOrStopped() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopped_ || ready_.size() < ahead_;
  }

  // False if no more items are wanted.
  bool WaitForRoom() ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_, absl::Condition(this, &Prefetcher::HasRoomOrStopped));
    return !stopped_;
  }
  void Add(Item item) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::MutexLock lock(&mutex_);
    ready_.push_back(std::move(item));
  }

  const size_t ahead_;
  absl::Mutex mutex_;
  std::deque<Item> ready_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  double waited_ = 0;   // of the consumer's thread alone
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_PREFETCH_H_

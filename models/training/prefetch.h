// Prepares items on a thread of its own, a few ahead of the one in use, so that the consumer finds
// the next one ready. No TensorFlow.
//
//   Prefetcher<Batch> batches([&](int64_t t) { return MakeBatch(t); }, first, last);
//   for (t = first; t < last; ++t) Use(batches.Next());
#ifndef LATE_PHASE_MODELS_TRAINING_PREFETCH_H_
#define LATE_PHASE_MODELS_TRAINING_PREFETCH_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

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
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next item. REQUIRES: fewer than last − first calls so far.
  Item Next() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    Wait(&lock, [this] { return !ready_.empty(); });
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Item item = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return item;
  }

  // The seconds that Next has spent waiting, in total. For the thread that calls Next.
  double waited() const { return waited_; }

 private:
  // False if no more items are wanted.
  bool WaitForRoom() {
    std::unique_lock<std::mutex> lock(mutex_);
    Wait(&lock, [this] { return stopped_ || ready_.size() < ahead_; });
    return !stopped_;
  }
  void Add(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ready_.push_back(std::move(item));
    changed_.notify_all();
  }
  // Waits until `is_true`, which is called with the lock held. condition_variable::wait would tie
  // every program to the libstdc++ of GCC 12 (GLIBCXX_3.4.30); wait_until is inline in its header.
  template <typename Predicate>
  void Wait(std::unique_lock<std::mutex>* lock, Predicate is_true) {
    changed_.wait_until(*lock, std::chrono::steady_clock::time_point::max(), is_true);
  }

  const size_t ahead_;
  std::mutex mutex_;  // of ready_ and stopped_
  std::condition_variable changed_;
  std::deque<Item> ready_;
  bool stopped_ = false;
  double waited_ = 0;   // touched by the consumer's thread only
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TRAINING_PREFETCH_H_

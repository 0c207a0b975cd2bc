// Who trains one model together, and which of them this process is. No TensorFlow; what they do
// together is in optimizers/workers.h.
#ifndef LATE_PHASE_OPTIMIZERS_WORKER_GROUP_H_
#define LATE_PHASE_OPTIMIZERS_WORKER_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

namespace late_phase {

// A worker's part of what is divided evenly: a minibatch, its streams or images.
struct Share {
  int64_t task = 0;     // of `workers`
  int64_t workers = 1;  // 1: everything

  // The part of n things in a row, [Begin(n), Begin(n) + Size(n)). REQUIRES: n % workers == 0.
  int64_t Size(int64_t n) const { return n / workers; }
  int64_t Begin(int64_t n) const { return task * Size(n); }
  // Of things that are dealt out one by one.
  bool Has(int64_t i) const { return i % workers == task; }
};

// An error message, or an empty string: n things, called `name`, must be the same number for every
// worker.
[[nodiscard]] std::string CheckShares(const Share& share, const std::string& name, int64_t n);

struct WorkerGroup {
  std::vector<std::string> addresses;  // HOST:PORT of each, in the order of their tasks
  int64_t task = 0;                    // of this process
  // Seconds without an answer after which the others count as lost. It must cover the longest that
  // one of them works alone, such as the writing of a checkpoint.
  double patience = 300;

  // An error message, or an empty string.
  [[nodiscard]] std::string Check() const;
  Share share() const { return {task, static_cast<int64_t>(addresses.size())}; }
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_WORKER_GROUP_H_

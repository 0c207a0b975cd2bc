// Several processes that train one model together, as one of them sees the others: sums over all of
// them, inside graphs and between steps, on TensorFlow's distributed runtime.
//
//   TF_ASSIGN_OR_RETURN(std::unique_ptr<Workers> workers, Workers::Open(group, threads));
//   LatePhase late_phase(scope, options, dtype, workers.get());
//
// Every worker has the whole model, its own share of each minibatch, and a server, through which
// its neighbours fetch what they add up. All of them do the same things in the same order: a sum is
// complete when every worker has asked for it. A sum adds the workers' values in a fixed order, so
// it has the same bits in every run with as many workers, and on every one of them.
//
// TensorFlow's server listens on all interfaces, whatever address is named, and lets anybody in.
#ifndef LATE_PHASE_OPTIMIZERS_WORKERS_H_
#define LATE_PHASE_OPTIMIZERS_WORKERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "optimizers/worker_group.h"
#include "tensorflow/cc/framework/ops.h"
#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/core/public/session.h"

namespace late_phase {

class Workers {
 public:
  // Starts this worker's server; it runs until the process ends. The others need not be there yet:
  // whoever comes first waits for them.
  static absl::StatusOr<std::unique_ptr<Workers>> Open(const WorkerGroup& group, int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  const WorkerGroup& group() const { return group_; }
  Share share() const { return group_.share(); }
  // Whether this is the one that reads and writes files.
  bool first() const { return group_.task == 0; }

  // A session without a graph, as optimizers/session.h opens them, for graphs with sums in them. It
  // places ops on this worker's devices alone.
  absl::StatusOr<std::unique_ptr<tensorflow::Session>> OpenSession();

  // The error of a session with sums in its graph, as Aborted and in words if it is that the other
  // workers are gone; any other status as it is. The sums below return such errors themselves.
  absl::Status Explain(const absl::Status& status) const;

  // In a graph, the sum of what each worker has there, of a floating type and of the same shape on
  // all of them and in every step. Graphs must be built in the same order everywhere.
  // Differentiable: the gradient of a sum is the sum of its gradients, as the loss is taken to be a
  // sum over the workers.
  tensorflow::Output Sum(const tensorflow::Scope& scope, tensorflow::Output value);

  // Between steps: replaces the numbers, equally many on every worker, by their sums.
  [[nodiscard]] absl::Status Sum(absl::Span<int64_t> numbers);
  [[nodiscard]] absl::Status Sum(absl::Span<double> numbers);

  // The first worker's text, on every worker.
  absl::StatusOr<std::string> Broadcast(const std::string& text);
  // The first worker's status, on every worker.
  [[nodiscard]] absl::Status OfFirst(const absl::Status& status);
  // What every worker passed, by task.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& text);
  // Lets the others receive the last of what they wait for, before this process ends. They call it
  // too.
  void Part();

 private:
  Workers(const WorkerGroup& group, int threads) : group_(group), threads_(threads) {}
  // Opens the session of the sums between steps.
  [[nodiscard]] absl::Status OpenConversation();

  WorkerGroup group_;
  int threads_;
  std::string target_;  // of the server
  int32_t sums_ = 0;    // in graphs, so far
  std::unique_ptr<tensorflow::Session> conversation_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_WORKERS_H_

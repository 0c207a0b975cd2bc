#include "models/training/trainer.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/training/prefetch.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Prepared {
  absl::Status status;
  Run::Feeds feeds;
};

}  // namespace

const char* SplitName(Split split) { return split == Split::kTest ? "test" : "validation"; }

EpochMean::EpochMean(LatePhase* late_phase, Output loss, int64_t steps_per_epoch) {
  const tensorflow::Scope& scope = late_phase->scope();
  const Output sum = late_phase->AddState(
      "epoch_loss", InitialValue::Zero(tensorflow::DT_DOUBLE, tensorflow::TensorShape()));
  if (!scope.ok()) return;
  auto number = [&](int64_t value) -> Output { return tf_ops::Const(scope, value); };
  const Output t = late_phase->step(), length = number(steps_per_epoch);
  const auto first = tf_ops::Equal(scope, tf_ops::FloorMod(scope, t, length), number(0));
  const auto before = tf_ops::SelectV2(scope, first, tf_ops::Const(scope, 0.0),
                                       tf_ops::ReadVariableOp(scope, sum, tensorflow::DT_DOUBLE));
  update =
      tf_ops::AssignVariableOp(
          scope, sum, tf_ops::Add(scope, before, tf_ops::Cast(scope, loss, tensorflow::DT_DOUBLE)))
          .operation;
  // ((t − 1) mod length) + 1 minibatches are in the sum.
  const auto count = tf_ops::Add(
      scope, tf_ops::FloorMod(scope, tf_ops::Sub(scope, t, number(1)), length), number(1));
  mean = tf_ops::Div(scope, tf_ops::ReadVariableOp(scope, sum, tensorflow::DT_DOUBLE),
                     tf_ops::Cast(scope, count, tensorflow::DT_DOUBLE));
}

int64_t Task::MembersAt(int64_t step) const {
  return HasMembers(plan().late_phase, step) ? members() : 1;
}

bool HasAverage(const LatePhaseOptions& options, int64_t step) {
  return options.swa_start >= 0 && step >= options.swa_start;
}

bool HasMembers(const LatePhaseOptions& options, int64_t step) {
  return options.members > 1 && step > options.start;
}

int32_t LastMember(const LatePhaseOptions& options, int64_t step) {
  if (!HasMembers(options, step)) return 0;
  return static_cast<int32_t>((step - 1 - options.start) % options.members);
}

absl::Status Train(Task* task, Run* run, RunFolder* folder, const TrainOptions& options,
                   TrainEnd* end) {
  Prefetcher<Prepared> batches(
      [task](int64_t t) {
        Prepared prepared;
        prepared.status = task->Batch(t, &prepared.feeds);
        return prepared;
      },
      run->step(), options.steps);
  const double begin = Now();
  const int64_t first = run->step();
  double training = 0;                        // seconds inside minibatches, in this process
  double line_loss = 0;                       // since the last line
  double line_training = 0, line_waited = 0;  // at the last line
  int64_t line_step = first;
  int64_t saved_step = -1;
  auto epoch = [&] { return static_cast<double>(run->step()) / task->steps_per_epoch(); };
  auto not_finite = [&](const std::string& what) {
    return absl::OutOfRangeError(absl::StrCat(
        what, ". The last good checkpoint is ",
        LatestCheckpoint(folder->checkpoints()).value_or("(none)"), ". ", options.advice));
  };
  auto save = [&]() -> absl::Status {
    saved_step = run->step();
    absl::Status status = run->Save(folder->checkpoints());
    // The weights can be lost in an update whose loss was still finite.
    return absl::IsFailedPrecondition(status) ? not_finite(std::string(status.message())) : status;
  };
  auto fork = [&]() -> absl::Status {
    if (run->step() != options.fork_at) return absl::OkStatus();
    absl::Status status = run->Save(folder->path() + "/fork");
    if (status.ok() && options.forked) options.forked();
    return status;
  };

  // A run that has just begun can be resumed too, and its first weights looked at.
  absl::Status status = save();
  if (status.ok()) status = fork();
  while (status.ok() && run->step() < options.steps) {
    if (options.stop && options.stop()) {
      end->stopped = true;
      break;
    }
    const double step_begin = Now();
    Prepared prepared = batches.Next();
    if (!prepared.status.ok()) return prepared.status;
    std::vector<Tensor> outputs;
    status = run->Step(prepared.feeds, {task->loss()}, &outputs);
    if (!status.ok()) break;
    training += Now() - step_begin;
    const double loss = ElementOf(outputs[0], 0);
    if (!std::isfinite(loss)) {
      return not_finite(absl::StrCat("the loss must be finite. Received: loss=", loss, " at step ",
                                     run->step() - 1));
    }
    line_loss += loss;
    const bool last = run->step() == options.steps;
    if (run->step() % options.log_every == 0 || last) {
      const int64_t minibatches = run->step() - line_step;
      TrainProgress progress{
          run->step(),
          options.steps,
          epoch(),
          task->OfLoss(line_loss / minibatches),
          minibatches * task->items_per_step() / (training - line_training),
          (Now() - begin) / (run->step() - first) * (options.steps - run->step())};
      Metrics metrics = progress.metrics;
      metrics["items_per_second"] = progress.items_per_second;
      metrics["input_wait"] = (batches.waited() - line_waited) / (training - line_training);
      metrics["seconds"] = folder->earlier_seconds() + training;
      status = folder->LogTraining(run->step(), epoch(), metrics);
      if (options.progress) options.progress(progress);
      line_loss = 0;
      line_step = run->step();
      line_training = training;
      line_waited = batches.waited();
    }
    // The trained model is for the caller to evaluate, on every split.
    if (status.ok() && options.evaluate_every > 0 && !last &&
        run->step() % options.evaluate_every == 0) {
      for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
        if (set == WeightSet::kSwa && !HasAverage(run->options(), run->step())) continue;
        Metrics metrics;
        status = task->Evaluate(run, task->watched(), set, 0, &metrics);
        if (!status.ok()) break;
        status = folder->LogEvaluation(run->step(), epoch(), SplitName(task->watched()),
                                       WeightSetName(set), metrics);
      }
    }
    if (status.ok()) status = fork();
    if (status.ok() && options.checkpoint_every > 0 &&
        run->step() % options.checkpoint_every == 0) {
      status = save();
    }
  }
  if (status.ok() && saved_step != run->step()) status = save();
  end->seconds = folder->earlier_seconds() + training;
  end->input_wait = training > 0 ? batches.waited() / training : 0;
  return status;
}

}  // namespace late_phase

#include "models/training/trainer.h"

#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/training/prefetch.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::Output;
using tensorflow::Tensor;

namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A training in progress.
class Training {
 public:
  Training(Task* task, Run* run, RunFolder* folder, const TrainOptions& options)
      : task_(task),
        run_(run),
        folder_(folder),
        options_(options),
        first_(run->step()),
        batches_([this](int64_t t) { return Batch(t); }, first_, options.steps),
        line_{first_, 0, 0, 0} {}

  absl::StatusOr<TrainEnd> ToTheEnd() {
    // A run that has just begun can be resumed too, and its initial weights inspected.
    TF_RETURN_IF_ERROR(Save());
    TF_RETURN_IF_ERROR(Fork());
    bool stopped = false;
    while (run_->step() < options_.steps) {
      stopped = Stops();
      if (stopped) break;
      TF_RETURN_IF_ERROR(Step());
      if (run_->step() % options_.log_every == 0 || Last()) TF_RETURN_IF_ERROR(Log());
      if (EvaluationIsDue()) TF_RETURN_IF_ERROR(Evaluate());
      TF_RETURN_IF_ERROR(Fork());
      if (options_.checkpoint_every > 0 && run_->step() % options_.checkpoint_every == 0) {
        TF_RETURN_IF_ERROR(Save());
      }
    }
    if (saved_step_ != run_->step()) TF_RETURN_IF_ERROR(Save());
    return TrainEnd{stopped, folder_->earlier_seconds() + training_,
                    training_ > 0 ? batches_.waited() / training_ : 0};
  }

 private:
  // Several workers stop after the same step, whichever of them was asked.
  bool Stops() {
    const bool asked = options_.stop && options_.stop();
    if (run_->alone()) return asked;
    if (asked) run_->TellToStop();
    return run_->told_to_stop();
  }

  double Epoch() const { return static_cast<double>(run_->step()) / task_->steps_per_epoch(); }
  bool Last() const { return run_->step() == options_.steps; }
  // The trained model is left for the caller to evaluate, on every split.
  bool EvaluationIsDue() const {
    return options_.evaluate_every > 0 && !Last() && run_->step() % options_.evaluate_every == 0;
  }

  // Minibatches are prepared ahead of time by another thread.
  absl::StatusOr<Run::Feeds> Batch(int64_t t) {
    const std::lock_guard<std::mutex> lock(batch_mutex_);
    return task_->Batch(t);
  }

  absl::Status NotFinite(absl::string_view what) const {
    if (folder_->path().empty()) return absl::OutOfRangeError(what);
    return absl::OutOfRangeError(absl::StrCat(
        what, ". The last good checkpoint is ",
        LatestCheckpoint(folder_->checkpoints()).value_or("(none)"), ". ", options_.advice));
  }

  absl::Status Save() {
    TF_RETURN_IF_ERROR(folder_->Check());
    saved_step_ = run_->step();
    absl::Status status = run_->Save(folder_->checkpoints());
    // The weights can be lost in an update whose loss was still finite.
    return absl::IsFailedPrecondition(status) ? NotFinite(status.message()) : status;
  }

  absl::Status Fork() {
    if (run_->step() != options_.fork_at) return absl::OkStatus();
    TF_RETURN_IF_ERROR(folder_->Check());
    TF_RETURN_IF_ERROR(run_->Save(folder_->path() + "/fork"));
    if (options_.forked) options_.forked();
    return absl::OkStatus();
  }

  absl::Status Step() {
    const double begin = Now();
    TF_ASSIGN_OR_RETURN(const Run::Feeds feeds, batches_.Next());
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, run_->Step(feeds, {task_->loss()}));
    training_ += Now() - begin;
    const double loss = GetElement(outputs[0], 0);
    if (!std::isfinite(loss)) {
      return NotFinite(absl::StrCat("the loss must be finite. Received: loss=", loss, " at step ",
                                    run_->step() - 1));
    }
    line_.loss += loss;
    return absl::OkStatus();
  }

  // A line of metrics.jsonl, about the minibatches since the last one.
  absl::Status Log() {
    const int64_t minibatches = run_->step() - line_.step;
    const double seconds = training_ - line_.training;
    const TrainProgress progress{
        run_->step(),
        options_.steps,
        Epoch(),
        task_->LossMetrics(line_.loss / minibatches),
        minibatches * task_->items_per_step() / seconds,
        (Now() - begin_) / (run_->step() - first_) * (options_.steps - run_->step())};
    Metrics metrics = progress.metrics;
    metrics["items_per_second"] = progress.items_per_second;
    metrics["input_wait"] = (batches_.waited() - line_.waited) / seconds;
    metrics["seconds"] = folder_->earlier_seconds() + training_;
    const absl::Status status = folder_->LogTraining(run_->step(), Epoch(), metrics);
    if (options_.progress) options_.progress(progress);
    line_ = {run_->step(), 0, training_, batches_.waited()};
    return status;
  }

  absl::Status Evaluate() {
    for (const WeightSet set : {WeightSet::kCollapsed, WeightSet::kSwa}) {
      if (set == WeightSet::kSwa && !HasAverage(run_->options(), run_->step())) continue;
      TF_ASSIGN_OR_RETURN(const Metrics metrics, task_->Evaluate(run_, task_->watched(), set));
      TF_RETURN_IF_ERROR(folder_->LogEvaluation(run_->step(), Epoch(), SplitName(task_->watched()),
                                                WeightSetName(set), metrics));
    }
    return LogMembers(
        *task_, [this](int64_t t) { return Batch(t); }, run_, folder_);
  }

  Task* const task_;
  Run* const run_;
  RunFolder* const folder_;
  const TrainOptions& options_;
  const int64_t first_;  // step
  std::mutex batch_mutex_;
  Prefetcher<absl::StatusOr<Run::Feeds>> batches_;
  const double begin_ = Now();
  double training_ = 0;  // seconds inside minibatches, in this process
  int64_t saved_step_ = -1;
  struct Line {
    int64_t step;
    double loss;              // the sum since this line
    double training, waited;  // seconds so far
  };
  Line line_;  // the last one
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

absl::Status LogMembers(const Task& task, const MakeMinibatch& minibatch, Run* run,
                        RunFolder* folder) {
  if (!HasMembers(run->options(), run->step())) return absl::OkStatus();
  TF_ASSIGN_OR_RETURN(Metrics metrics, MemberSpread(task.weights(), run));
  TF_ASSIGN_OR_RETURN(const std::optional<double> agreement,
                      GradientAgreement(task.weights(), task.carried(), minibatch, run));
  if (agreement.has_value()) metrics["gradient_agreement"] = *agreement;
  return folder->LogMembers(run->step(), static_cast<double>(run->step()) / task.steps_per_epoch(),
                            metrics);
}

bool HasAverage(const LatePhaseOptions& options, int64_t step) {
  return options.swa_start >= 0 && step >= options.swa_start;
}

bool HasMembers(const LatePhaseOptions& options, int64_t step) {
  return options.members > 1 && step > options.start;
}

int32_t LastMember(const LatePhaseOptions& options, int64_t step) {
  if (!HasMembers(options, step)) return 0;
  return static_cast<int32_t>(options.SinceRestart(step - 1) % options.members);
}

absl::StatusOr<TrainEnd> Train(Task* task, Run* run, RunFolder* folder,
                               const TrainOptions& options) {
  return Training(task, run, folder, options).ToTheEnd();
}

}  // namespace late_phase

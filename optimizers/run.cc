#include "optimizers/run.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace late_phase {

using tensorflow::Tensor;

Run::Run(const LatePhase& late_phase, int threads, Settings settings)
    : options_(late_phase.options()),
      init_(late_phase.init_target()),
      train_(late_phase.train_target()),
      spawn_(late_phase.spawn_target()),
      swa_(late_phase.swa_target()),
      saved_(late_phase.saved()),
      settings_(late_phase.Text()),
      threads_(threads) {
  settings_.insert(settings_.end(), settings.begin(), settings.end());
  for (const auto& variable : saved_) {
    settings_.emplace_back(variable.name, absl::StrCat(tensorflow::DataTypeString(variable.dtype),
                                                       variable.shape.DebugString()));
  }
}

absl::Status Run::Create(const LatePhase& late_phase, int threads, const Settings& settings,
                         std::unique_ptr<Run>* run) {
  tensorflow::GraphDef graph;
  if (absl::Status status = late_phase.scope().ToGraphDef(&graph); !status.ok()) return status;
  if (late_phase.train_target().empty()) {
    return absl::FailedPreconditionError("Minimize must be called before a run is made");
  }
  if (threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`threads` must be at least 1. Received: threads=", threads));
  }
  run->reset(new Run(late_phase, threads, settings));
  tensorflow::SessionOptions options;
  options.config.set_intra_op_parallelism_threads(threads);
  // One op at a time: ops have their own threads, and the order of execution, hence of any
  // rounding, is the same in every run.
  options.config.set_inter_op_parallelism_threads(1);
  (*run)->session_.reset(tensorflow::NewSession(options));
  return (*run)->session_->Create(graph);
}

absl::Status Run::Initialize() {
  step_ = 0;
  reestimated_at_.clear();
  return session_->Run({}, {}, {init_}, nullptr);
}

absl::Status Run::Step(const Feeds& feeds, const std::vector<std::string>& fetches,
                       std::vector<Tensor>* outputs) {
  if (step_ == options_.start && !spawn_.empty()) {
    if (absl::Status status = session_->Run({}, {}, {spawn_}, nullptr); !status.ok()) return status;
  }
  std::vector<Tensor> unused;
  if (absl::Status status =
          session_->Run(feeds, fetches, {train_}, outputs == nullptr ? &unused : outputs);
      !status.ok()) {
    return status;
  }
  ++step_;
  const bool sample = !swa_.empty() && step_ >= options_.swa_start &&
                      (step_ - options_.swa_start) % options_.swa_every == 0;
  return sample ? session_->Run({}, {}, {swa_}, nullptr) : absl::OkStatus();
}

absl::Status Run::Fetch(const Feeds& feeds, const std::vector<std::string>& fetches,
                        std::vector<Tensor>* outputs) {
  return session_->Run(feeds, fetches, {}, outputs);
}

absl::Status Run::Evaluate(WeightSet set, const Feeds& feeds,
                           const std::vector<std::string>& fetches, std::vector<Tensor>* outputs) {
  const auto last = reestimated_at_.find(set);
  const bool due = last == reestimated_at_.end() || last->second != step_;
  if (reestimate_ && set != WeightSet::kCurrent && due) {
    if (absl::Status status = reestimate_(this, set); !status.ok()) return status;
    reestimated_at_[set] = step_;
  }
  return Fetch(feeds, fetches, outputs);
}

absl::Status Run::Save(const std::string& dir) {
  std::vector<std::string> reads;
  for (const auto& variable : saved_) reads.push_back(variable.read);
  std::vector<Tensor> values;
  if (absl::Status status = session_->Run({}, reads, {}, &values); !status.ok()) return status;
  CheckpointState state{step_, {}, settings_, threads_};
  for (size_t i = 0; i < saved_.size(); ++i) state.variables[saved_[i].name] = values[i];
  return WriteCheckpoint(dir, state);
}

absl::Status Run::Assign(const std::map<std::string, Tensor>& variables) {
  Feeds feeds;
  std::vector<std::string> targets;
  for (const auto& variable : saved_) {
    const auto found = variables.find(variable.name);
    if (found == variables.end()) continue;
    feeds.push_back({variable.placeholder, found->second});
    targets.push_back(variable.restore);
  }
  return session_->Run(feeds, {}, targets, nullptr);
}

absl::Status Run::Restore(const std::string& dir, std::string* note) {
  const std::optional<std::string> path = LatestCheckpoint(dir);
  if (!path.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  CheckpointState state;
  if (absl::Status status = ReadCheckpoint(*path, &state); !status.ok()) return status;
  if (absl::Status status = SameSettings(state.settings, settings_); !status.ok()) return status;
  if (state.threads != threads_ && note != nullptr) {
    *note =
        absl::StrCat("the checkpoint was written with ", state.threads, " threads, this run has ",
                     threads_, ": results will differ by rounding from an uninterrupted run's");
  }
  if (absl::Status status = Assign(state.variables); !status.ok()) return status;
  step_ = state.step;
  reestimated_at_.clear();
  return absl::OkStatus();
}

absl::Status Run::StartFrom(const std::string& dir) {
  const std::optional<std::string> path = LatestCheckpoint(dir);
  if (!path.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  CheckpointState state;
  if (absl::Status status = ReadCheckpoint(*path, &state); !status.ok()) return status;
  if (absl::Status status = Initialize(); !status.ok()) return status;
  std::map<std::string, Tensor> weights;
  for (const auto& variable : saved_) {
    if (!variable.declared) continue;
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the checkpoint ", *path, " must hold ", variable.name));
    }
    Tensor value = found->second;
    if (value.shape() != variable.shape) {
      // A late-phase weight of another K: all rows start as the checkpoint's first.
      tensorflow::TensorShape row = variable.shape, saved_row = value.shape();
      if (row.dims() > 0) row.RemoveDim(0);
      if (saved_row.dims() > 0) saved_row.RemoveDim(0);
      if (row != saved_row || value.dims() == 0 || value.dim_size(0) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("`", variable.name, "` must be ", value.shape().DebugString(),
                         ", as in the checkpoint. Received: shape=", variable.shape.DebugString()));
      }
      Tensor stack(value.dtype(), variable.shape);
      const size_t bytes = value.TotalBytes() / value.dim_size(0);
      for (int64_t k = 0; k < variable.shape.dim_size(0); ++k) {
        std::memcpy(static_cast<char*>(stack.data()) + k * bytes, value.data(), bytes);
      }
      value = stack;
    }
    weights[variable.name] = value;
  }
  return Assign(weights);
}

}  // namespace late_phase

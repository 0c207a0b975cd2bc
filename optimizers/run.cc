#include "optimizers/run.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "optimizers/session.h"
#include "optimizers/tensors.h"

namespace late_phase {

using tensorflow::Tensor;

namespace {

// A late-phase variable of another K: every row is the first one of `value`. None if the rows
// differ in shape.
std::optional<Tensor> FirstRowEverywhere(const Tensor& value,
                                         const tensorflow::TensorShape& shape) {
  tensorflow::TensorShape row = shape, saved_row = value.shape();
  if (row.dims() > 0) row.RemoveDim(0);
  if (saved_row.dims() > 0) saved_row.RemoveDim(0);
  if (row != saved_row || value.dims() == 0 || value.dim_size(0) == 0) return std::nullopt;
  return RepeatedRow(value.dtype(), value.data(), shape);
}

// What a variable becomes whose model's value is `value` in another run, where `members` rows of a
// late-phase variable count; a part of the network may have members there and none here, or the
// other way round. None if it is of another shape.
std::optional<Tensor> ModelOf(const Tensor& value, int64_t members,
                              const LatePhase::Saved& variable) {
  // Without members, BatchNorm's stacks have one row.
  auto without_one = [](tensorflow::TensorShape shape) {
    if (shape.dims() > 0 && shape.dim_size(0) == 1) shape.RemoveDim(0);
    return shape;
  };
  auto row_of = [](tensorflow::TensorShape stack) {
    if (stack.dims() > 0) stack.RemoveDim(0);
    return stack;
  };
  const bool stacked = variable.kind == LatePhase::Kind::kMembers;
  const tensorflow::TensorShape row =
      without_one(stacked ? row_of(variable.shape) : variable.shape);
  const bool one = without_one(value.shape()) == row;
  if (!one && (value.dims() == 0 || without_one(row_of(value.shape())) != row)) {
    return std::nullopt;
  }
  const int64_t size = row.num_elements(), rows = one ? 1 : std::min(value.dim_size(0), members);
  Tensor model(variable.dtype, variable.shape);
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < rows; ++k) sum += ElementOf(value, k * size + i);
    for (int64_t j = i; j < model.NumElements(); j += size) SetElement(&model, j, sum / rows);
  }
  return model;
}

absl::Status MustHold(const std::string& path, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("the checkpoint ", path, " must hold ", name));
}

absl::Status MustHave(const std::string& name, const tensorflow::TensorShape& saved,
                      const tensorflow::TensorShape& here) {
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must be ", saved.DebugString(),
                   ", as in the checkpoint. Received: shape=", here.DebugString()));
}

absl::Status ReadNewest(const std::string& dir, std::string* path, CheckpointState* state) {
  const std::optional<std::string> newest = LatestCheckpoint(dir);
  if (!newest.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  *path = *newest;
  return ReadCheckpoint(*path, state);
}

template <typename T>
bool AllFinite(const Tensor& tensor) {
  const auto values = tensor.flat<T>();
  return std::all_of(values.data(), values.data() + values.size(),
                     [](T value) { return std::isfinite(value); });
}

bool AllFinite(const Tensor& tensor) {
  if (tensor.dtype() == tensorflow::DT_FLOAT) return AllFinite<float>(tensor);
  if (tensor.dtype() == tensorflow::DT_DOUBLE) return AllFinite<double>(tensor);
  return true;
}

}  // namespace

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
  std::unique_ptr<tensorflow::Session> session;
  if (absl::Status status = OpenSession(threads, &session); !status.ok()) return status;
  run->reset(new Run(late_phase, threads, settings));
  (*run)->session_ = std::move(session);
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
  tensorflow::RunOptions options;
  tensorflow::RunMetadata metadata;
  options.set_output_partition_graphs(placement_.empty());
  if (absl::Status status = session_->Run(options, feeds, fetches, {train_},
                                          outputs == nullptr ? &unused : outputs, &metadata);
      !status.ok()) {
    return status;
  }
  for (const auto& graph : metadata.partition_graphs()) {
    for (const auto& node : graph.node()) placement_[node.device()].insert(node.op());
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
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (!AllFinite(values[i])) {
      return absl::FailedPreconditionError(
          absl::StrCat("`", saved_[i].name,
                       "` must be finite to be saved. Received: inf or NaN at step ", step_));
    }
    state.variables[saved_[i].name] = values[i];
  }
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
  std::string path;
  CheckpointState state;
  if (absl::Status status = ReadNewest(dir, &path, &state); !status.ok()) return status;
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
  std::string path;
  CheckpointState state;
  if (absl::Status status = ReadNewest(dir, &path, &state); !status.ok()) return status;
  std::map<std::string, std::string> settings(state.settings.begin(), state.settings.end());
  int64_t members = 1, start = 0;
  if (!absl::SimpleAtoi(settings["members"], &members) ||
      !absl::SimpleAtoi(settings["start"], &start)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint ", path, " must hold the settings `members` and `start`"));
  }
  if (absl::Status status = Initialize(); !status.ok()) return status;
  std::map<std::string, Tensor> taken;
  for (const auto& variable : saved_) {
    if (variable.kind == LatePhase::Kind::kState || variable.kind == LatePhase::Kind::kInternal) {
      continue;
    }
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) return MustHold(path, variable.name);
    const Tensor& value = found->second;
    if (variable.kind == LatePhase::Kind::kConstant) {
      std::vector<Tensor> own;
      if (absl::Status status = Fetch({}, {variable.read}, &own); !status.ok()) return status;
      if (value.shape() == own[0].shape() && value.tensor_data() == own[0].tensor_data()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("`", variable.name, "` must be what it is in the checkpoint ", path));
    }
    // At t = T0 there is still one member.
    std::optional<Tensor> model = ModelOf(value, state.step > start ? members : 1, variable);
    if (!model.has_value()) return MustHave(variable.name, value.shape(), variable.shape);
    taken[variable.name] = *std::move(model);
  }
  return Assign(taken);
}

absl::Status Run::Fork(const std::string& dir) {
  std::string path;
  CheckpointState state;
  if (absl::Status status = ReadNewest(dir, &path, &state); !status.ok()) return status;
  // Variables of another K take the shape they have here.
  for (const auto& variable : saved_) {
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) {
      if (variable.kind == LatePhase::Kind::kInternal) continue;
      return MustHold(path, variable.name);
    }
    if (found->second.shape() == variable.shape) continue;
    std::optional<Tensor> stack = FirstRowEverywhere(found->second, variable.shape);
    if (!stack.has_value()) return MustHave(variable.name, found->second.shape(), variable.shape);
    found->second = *std::move(stack);
  }
  if (state.step > options_.start) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fork must begin at the latest at `start`. Received: a checkpoint of step ",
                     state.step, ", start=", options_.start));
  }
  if (absl::Status status = Initialize(); !status.ok()) return status;
  if (absl::Status status = Assign(state.variables); !status.ok()) return status;
  step_ = state.step;
  return absl::OkStatus();
}

}  // namespace late_phase

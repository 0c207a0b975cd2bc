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

constexpr char kSpawned[] = "late_phase/spawned";

std::string TypeText(tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  return absl::StrCat(tensorflow::DataTypeString(dtype), shape.DebugString());
}

bool IsFloating(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
}

absl::Status MustHold(const std::string& path, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("the checkpoint ", path, " must hold ", name));
}

// In the words of a checkpoint that this run is to take a variable from.
absl::Status MustHave(const LatePhase::Saved& variable, const Tensor& saved) {
  if (saved.dtype() != variable.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", variable.name, "` must be of type ", tensorflow::DataTypeString(variable.dtype),
        ". Received: type=", tensorflow::DataTypeString(saved.dtype()), ", in the checkpoint"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("`", variable.name, "` must be ", saved.shape().DebugString(),
                   ", as in the checkpoint. Received: shape=", variable.shape.DebugString()));
}

bool SameBits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (tensorflow::DataTypeCanUseMemcpy(a.dtype())) return a.tensor_data() == b.tensor_data();
  return a.dtype() == tensorflow::DT_STRING &&
         std::equal(a.flat<tensorflow::tstring>().data(),
                    a.flat<tensorflow::tstring>().data() + a.NumElements(),
                    b.flat<tensorflow::tstring>().data());
}

// What a variable becomes whose value in a run of another K is `value`: every row is the first one.
// A single row may also be without its dimension, here or there. None if type or rows differ.
std::optional<Tensor> FirstRowEverywhere(const Tensor& value, const LatePhase::Saved& variable) {
  if (value.dtype() != variable.dtype) return std::nullopt;
  if (value.shape() == variable.shape) return value;
  auto is_row_of = [](tensorflow::TensorShape row, const tensorflow::TensorShape& stack) {
    row.InsertDim(0, 1);
    return row == stack;
  };
  if (is_row_of(value.shape(), variable.shape) || is_row_of(variable.shape, value.shape())) {
    Tensor same(value.dtype());
    return same.CopyFrom(value, variable.shape) ? std::optional<Tensor>(same) : std::nullopt;
  }
  tensorflow::TensorShape row = variable.shape, saved_row = value.shape();
  if (row.dims() > 0) row.RemoveDim(0);
  if (saved_row.dims() > 0) saved_row.RemoveDim(0);
  if (row != saved_row || value.dims() == 0 || value.dim_size(0) == 0 ||
      !tensorflow::DataTypeCanUseMemcpy(value.dtype())) {
    return std::nullopt;
  }
  return RepeatedRow(value.dtype(), value.data(), variable.shape);
}

// What a variable becomes whose model's value is `value` in another run, where `members` rows of a
// late-phase variable count; a part of the network may have members there and none here, or the
// other way round. Floating types may differ. None if it is of another type or shape.
std::optional<Tensor> ModelOf(const Tensor& value, int64_t members,
                              const LatePhase::Saved& variable) {
  if (!IsFloating(value.dtype()) || !IsFloating(variable.dtype)) {
    const bool same = value.dtype() == variable.dtype && value.shape() == variable.shape;
    return same ? std::optional<Tensor>(value) : std::nullopt;
  }
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

// Whether the members were spawned. A checkpoint of 0.1.0 does not say: there, it was always the
// first act of step T0.
bool HasSpawned(const CheckpointState& state, int64_t start) {
  const auto found = state.variables.find(kSpawned);
  if (found == state.variables.end() || found->second.dtype() != tensorflow::DT_INT64 ||
      found->second.NumElements() != 1) {
    return state.step > start;
  }
  return found->second.flat<int64_t>()(0) != 0;
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
      zero_(late_phase.zero_target()),
      train_(late_phase.train_target()),
      spawn_(late_phase.spawn_target()),
      swa_(late_phase.swa_target()),
      saved_(late_phase.saved()),
      settings_(late_phase.Text()),
      threads_(threads) {
  settings_.insert(settings_.end(), settings.begin(), settings.end());
  for (const auto& variable : saved_) {
    settings_.emplace_back(variable.name, TypeText(variable.dtype, variable.shape));
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
  Feeds feeds;
  std::vector<std::string> targets = {zero_};
  for (const auto& variable : saved_) {
    if (variable.initial == nullptr) continue;
    feeds.push_back({variable.placeholder, variable.initial()});
    targets.push_back(variable.restore);
  }
  // The variables take over the memory of what they are fed.
  return session_->Run(feeds, {}, targets, nullptr);
}

absl::Status Run::Spawn() {
  const auto mark = std::find_if(saved_.begin(), saved_.end(),
                                 [](const auto& variable) { return variable.name == kSpawned; });
  std::vector<Tensor> spawned;
  if (absl::Status status = Fetch({}, {mark->read}, &spawned); !status.ok()) return status;
  if (spawned[0].scalar<int64_t>()() != 0) return absl::OkStatus();
  return session_->Run({}, {}, {spawn_}, nullptr);
}

absl::Status Run::Step(const Feeds& feeds, const std::vector<std::string>& fetches,
                       std::vector<Tensor>* outputs) {
  if (step_ == options_.start && !spawn_.empty()) {
    if (absl::Status status = Spawn(); !status.ok()) return status;
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
  for (const auto& [name, value] : variables) {
    const auto found = std::find_if(saved_.begin(), saved_.end(),
                                    [&name = name](const auto& one) { return one.name == name; });
    if (found == saved_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`variables` must be variables of the run. Received: ", name));
    }
    const std::string wanted = TypeText(found->dtype, found->shape),
                      received = TypeText(value.dtype(), value.shape());
    if (wanted != received) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", name, "` must be ", wanted, ". Received: ", received));
    }
    feeds.push_back({found->placeholder, value});
    targets.push_back(found->restore);
  }
  return targets.empty() ? absl::OkStatus() : session_->Run(feeds, {}, targets, nullptr);
}

// A checkpoint of 0.1.0 has a sum of gradients for every base weight, even where the cycle is
// always 1 and the sums zero, and no mark of the members' spawning.
void Run::Modernize(CheckpointState* state) const {
  std::set<std::string> names;
  for (const auto& variable : saved_) names.insert(variable.name);
  std::map<std::string, Tensor>& variables = state->variables;
  for (const std::string& name : names) {
    const std::string sum = name + "/sum";
    if (names.count(sum) > 0 || variables.erase(sum) == 0) continue;
    state->settings.erase(std::remove_if(state->settings.begin(), state->settings.end(),
                                         [&](const auto& setting) { return setting.first == sum; }),
                          state->settings.end());
  }
  if (names.count(kSpawned) == 0 || variables.count(kSpawned) > 0) return;
  Tensor spawned(tensorflow::DT_INT64, {});
  spawned.scalar<int64_t>()() = HasSpawned(*state, options_.start) ? 1 : 0;
  variables[kSpawned] = spawned;
  state->settings.emplace_back(kSpawned, TypeText(spawned.dtype(), spawned.shape()));
}

absl::Status Run::Restore(const std::string& dir, std::string* note) {
  std::string path;
  CheckpointState state;
  if (absl::Status status = ReadNewest(dir, &path, &state); !status.ok()) return status;
  Modernize(&state);
  if (absl::Status status = SameSettings(state, settings_); !status.ok()) return status;
  for (const auto& variable : saved_) {
    if (state.variables.count(variable.name) == 0) return MustHold(path, variable.name);
  }
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
  std::map<std::string, Tensor> taken;
  for (const auto& variable : saved_) {
    if (variable.kind == LatePhase::Kind::kState || variable.kind == LatePhase::Kind::kInternal) {
      continue;
    }
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) return MustHold(path, variable.name);
    const Tensor& value = found->second;
    if (variable.kind == LatePhase::Kind::kConstant) {
      const Tensor own =
          variable.initial ? variable.initial() : Zeros(variable.dtype, variable.shape);
      if (SameBits(value, own)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("`", variable.name, "` must be what it is in the checkpoint ", path));
    }
    // Until they are spawned there is one member.
    std::optional<Tensor> model = ModelOf(value, HasSpawned(state, start) ? members : 1, variable);
    if (!model.has_value()) return MustHave(variable, value);
    taken[variable.name] = *std::move(model);
  }
  if (absl::Status status = Initialize(); !status.ok()) return status;
  return Assign(taken);
}

absl::Status Run::Fork(const std::string& dir) {
  std::string path;
  CheckpointState state;
  if (absl::Status status = ReadNewest(dir, &path, &state); !status.ok()) return status;
  // Variables of another K take the shape they have here.
  std::map<std::string, Tensor> taken;
  for (const auto& variable : saved_) {
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) {
      if (variable.kind == LatePhase::Kind::kInternal) continue;
      return MustHold(path, variable.name);
    }
    std::optional<Tensor> stack = FirstRowEverywhere(found->second, variable);
    if (!stack.has_value()) return MustHave(variable, found->second);
    taken[variable.name] = *std::move(stack);
  }
  if (state.step > options_.start) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fork must begin at the latest at `start`. Received: a checkpoint of step ",
                     state.step, ", start=", options_.start));
  }
  if (absl::Status status = Initialize(); !status.ok()) return status;
  if (absl::Status status = Assign(taken); !status.ok()) return status;
  step_ = state.step;
  return absl::OkStatus();
}

}  // namespace late_phase

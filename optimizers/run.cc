#include "optimizers/run.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "optimizers/session.h"
#include "optimizers/spawning.h"
#include "optimizers/tensors.h"
#include "optimizers/weight_transfer.h"
#include "optimizers/worker_checkpoint.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::Tensor;

namespace {

std::string TypeText(tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  return absl::StrCat(tensorflow::DataTypeString(dtype), shape.DebugString());
}

absl::Status MustHold(const std::string& path, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("the checkpoint ", path, " must hold ", name));
}

// An error about a checkpoint from which this run is to take a variable.
absl::Status MustHave(const SavedVariable& variable, const Tensor& saved) {
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

// Whether the members were spawned. A checkpoint of 0.1.0 does not say: there, spawning was always
// the first thing in step T0.
bool HasSpawned(const CheckpointState& state, int64_t start) {
  const auto found = state.variables.find(kSpawned);
  if (found == state.variables.end() || found->second.dtype() != tensorflow::DT_INT64 ||
      found->second.NumElements() != 1) {
    return state.step > start;
  }
  return found->second.flat<int64_t>()(0) != 0;
}

// The newest checkpoint of a folder, and its path.
absl::StatusOr<Run::NewestCheckpoint> ReadNewestIn(const std::string& dir) {
  const std::optional<std::string> path = LatestCheckpoint(dir);
  if (!path.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  TF_ASSIGN_OR_RETURN(CheckpointState state, ReadCheckpoint(*path));
  return Run::NewestCheckpoint{*path, std::move(state)};
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
      drop_(late_phase.drop_target()),
      swa_(late_phase.swa_target()),
      saved_(late_phase.saved()),
      settings_(late_phase.Text()),
      threads_(threads),
      dtype_(late_phase.dtype()),
      workers_(late_phase.workers()),
      stop_feed_(late_phase.stop_feed()),
      stop_fetch_(late_phase.stop_fetch()) {
  settings_.insert(settings_.end(), settings.begin(), settings.end());
  for (const auto& variable : saved_) {
    settings_.emplace_back(variable.name, TypeText(variable.dtype, variable.joint_shape));
  }
}

Run::~Run() { ReleaseTrainCall(); }

absl::StatusOr<std::unique_ptr<Run>> Run::Create(const LatePhase& late_phase, int threads,
                                                 const Settings& settings) {
  tensorflow::GraphDef graph;
  TF_RETURN_IF_ERROR(late_phase.scope().ToGraphDef(&graph));
  if (late_phase.train_target().empty()) {
    return absl::FailedPreconditionError("Minimize must be called before a run is created");
  }
  Workers* const workers = late_phase.workers();
  TF_ASSIGN_OR_RETURN(std::unique_ptr<tensorflow::Session> session,
                      workers == nullptr ? OpenSession(threads) : workers->OpenSession());
  TF_RETURN_IF_ERROR(session->Create(graph));
  std::unique_ptr<Run> run(new Run(late_phase, threads, settings));
  run->session_ = std::move(session);
  return run;
}

absl::Status Run::Initialize() {
  step_ = 0;
  reestimated_at_.clear();
  Feeds feeds;
  std::vector<std::string> targets = {zero_};
  for (const SavedVariable& variable : saved_) {
    if (variable.initial == nullptr) continue;
    feeds.push_back({variable.placeholder, variable.initial()});
    targets.push_back(variable.restore);
  }
  // The variables take over the memory of what they are fed.
  return session_->Run(feeds, {}, targets, nullptr);
}

absl::Status Run::Spawn() {
  const auto mark = absl::c_find_if(
      saved_, [](const SavedVariable& variable) { return variable.name == kSpawned; });
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> spawned, Fetch({}, {mark->read}));
  if (spawned[0].scalar<int64_t>()() != 0) return absl::OkStatus();
  return session_->Run({}, {}, {spawn_}, nullptr);
}

void Run::ReleaseTrainCall() {
  if (train_call_.has_value()) session_->ReleaseCallable(train_call_->handle).IgnoreError();
  train_call_.reset();
}

absl::StatusOr<tensorflow::Session::CallableHandle> Run::TrainCallFor(
    const Feeds& feeds, absl::Span<const std::string> fetches) {
  // A server's session does not say.
  const bool reports_placement = placement_.empty() && workers_ == nullptr;
  if (train_call_.has_value() && train_call_->reports_placement == reports_placement &&
      absl::c_equal(train_call_->fetches, fetches) &&
      absl::c_equal(train_call_->feeds, feeds,
                    [](const std::string& name, const auto& feed) { return name == feed.first; })) {
    return train_call_->handle;
  }
  ReleaseTrainCall();
  TrainCall call{{}, {fetches.begin(), fetches.end()}, reports_placement, 0};
  tensorflow::CallableOptions options;
  for (const auto& [name, tensor] : feeds) {
    call.feeds.push_back(name);
    options.add_feed(name);
  }
  for (const std::string& name : fetches) options.add_fetch(name);
  options.add_target(train_);
  options.mutable_run_options()->set_output_partition_graphs(reports_placement);
  TF_RETURN_IF_ERROR(session_->MakeCallable(options, &call.handle));
  return train_call_.emplace(std::move(call)).handle;
}

absl::Status Run::Explain(const absl::Status& status) const {
  return workers_ == nullptr ? status : workers_->Explain(status);
}

Run::Feeds Run::WithStop(const Feeds& feeds) const {
  Feeds all = feeds;
  if (stop_feed_.empty()) return all;
  all.emplace_back(stop_feed_, Filled(dtype_, {}, tells_to_stop_ ? 1 : 0));
  return all;
}

std::vector<std::string> Run::WithStop(absl::Span<const std::string> fetches) const {
  std::vector<std::string> all(fetches.begin(), fetches.end());
  if (!stop_fetch_.empty()) all.push_back(stop_fetch_);
  return all;
}

absl::StatusOr<std::vector<Tensor>> Run::Step(const Feeds& minibatch,
                                              absl::Span<const std::string> wanted) {
  const Feeds feeds = WithStop(minibatch);
  const std::vector<std::string> fetches = WithStop(wanted);
  if (step_ == options_.start && !spawn_.empty()) TF_RETURN_IF_ERROR(Spawn());
  const bool restarts =
      !drop_.empty() && step_ > options_.start && options_.SinceRestart(step_) == 0;
  if (restarts) TF_RETURN_IF_ERROR(session_->Run({}, {}, {drop_}, nullptr));
  TF_ASSIGN_OR_RETURN(const auto train_call, TrainCallFor(feeds, fetches));
  std::vector<Tensor> tensors, outputs;
  for (const auto& [name, tensor] : feeds) tensors.push_back(tensor);
  tensorflow::RunMetadata metadata;
  TF_RETURN_IF_ERROR(Explain(session_->RunCallable(train_call, tensors, &outputs, &metadata)));
  for (const auto& graph : metadata.partition_graphs()) {
    for (const auto& node : graph.node()) placement_[node.device()].insert(node.op());
  }
  ++step_;
  if (!stop_fetch_.empty()) {
    told_to_stop_ = GetElement(outputs.back(), 0) != 0;
    outputs.pop_back();
  }
  const bool sample = !swa_.empty() && step_ >= options_.swa_start &&
                      (step_ - options_.swa_start) % options_.swa_every == 0;
  if (sample) TF_RETURN_IF_ERROR(session_->Run({}, {}, {swa_}, nullptr));
  return outputs;
}

absl::StatusOr<std::vector<Tensor>> Run::Fetch(const Feeds& feeds,
                                               absl::Span<const std::string> fetches) {
  std::vector<Tensor> outputs;
  TF_RETURN_IF_ERROR(Explain(session_->Run(feeds, {fetches.begin(), fetches.end()}, {}, &outputs)));
  return outputs;
}

absl::Status Run::PrepareEvaluation(WeightSet set) {
  const auto last = reestimated_at_.find(set);
  const bool due = last == reestimated_at_.end() || last->second != step_;
  if (reestimate_ && set != WeightSet::kCurrent && due) {
    TF_RETURN_IF_ERROR(reestimate_(this, set));
    reestimated_at_[set] = step_;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> Run::Evaluate(WeightSet set, const Feeds& feeds,
                                                  absl::Span<const std::string> fetches) {
  TF_RETURN_IF_ERROR(PrepareEvaluation(set));
  return Fetch(feeds, fetches);
}

absl::Status Run::SumOverWorkers(absl::Span<double> numbers) {
  return workers_ == nullptr ? absl::OkStatus() : workers_->Sum(numbers);
}

absl::StatusOr<CheckpointState> Run::Capture() {
  std::vector<std::string> reads;
  for (const auto& variable : saved_) reads.push_back(variable.read);
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> values, Fetch({}, reads));
  CheckpointState state{step_, {}, settings_, threads_};
  for (size_t i = 0; i < saved_.size(); ++i) {
    Tensor& saved = state.variables[saved_[i].name];
    saved = values[i];
    if (saved_[i].joint_shape == saved_[i].shape) continue;
    TF_ASSIGN_OR_RETURN(saved, JoinRows(values[i], workers_));
  }
  return state;
}

absl::Status Run::Save(const std::string& dir) {
  TF_ASSIGN_OR_RETURN(const CheckpointState state, Capture());
  // All workers have the same values here, so all refuse to save, or none.
  for (const SavedVariable& variable : saved_) {
    if (AllFinite(state.variables.at(variable.name))) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "`", variable.name, "` must be finite to be saved. Received: inf or NaN at step ", step_));
  }
  if (workers_ == nullptr) return WriteCheckpoint(dir, state);
  return workers_->OfFirst(workers_->first() ? WriteCheckpoint(dir, state) : absl::OkStatus());
}

absl::Status Run::Assign(const std::map<std::string, Tensor>& variables) {
  Feeds feeds;
  std::vector<std::string> targets;
  for (const auto& [name, value] : variables) {
    const auto found = absl::c_find_if(
        saved_, [&name = name](const SavedVariable& one) { return one.name == name; });
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

absl::StatusOr<Run::NewestCheckpoint> Run::ReadNewest(const std::string& dir) const {
  const bool alone = workers_ == nullptr;
  absl::StatusOr<NewestCheckpoint> newest = NewestCheckpoint();
  if (alone || workers_->first()) newest = ReadNewestIn(dir);
  if (alone) return newest;
  TF_RETURN_IF_ERROR(workers_->OfFirst(newest.status()));
  TF_ASSIGN_OR_RETURN(newest->path, workers_->Broadcast(newest->path));
  TF_ASSIGN_OR_RETURN(newest->state, FirstState(newest->state, workers_));
  for (const SavedVariable& variable : saved_) {
    const auto found = newest->state.variables.find(variable.name);
    // One of another shape is refused by whoever wants it.
    if (found == newest->state.variables.end() || variable.joint_shape == variable.shape ||
        found->second.shape() != variable.joint_shape) {
      continue;
    }
    found->second = OwnRows(found->second, workers_->share());
  }
  return newest;
}

absl::StatusOr<std::string> Run::Restore(const std::string& dir) {
  TF_ASSIGN_OR_RETURN(NewestCheckpoint newest, ReadNewest(dir));
  CheckpointState& state = newest.state;
  Modernize(&state);
  TF_RETURN_IF_ERROR(SameSettings(state, settings_));
  for (const SavedVariable& variable : saved_) {
    if (state.variables.count(variable.name) == 0) return MustHold(newest.path, variable.name);
  }
  TF_RETURN_IF_ERROR(Assign(state.variables));
  step_ = state.step;
  reestimated_at_.clear();
  if (state.threads == threads_) return "";
  return absl::StrCat("the checkpoint was written with ", state.threads, " threads, this run has ",
                      threads_, ": results will differ by rounding from an uninterrupted run's");
}

absl::Status Run::StartFrom(const std::string& dir) {
  TF_ASSIGN_OR_RETURN(const NewestCheckpoint newest, ReadNewest(dir));
  const auto& [path, state] = newest;
  std::map<std::string, std::string> settings(state.settings.begin(), state.settings.end());
  int64_t members = 1, start = 0;
  if (!absl::SimpleAtoi(settings["members"], &members) ||
      !absl::SimpleAtoi(settings["start"], &start)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint ", path, " must hold the settings `members` and `start`"));
  }
  std::map<std::string, Tensor> taken;
  for (const auto& variable : saved_) {
    if (variable.kind == VariableKind::kState || variable.kind == VariableKind::kInternal) {
      continue;
    }
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) return MustHold(path, variable.name);
    const Tensor& value = found->second;
    if (variable.kind == VariableKind::kConstant) {
      const Tensor own =
          variable.initial ? variable.initial() : Zeros(variable.dtype, variable.shape);
      if (SameBits(value, own)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("`", variable.name, "` must be what it is in the checkpoint ", path));
    }
    // Until they are spawned there is one member.
    std::optional<Tensor> model =
        ModelValue(value, HasSpawned(state, start) ? members : 1, variable);
    if (!model.has_value()) return MustHave(variable, value);
    taken[variable.name] = *std::move(model);
  }
  TF_RETURN_IF_ERROR(Initialize());
  return Assign(taken);
}

absl::Status Run::Fork(const std::string& dir) {
  TF_ASSIGN_OR_RETURN(const NewestCheckpoint newest, ReadNewest(dir));
  const auto& [path, state] = newest;
  // Variables from a run with another K take the shape they have here.
  std::map<std::string, Tensor> taken;
  for (const auto& variable : saved_) {
    const auto found = state.variables.find(variable.name);
    if (found == state.variables.end()) {
      if (variable.kind == VariableKind::kInternal) continue;
      return MustHold(path, variable.name);
    }
    std::optional<Tensor> stack = FirstRowEverywhere(found->second, variable);
    if (!stack.has_value()) return MustHave(variable, found->second);
    taken[variable.name] = *std::move(stack);
  }
  if (state.step > options_.start) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fork must begin no later than `start`. Received: a checkpoint of step ",
                     state.step, ", start=", options_.start));
  }
  TF_RETURN_IF_ERROR(Initialize());
  TF_RETURN_IF_ERROR(Assign(taken));
  step_ = state.step;
  return absl::OkStatus();
}

}  // namespace late_phase

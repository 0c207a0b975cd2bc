#include "models/text/enwik8.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/training/memory.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/cc/ops/array_ops.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/cc/ops/resource_variable_ops.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::DataType;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// In the checkpoint: a variable, a setting.
constexpr char kVocabulary[] = "vocabulary";
constexpr char kStepsPerEpoch[] = "steps_per_epoch";

double NextUniform(std::mt19937_64* engine) {
  return static_cast<double>((*engine)() >> 11) * 0x1p-53;  // [0, 1), the same everywhere
}

template <typename T>
void FillUniform(double low, double high, std::mt19937_64* engine, Tensor* tensor) {
  auto values = tensor->flat<T>();
  for (int64_t i = 0; i < values.size(); ++i) {
    values(i) = static_cast<T>(low + (high - low) * NextUniform(engine));
  }
}

// Weights of one seed: each is drawn from a stream of its own, so base and rank-1 models start from
// the same weights.
Tensor Draw(const CharLstmWeight& weight, DataType dtype, int64_t seed, uint32_t index) {
  std::mt19937_64 engine = MakeEngine(Draws::kTextWeights, seed, index);
  Tensor tensor(dtype, weight.shape);
  if (dtype == tensorflow::DT_DOUBLE) {
    FillUniform<double>(weight.low, weight.high, &engine, &tensor);
  } else {
    FillUniform<float>(weight.low, weight.high, &engine, &tensor);
  }
  return tensor;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

double MemoryOf(const Enwik8Options& options, const CharLstmOptions& network,
                const LatePhaseOptions& late_phase) {
  TrainingNumbers numbers;
  for (const CharLstmWeight& weight : CharLstmWeights(network)) {
    double size = 1;
    for (int64_t d = 0; d < weight.shape.dims(); ++d) size *= weight.shape.dim_size(d);
    (weight.late_phase ? numbers.members : numbers.base) += size;
  }
  numbers.slots = 2;
  numbers.minibatch = 6.0 * options.sequence * options.batch * options.units +
                      2.0 * options.sequence * options.batch * network.vocabulary;
  // The text is mapped, and its pages go when memory is short.
  return TrainingBytes(numbers, late_phase, options.dtype == "float64" ? 8 : 4, 0);
}

absl::Status Complain(const std::string& complaint) {
  return complaint.empty() ? absl::OkStatus() : absl::InvalidArgumentError(complaint);
}

}  // namespace

Enwik8::Enwik8(const Enwik8Options& options, const Vocabulary& vocabulary, const ByteText* text)
    : options_(options),
      vocabulary_(vocabulary),
      text_(text),
      network_{vocabulary.size(), options.embedding, options.units, options.rank1()},
      dtype_(options.dtype == "float64" ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT),
      scope_(tensorflow::Scope::NewRootScope()) {}

absl::Status Enwik8::Create(const Enwik8Options& options, const ByteText* text,
                            std::unique_ptr<Enwik8>* task) {
  task->reset(new Enwik8(options, text->vocabulary(), text));
  TrainingStreams& streams = (*task)->streams_;
  if (absl::Status status = Complain(
          streams.Cut(text->training(), text->vocabulary(), options.batch, options.sequence));
      !status.ok()) {
    return status;
  }
  return (*task)->Build(streams.chunks());
}

absl::Status Enwik8::CreateWithoutText(const Enwik8Options& options, const std::string& checkpoints,
                                       std::unique_ptr<Enwik8>* task) {
  const std::optional<std::string> path = LatestCheckpoint(checkpoints);
  if (!path.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", checkpoints));
  CheckpointState state;
  if (absl::Status status = ReadCheckpoint(*path, &state); !status.ok()) return status;
  int64_t steps_per_epoch = 0;
  for (const auto& [name, value] : state.settings) {
    if (name == kStepsPerEpoch) (void)absl::SimpleAtoi(value, &steps_per_epoch);
  }
  const auto found = state.variables.find(kVocabulary);
  if (steps_per_epoch < 1 || found == state.variables.end() ||
      found->second.dtype() != tensorflow::DT_UINT8) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint ", *path, " must hold `",
                                                   kVocabulary, "` and `", kStepsPerEpoch, "`"));
  }
  const auto characters = found->second.flat<uint8_t>();
  const TextSplit alphabet{kVocabulary, characters.data(), characters.size()};
  task->reset(new Enwik8(options, Vocabulary(alphabet), nullptr));
  return (*task)->Build(steps_per_epoch);
}

absl::Status Enwik8::Build(int64_t steps_per_epoch) {
  // One step of Adam for K minibatches sees 1/√K of their noise.
  if (options_.late_rate == 0) options_.late_rate = 1 / std::sqrt(options_.members);
  if (absl::Status status = PlanTraining(options_, steps_per_epoch, &plan_); !status.ok()) {
    return status;
  }
  plan_.late_phase.clip_norm = options_.clip_norm;
  plan_.bytes = MemoryOf(options_, network_, plan_.late_phase);
  if (absl::Status status = CheckFitsMemory(
          plan_.bytes,
          absl::StrFormat("units=%d, embedding=%d, batch=%d, sequence=%d", options_.units,
                          options_.embedding, options_.batch, options_.sequence));
      !status.ok()) {
    return status;
  }
  if (!options_.device.empty()) scope_ = scope_.WithDevice("/device:" + options_.device);
  const int64_t B = options_.batch, H = options_.units;
  weights_ = std::make_unique<LatePhase>(scope_, plan_.late_phase, dtype_);

  std::map<std::string, Output> read;
  uint32_t index = 0;
  for (const CharLstmWeight& weight : CharLstmWeights(network_)) {
    const InitialValue initial(dtype_, weight.shape,
                               [weight, dtype = dtype_, seed = options_.seed, index = index++] {
                                 return Draw(weight, dtype, seed, index);
                               });
    read[weight.name] = weight.late_phase
                            ? weights_->AddMembers(weight.name, initial, MemberRead::kStack)
                            : weights_->AddBase(weight.name, initial);
  }
  // The characters behind the tokens belong to the model: without them it could not be used.
  Tensor characters(tensorflow::DT_UINT8, {vocabulary_.size()});
  for (int i = 0; i < vocabulary_.size(); ++i) {
    characters.flat<uint8_t>()(i) = vocabulary_.Byte(i);
  }
  weights_->AddState(kVocabulary, characters, StateOf::kConstant);

  // The state is carried from chunk to chunk and zero at each epoch's start.
  const auto fresh = tf_ops::Equal(
      scope_, tf_ops::FloorMod(scope_, weights_->step(), tf_ops::Const(scope_, steps_per_epoch)),
      tf_ops::Const<int64_t>(scope_, 0));
  const InitialValue zero = InitialValue::Zero(dtype_, {B, H});
  const Output state_h = weights_->AddState("state_h", zero),
               state_c = weights_->AddState("state_c", zero);
  if (!scope_.ok()) return scope_.status();
  auto carried = [&](Output state) -> Output {
    const auto value = tf_ops::ReadVariableOp(scope_, state, dtype_);
    return tf_ops::SelectV2(scope_, fresh, tf_ops::ZerosLike(scope_, value), value);
  };
  const TensorShape chunk({options_.sequence, B});
  const Output tokens = tf_ops::Placeholder(scope_.WithOpName("tokens"), tensorflow::DT_INT32,
                                            tf_ops::Placeholder::Shape(chunk)),
               labels = tf_ops::Placeholder(scope_.WithOpName("labels"), tensorflow::DT_INT32,
                                            tf_ops::Placeholder::Shape(chunk));
  const CharLstm network(scope_, network_, read, weights_->member(), tokens, labels,
                         carried(state_h), carried(state_c), /*is_training=*/true);
  const Output loss = tf_ops::Mean(scope_.WithOpName("loss"), network.losses, 0);
  if (!scope_.ok()) return scope_.status();
  const EpochMean epoch(weights_.get(), loss, steps_per_epoch);
  UpdateRule adam = UpdateRule::Adam(options_.learning_rate, options_.epsilon);
  adam.beta1 = options_.beta1;
  adam.beta2 = options_.beta2;
  UpdateRule members = adam;
  if (options_.member_learning_rate > 0) members.lr = options_.member_learning_rate;
  auto keep = [&](Output state, Output value) {
    return tf_ops::AssignVariableOp(scope_, state, value).operation;
  };
  if (absl::Status status = weights_->Minimize(
          loss, adam, members,
          {epoch.update, keep(state_h, network.final_h), keep(state_c, network.final_c)});
      !status.ok()) {
    return status;
  }
  loss_ = loss.name();
  epoch_loss_ = epoch.mean.name();

  for (const WeightSet set : {WeightSet::kCurrent, WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (set == WeightSet::kSwa && plan_.late_phase.swa_start < 0) continue;
    inference_[set] = BuildInference(set);
  }
  return scope_.status();
}

// With NAME the set's name, feeds: NAME/tokens, NAME/labels, NAME/h, NAME/c, and NAME/member for
// the current weights.
Enwik8::Inference Enwik8::BuildInference(WeightSet set) {
  auto fed = [&](const char* what, DataType dtype) -> Output {
    return tf_ops::Placeholder(scope_.WithOpName(WeightSetName(set), "/", what), dtype);
  };
  const Output member = fed("member", tensorflow::DT_INT32);
  std::map<std::string, Output> read;
  for (const CharLstmWeight& weight : CharLstmWeights(network_)) {
    Output value = weights_->Read(weight.name, set, member);
    // What is read is one row; the network takes stacks.
    if (weight.late_phase) value = tf_ops::ExpandDims(scope_, value, 0);
    read[weight.name] = value;
  }
  const CharLstm network(scope_, network_, read, 0, fed("tokens", tensorflow::DT_INT32),
                         fed("labels", tensorflow::DT_INT32), fed("h", dtype_), fed("c", dtype_),
                         /*is_training=*/false);
  if (!scope_.ok()) return {};
  return {network.losses.name(), network.final_h.name(), network.final_c.name(),
          network.logits.name()};
}

absl::Status Enwik8::MakeRun(int threads, std::unique_ptr<Run>* run) {
  return Run::Create(*weights_, threads,
                     {{kStepsPerEpoch, absl::StrCat(plan_.steps_per_epoch)},
                      {"sequence", absl::StrCat(options_.sequence)}},
                     run);
}

absl::Status Enwik8::Batch(int64_t t, Run::Feeds* feeds) {
  const TensorShape shape({options_.sequence, options_.batch});
  Tensor tokens(tensorflow::DT_INT32, shape), labels(tensorflow::DT_INT32, shape);
  streams_.Fill(t % plan_.steps_per_epoch, tokens.flat<int32_t>().data(),
                labels.flat<int32_t>().data());
  *feeds = {{"tokens", tokens}, {"labels", labels}};
  return absl::OkStatus();
}

Metrics Enwik8::OfLoss(double loss) const {
  return {{"loss", loss}, {"bpc", loss / std::log(2.0)}};
}

// The loss of every predicted character of the split, in a fixed order.
absl::Status Enwik8::Losses(Run* run, Split split, WeightSet set, int32_t member,
                            std::vector<double>* losses) {
  if (text_ == nullptr) return absl::FailedPreconditionError("an evaluation needs the text");
  const auto inference = inference_.find(set);
  if (inference == inference_.end()) {
    return absl::FailedPreconditionError("this run has no SWA weights");
  }
  EvaluationStreams streams;
  if (absl::Status status =
          Complain(streams.Cut(split == Split::kTest ? text_->test() : text_->validation(),
                               vocabulary_, options_.batch, options_.sequence));
      !status.ok()) {
    return status;
  }
  const std::string name = WeightSetName(set);
  Tensor h = Zeros(dtype_, {streams.streams(), options_.units}), c = h;
  Tensor which(tensorflow::DT_INT32, {});
  which.scalar<int32_t>()() = member;
  const auto valid = std::make_unique<bool[]>(options_.sequence * streams.streams());
  losses->clear();
  losses->reserve(streams.predictions());
  for (int64_t chunk = 0; chunk < streams.chunks(); ++chunk) {
    const TensorShape shape({streams.Steps(chunk), streams.streams()});
    Tensor tokens(tensorflow::DT_INT32, shape), labels(tensorflow::DT_INT32, shape);
    streams.Fill(chunk, tokens.flat<int32_t>().data(), labels.flat<int32_t>().data(), valid.get());
    std::vector<Tensor> outputs;
    if (absl::Status status = run->Evaluate(
            set,
            {{name + "/tokens", tokens},
             {name + "/labels", labels},
             {name + "/h", h},
             {name + "/c", c},
             {name + "/member", which}},
            {inference->second.losses, inference->second.final_h, inference->second.final_c},
            &outputs);
        !status.ok()) {
      return status;
    }
    for (int64_t i = 0; i < labels.NumElements(); ++i) {
      if (valid[i]) losses->push_back(ElementOf(outputs[0], i));
    }
    h = outputs[1];
    c = outputs[2];
  }
  return absl::OkStatus();
}

absl::Status Enwik8::Evaluate(Run* run, Split split, WeightSet set, int32_t member,
                              Metrics* metrics) {
  std::vector<double> losses;
  if (absl::Status status = Losses(run, split, set, member, &losses); !status.ok()) return status;
  *metrics = OfLoss(Mean(losses));
  return absl::OkStatus();
}

absl::Status Enwik8::EvaluateMembers(Run* run, Split split, std::vector<Metrics>* each,
                                     Metrics* ensemble) {
  // The ensemble's probability of a character is the mean of the members': −ln mean_k exp(−loss_k).
  std::vector<double> probabilities, losses;
  each->clear();
  for (int32_t k = 0; k < members(); ++k) {
    if (absl::Status status = Losses(run, split, WeightSet::kCurrent, k, &losses); !status.ok()) {
      return status;
    }
    each->push_back(OfLoss(Mean(losses)));
    probabilities.resize(losses.size());
    for (size_t i = 0; i < losses.size(); ++i) probabilities[i] += std::exp(-losses[i]);
  }
  double sum = 0;
  for (double probability : probabilities) sum -= std::log(probability / members());
  *ensemble = OfLoss(sum / probabilities.size());
  return absl::OkStatus();
}

absl::Status Enwik8::Sample(Run* run, const Sampling& sampling, std::string* text) {
  const auto inference = inference_.find(sampling.set);
  if (inference == inference_.end()) {
    return absl::FailedPreconditionError("this run has no SWA weights");
  }
  const std::string name = WeightSetName(sampling.set);
  std::vector<int32_t> input;
  for (const char character : sampling.prompt) {
    const auto byte = static_cast<uint8_t>(character);
    if (vocabulary_.Token(byte) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`prompt` must consist of characters of the training text. Received: the byte ",
          static_cast<int>(byte)));
    }
    input.push_back(vocabulary_.Token(byte));
  }
  if (input.empty()) return absl::InvalidArgumentError("`prompt` must not be empty");
  std::mt19937_64 engine = MakeEngine(Draws::kSampledText, sampling.seed, 0);
  Tensor h = Zeros(dtype_, {1, options_.units}), c = h, which(tensorflow::DT_INT32, {});
  which.scalar<int32_t>()() = 0;
  *text = sampling.prompt;
  for (int64_t i = 0; i < sampling.length; ++i) {
    const int64_t T = input.size(), V = vocabulary_.size();
    Tensor tokens(tensorflow::DT_INT32, {T, 1});
    std::copy(input.begin(), input.end(), tokens.flat<int32_t>().data());
    std::vector<Tensor> outputs;
    if (absl::Status status = run->Evaluate(
            sampling.set,
            {{name + "/tokens", tokens},
             {name + "/labels", Zeros(tensorflow::DT_INT32, {T, 1})},
             {name + "/h", h},
             {name + "/c", c},
             {name + "/member", which}},
            {inference->second.logits, inference->second.final_h, inference->second.final_c},
            &outputs);
        !status.ok()) {
      return status;
    }
    h = outputs[1];
    c = outputs[2];
    std::vector<double> weight(V);
    for (int64_t j = 0; j < V; ++j) weight[j] = ElementOf(outputs[0], (T - 1) * V + j);
    const auto best = std::max_element(weight.begin(), weight.end());
    int32_t next = static_cast<int32_t>(best - weight.begin());
    if (sampling.temperature > 0) {
      const double most = *best;
      double sum = 0;
      for (double& w : weight) sum += w = std::exp((w - most) / sampling.temperature);
      double left = NextUniform(&engine) * sum;
      for (next = 0; next + 1 < V && left >= weight[next]; ++next) left -= weight[next];
    }
    text->push_back(static_cast<char>(vocabulary_.Byte(next)));
    input = {next};
  }
  return absl::OkStatus();
}

}  // namespace late_phase

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
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

namespace tf_ops = tensorflow::ops;
using tensorflow::DataType;
using tensorflow::Output;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Names in the checkpoint, of a variable and of a setting.
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

double MemoryBytes(const Enwik8Options& options, const CharLstmOptions& network,
                   const LatePhaseOptions& late_phase) {
  TrainingNumbers numbers;
  for (const CharLstmWeight& weight : CharLstmWeights(network)) {
    double size = 1;
    for (int64_t d = 0; d < weight.shape.dims(); ++d) size *= weight.shape.dim_size(d);
    (weight.late_phase ? numbers.members : numbers.base) += size;
  }
  numbers.slots = options.optimizer == "adam" ? 2 : 1;
  const double characters = 1.0 * options.sequence * options.share().Size(options.batch);
  numbers.minibatch = 6 * characters * options.units + 2 * characters * network.vocabulary;
  // The text is mapped, so its pages can be evicted when memory is short.
  return TrainingBytes(numbers, late_phase, options.dtype == "float64" ? 8 : 4, 0);
}

// The token after the last row of `logits` [time, V]: the likeliest, or a random draw.
int32_t NextToken(const Tensor& logits, double temperature, std::mt19937_64* engine) {
  const int64_t V = logits.dim_size(1), last = logits.NumElements() - V;
  std::vector<double> weight(V);
  for (int64_t j = 0; j < V; ++j) weight[j] = GetElement(logits, last + j);
  const auto best = std::max_element(weight.begin(), weight.end());
  int32_t next = static_cast<int32_t>(best - weight.begin());
  if (temperature > 0) {
    const double most = *best;
    double sum = 0;
    for (double& w : weight) sum += w = std::exp((w - most) / temperature);
    double left = NextUniform(engine) * sum;
    for (next = 0; next + 1 < V && left >= weight[next]; ++next) left -= weight[next];
  }
  return next;
}

// Columns [begin, begin + count) of the first `rows` rows of a matrix [rows, width].
Tensor Columns(const std::vector<int32_t>& matrix, int64_t rows, int64_t width, int64_t begin,
               int64_t count) {
  Tensor columns(tensorflow::DT_INT32, {rows, count});
  int32_t* to = columns.flat<int32_t>().data();
  for (int64_t row = 0; row < rows; ++row, to += count) {
    std::copy_n(&matrix[row * width + begin], count, to);
  }
  return columns;
}

// The status of a core, which reports errors as text.
absl::Status ToStatus(const std::string& complaint) {
  return complaint.empty() ? absl::OkStatus() : absl::InvalidArgumentError(complaint);
}

}  // namespace

Enwik8::Enwik8(const Enwik8Options& options, const Vocabulary& vocabulary, const ByteText* text)
    : options_(options),
      vocabulary_(vocabulary),
      text_(text),
      network_{vocabulary.size(), options.embedding, options.units, options.rank1(),
               options.factors == "whole"},
      dtype_(options.dtype == "float64" ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT),
      scope_(tensorflow::Scope::NewRootScope()) {}

absl::StatusOr<std::unique_ptr<Enwik8>> Enwik8::Create(const Enwik8Options& options,
                                                       const ByteText* text) {
  TF_RETURN_IF_ERROR(ToStatus(CheckShares(options.share(), "batch", options.batch)));
  std::unique_ptr<Enwik8> task(new Enwik8(options, text->vocabulary(), text));
  task->train_characters_ = absl::StrCat(text->training().characters);
  TrainingStreams& streams = task->streams_;
  TF_RETURN_IF_ERROR(
      ToStatus(streams.Cut(text->training(), text->vocabulary(), options.batch, options.sequence)));
  TF_RETURN_IF_ERROR(task->Build(streams.chunks()));
  return task;
}

absl::StatusOr<std::unique_ptr<Enwik8>> Enwik8::CreateWithoutText(const Enwik8Options& options,
                                                                  const std::string& checkpoints) {
  const std::optional<std::string> path = LatestCheckpoint(checkpoints);
  if (!path.has_value()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", checkpoints));
  TF_ASSIGN_OR_RETURN(const CheckpointState state, ReadCheckpoint(*path));
  int64_t steps_per_epoch = 0;
  std::string train_characters;
  for (const auto& [name, value] : state.settings) {
    if (name == kStepsPerEpoch) (void)absl::SimpleAtoi(value, &steps_per_epoch);
    if (name == kTrainCharacters) train_characters = value;
  }
  const auto found = state.variables.find(kVocabulary);
  if (steps_per_epoch < 1 || found == state.variables.end() ||
      found->second.dtype() != tensorflow::DT_UINT8) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint ", *path, " must hold `",
                                                   kVocabulary, "` and `", kStepsPerEpoch, "`"));
  }
  const auto characters = found->second.flat<uint8_t>();
  const TextSplit alphabet{kVocabulary, characters.data(), characters.size()};
  std::unique_ptr<Enwik8> task(new Enwik8(options, Vocabulary(alphabet), nullptr));
  task->train_characters_ = train_characters;
  TF_RETURN_IF_ERROR(task->Build(steps_per_epoch));
  return task;
}

absl::Status Enwik8::Build(int64_t steps_per_epoch) {
  TF_RETURN_IF_ERROR(Plan(steps_per_epoch));
  if (!options_.device.empty()) scope_ = scope_.WithDevice("/device:" + options_.device);
  weights_ = std::make_unique<LatePhase>(scope_, plan_.late_phase, dtype_, options_.workers);
  TF_RETURN_IF_ERROR(BuildTraining());
  for (const WeightSet set : {WeightSet::kCurrent, WeightSet::kCollapsed, WeightSet::kSwa}) {
    if (set == WeightSet::kSwa && plan_.late_phase.swa_start < 0) continue;
    inference_.emplace(set, TextInference(network_, dtype_, set, weights_.get()));
  }
  return scope_.status();
}

absl::Status Enwik8::Plan(int64_t steps_per_epoch) {
  // One step for K minibatches sees 1/√K of their noise, to which Adam's step is in proportion, and
  // 1/K of its square, to which SGD's excess is.
  if (options_.late_rate == 0) {
    options_.late_rate =
        1 / (options_.optimizer == "adam" ? std::sqrt(options_.members) : options_.members);
  }
  TF_ASSIGN_OR_RETURN(plan_, PlanTraining(options_, steps_per_epoch));
  plan_.late_phase.clip_norm = options_.clip_norm;
  plan_.bytes = MemoryBytes(options_, network_, plan_.late_phase);
  return CheckFitsMemory(
      plan_.bytes, absl::StrFormat("units=%d, embedding=%d, batch=%d, sequence=%d", options_.units,
                                   options_.embedding, options_.batch, options_.sequence));
}

std::map<std::string, Output> Enwik8::DeclareWeights() {
  std::map<std::string, Output> read;
  uint32_t index = 0;
  const MemberRead factors = network_.whole_kernel ? MemberRead::kRow : MemberRead::kStack;
  for (const CharLstmWeight& weight : CharLstmWeights(network_)) {
    const InitialValue initial(dtype_, weight.shape,
                               [weight, dtype = dtype_, seed = options_.seed, index = index++] {
                                 return Draw(weight, dtype, seed, index);
                               });
    read[weight.name] = weight.late_phase ? weights_->AddMembers(weight.name, initial, factors)
                                          : weights_->AddBase(weight.name, initial);
  }
  return read;
}

// The characters that tokens stand for belong to the model: without them it could not be used.
void Enwik8::DeclareVocabulary() {
  Tensor characters(tensorflow::DT_UINT8, {vocabulary_.size()});
  for (int i = 0; i < vocabulary_.size(); ++i) {
    characters.flat<uint8_t>()(i) = vocabulary_.Byte(i);
  }
  weights_->AddState(kVocabulary, characters, StateKind::kConstant);
}

absl::Status Enwik8::BuildTraining() {
  const std::map<std::string, Output> read = DeclareWeights();
  DeclareVocabulary();

  // The state is carried from chunk to chunk and zero at each epoch's start.
  const Output length = tf_ops::Const(scope_, plan_.steps_per_epoch);
  const auto fresh = tf_ops::Equal(scope_, tf_ops::FloorMod(scope_, weights_->step(), length),
                                   tf_ops::Const<int64_t>(scope_, 0));
  const TensorShape state({options_.batch, options_.units});
  const Output state_h = weights_->AddDividedState("state_h", dtype_, state),
               state_c = weights_->AddDividedState("state_c", dtype_, state);
  if (!scope_.ok()) return scope_.status();
  const auto before_h = tf_ops::ReadVariableOp(scope_, state_h, dtype_),
             before_c = tf_ops::ReadVariableOp(scope_, state_c, dtype_);
  auto carried = [&](Output before) -> Output {
    return tf_ops::SelectV2(scope_, fresh, tf_ops::ZerosLike(scope_, before), before);
  };
  auto keep = [&](Output state, Output value) {
    return tf_ops::AssignVariableOp(scope_, state, value).operation;
  };

  const TensorShape chunk({options_.sequence, options_.share().Size(options_.batch)});
  auto fed = [&](const char* name) {
    return tf_ops::Placeholder(scope_.WithOpName(name), tensorflow::DT_INT32,
                               tf_ops::Placeholder::Shape(chunk));
  };
  const Output tokens = fed("tokens"), labels = fed("labels");
  const CharLstm network(scope_, network_, read, weights_->member(), tokens, labels,
                         carried(before_h), carried(before_c), /*is_training=*/true);
  const Output loss = tf_ops::Mean(scope_.WithOpName("loss"), network.losses, 0);
  if (!scope_.ok()) return scope_.status();
  const std::vector<Output> joint = weights_->MeanOverWorkers({loss});
  if (!scope_.ok()) return scope_.status();
  const EpochMean epoch(weights_.get(), joint[0], plan_.steps_per_epoch);
  tokens_ = tokens.node()->name();
  labels_ = labels.node()->name();
  loss_ = joint[0].name();
  epoch_loss_ = epoch.mean.name();
  carried_ = {{before_h.value.name(), network.final_h.name()},
              {before_c.value.name(), network.final_c.name()}};

  UpdateRule base = UpdateRule::Momentum(options_.learning_rate, options_.momentum);
  if (options_.optimizer == "adam") {
    base = UpdateRule::Adam(options_.learning_rate, options_.epsilon);
    base.beta1 = options_.beta1;
    base.beta2 = options_.beta2;
  }
  UpdateRule members = base;
  if (options_.member_learning_rate > 0) members.lr = options_.member_learning_rate;
  return weights_->Minimize(
      loss, base, members,
      {epoch.update, keep(state_h, network.final_h), keep(state_c, network.final_c)});
}

absl::StatusOr<std::unique_ptr<Run>> Enwik8::MakeRun(int threads) {
  // What determines the minibatches; the rest is in the graph.
  Settings settings = {{kStepsPerEpoch, absl::StrCat(plan_.steps_per_epoch)},
                       {"sequence", absl::StrCat(options_.sequence)}};
  if (!train_characters_.empty()) settings.push_back({kTrainCharacters, train_characters_});
  return Run::Create(*weights_, threads, settings);
}

absl::StatusOr<Run::Feeds> Enwik8::Batch(int64_t t) {
  const Share share = options_.share();
  const int64_t begin = share.Begin(options_.batch), count = share.Size(options_.batch);
  const TensorShape shape({options_.sequence, count});
  Tensor tokens(tensorflow::DT_INT32, shape), labels(tensorflow::DT_INT32, shape);
  streams_.Fill(t % plan_.steps_per_epoch, begin, count, tokens.flat<int32_t>().data(),
                labels.flat<int32_t>().data());
  return Run::Feeds{{tokens_, tokens}, {labels_, labels}};
}

Metrics Enwik8::LossMetrics(double loss) const {
  return {{"loss", loss}, {"bpc", loss / std::log(2.0)}};
}

absl::StatusOr<const TextInference*> Enwik8::Inference(WeightSet set) const {
  const auto found = inference_.find(set);
  if (found == inference_.end()) {
    return absl::FailedPreconditionError("this run has no SWA weights");
  }
  return &found->second;
}

absl::StatusOr<std::vector<double>> Enwik8::Losses(Run* run, Split split, WeightSet set,
                                                   int32_t member) {
  if (text_ == nullptr) return absl::FailedPreconditionError("an evaluation needs the text");
  TF_ASSIGN_OR_RETURN(const TextInference* inference, Inference(set));
  EvaluationStreams streams;
  TF_RETURN_IF_ERROR(
      ToStatus(streams.Cut(split == Split::kTest ? text_->test() : text_->validation(), vocabulary_,
                           options_.batch, options_.sequence)));
  // Each worker evaluates some of the streams, whose losses depend on no other stream.
  const Share share = options_.share();
  const int64_t S = streams.streams(), begin = S * share.task / share.workers,
                count = S * (share.task + 1) / share.workers - begin;
  TextInference::State state = inference->Start(count);
  const auto valid = std::make_unique<bool[]>(options_.sequence * S);
  std::vector<int32_t> tokens(options_.sequence * S), labels(options_.sequence * S);
  std::vector<double> losses;
  losses.reserve(streams.predictions());
  for (int64_t chunk = 0; chunk < streams.chunks(); ++chunk) {
    streams.Fill(chunk, tokens.data(), labels.data(), valid.get());
    const int64_t steps = streams.Steps(chunk);
    Tensor own;  // [steps·count]
    if (count > 0) {
      TF_ASSIGN_OR_RETURN(
          own, inference->Losses(run, Columns(tokens, steps, S, begin, count),
                                 Columns(labels, steps, S, begin, count), member, &state));
    }
    for (int64_t i = 0; i < steps * S; ++i) {
      const int64_t column = i % S - begin;
      const bool has = column >= 0 && column < count;
      if (valid[i]) losses.push_back(has ? GetElement(own, i / S * count + column) : 0);
    }
  }
  TF_RETURN_IF_ERROR(run->SumOverWorkers(absl::MakeSpan(losses)));
  return losses;
}

absl::StatusOr<Metrics> Enwik8::Evaluate(Run* run, Split split, WeightSet set, int32_t member) {
  TF_ASSIGN_OR_RETURN(const std::vector<double> losses, Losses(run, split, set, member));
  return LossMetrics(Mean(losses));
}

absl::StatusOr<Task::MemberMetrics> Enwik8::EvaluateMembers(Run* run, Split split) {
  // The ensemble's probability of a character is the mean of the members': −ln mean_k exp(−loss_k).
  std::vector<double> probabilities;
  MemberMetrics metrics;
  for (int32_t k = 0; k < members(); ++k) {
    TF_ASSIGN_OR_RETURN(const std::vector<double> losses,
                        Losses(run, split, WeightSet::kCurrent, k));
    metrics.members.push_back(LossMetrics(Mean(losses)));
    probabilities.resize(losses.size());
    for (size_t i = 0; i < losses.size(); ++i) probabilities[i] += std::exp(-losses[i]);
  }
  double sum = 0;
  for (double probability : probabilities) sum -= std::log(probability / members());
  metrics.ensemble = LossMetrics(sum / probabilities.size());
  return metrics;
}

absl::StatusOr<std::vector<int32_t>> Enwik8::Tokens(const std::string& prompt) const {
  std::vector<int32_t> tokens;
  for (const char character : prompt) {
    const auto byte = static_cast<uint8_t>(character);
    if (vocabulary_.Token(byte) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`prompt` must consist of characters of the training text. Received: the byte ",
          static_cast<int>(byte)));
    }
    tokens.push_back(vocabulary_.Token(byte));
  }
  if (tokens.empty()) return absl::InvalidArgumentError("`prompt` must not be empty");
  return tokens;
}

absl::StatusOr<std::string> Enwik8::Sample(Run* run, const Sampling& sampling) {
  TF_ASSIGN_OR_RETURN(const TextInference* inference, Inference(sampling.set));
  TF_ASSIGN_OR_RETURN(std::vector<int32_t> input, Tokens(sampling.prompt));
  std::mt19937_64 engine = MakeEngine(Draws::kSampledText, sampling.seed, 0);
  TextInference::State state = inference->Start(1);
  std::string text = sampling.prompt;
  for (int64_t i = 0; i < sampling.length; ++i) {
    Tensor tokens(tensorflow::DT_INT32, {static_cast<int64_t>(input.size()), 1});
    std::copy(input.begin(), input.end(), tokens.flat<int32_t>().data());
    TF_ASSIGN_OR_RETURN(const Tensor logits, inference->Logits(run, tokens, &state));
    input = {NextToken(logits, sampling.temperature, &engine)};
    text.push_back(static_cast<char>(vocabulary_.Byte(input[0])));
  }
  return text;
}

}  // namespace late_phase

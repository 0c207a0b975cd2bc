// The paper's enwik8 experiment as a Task: the character LSTM trained by Adam on parallel streams
// of text whose state is carried from chunk to chunk, measured in bits per character (BPC).
//
// Three models: "base" is a plain LSTM; "rank1" trains rank-1 factors with it, as one member;
// "late-phase" is rank1 until T0 and has K members from then on. For controls of base and rank1 see
// models/training/recipe.h.
#ifndef LATE_PHASE_MODELS_TEXT_ENWIK8_H_
#define LATE_PHASE_MODELS_TEXT_ENWIK8_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/text/byte_text.h"
#include "models/text/char_lstm.h"
#include "models/text/text_inference.h"
#include "models/training/recipe.h"
#include "models/training/trainer.h"
#include "optimizers/late_phase.h"

namespace late_phase {

struct Enwik8Options : Recipe {
  int64_t units = 500;
  int64_t embedding = 205;
  TextLimits limits;
  int64_t batch = 128;
  int64_t sequence = 100;  // characters through which gradients flow back
  std::string factors =
      "recurrent";                 // what they scale: the recurrent matrix, or the "whole" kernel
  std::string optimizer = "adam";  // or "sgd"
  double learning_rate = 1e-3;
  double member_learning_rate = 0;  // of the factors; 0: learning_rate
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double momentum = 0.9;  // of "sgd", Nesterov's
  double clip_norm = 1;

  bool rank1() const { return late_phase() || IsNetwork("rank1"); }
};

class Enwik8 : public Task {
 public:
  // Builds the graph. The text must outlive the task.
  static absl::StatusOr<std::unique_ptr<Enwik8>> Create(const Enwik8Options& options,
                                                        const ByteText* text);
  // The same for a run's checkpoint, without its text: only for sampling, not Batch or Evaluate.
  static absl::StatusOr<std::unique_ptr<Enwik8>> CreateWithoutText(const Enwik8Options& options,
                                                                   const std::string& checkpoints);

  const TrainPlan& plan() const override { return plan_; }
  int64_t parameters() const override { return CharLstmParameters(network_); }
  double items_per_step() const override { return options_.batch * options_.sequence; }
  std::vector<Split> splits() const override { return {Split::kValidation, Split::kTest}; }
  std::string loss() const override { return loss_; }
  std::string epoch_loss() const override { return epoch_loss_; }
  absl::StatusOr<std::unique_ptr<Run>> MakeRun(int threads) override;
  absl::StatusOr<Run::Feeds> Batch(int64_t t) override;
  const LatePhase& weights() const override { return *weights_; }
  std::vector<CarriedState> carried() const override { return carried_; }
  Metrics LossMetrics(double loss) const override;
  absl::StatusOr<Metrics> Evaluate(Run* run, Split split, WeightSet set, int32_t member) override;
  absl::StatusOr<MemberMetrics> EvaluateMembers(Run* run, Split split) override;

  // Text that the network writes after `prompt`. A higher temperature is bolder; 0 always takes the
  // likeliest character.
  struct Sampling {
    WeightSet set = WeightSet::kCollapsed;
    std::string prompt;
    int64_t length = 500;
    double temperature = 1;
    int64_t seed = 0;
  };
  absl::StatusOr<std::string> Sample(Run* run, const Sampling& sampling);

 private:
  Enwik8(const Enwik8Options& options, const Vocabulary& vocabulary, const ByteText* text);
  [[nodiscard]] absl::Status Build(int64_t steps_per_epoch);
  [[nodiscard]] absl::Status Plan(int64_t steps_per_epoch);
  // Declares the weights and returns the tensors that the network reads, by name.
  std::map<std::string, tensorflow::Output> DeclareWeights();
  void DeclareVocabulary();
  [[nodiscard]] absl::Status BuildTraining();
  absl::StatusOr<const TextInference*> Inference(WeightSet set) const;
  // The loss of every predicted character of the split, in a fixed order.
  absl::StatusOr<std::vector<double>> Losses(Run* run, Split split, WeightSet set, int32_t member);
  absl::StatusOr<std::vector<int32_t>> Tokens(const std::string& prompt) const;

  Enwik8Options options_;
  Vocabulary vocabulary_;
  const ByteText* text_;
  std::string train_characters_;  // their number; empty if not known, without the text
  CharLstmOptions network_;
  TrainPlan plan_;
  tensorflow::DataType dtype_;
  tensorflow::Scope scope_;
  std::unique_ptr<LatePhase> weights_;
  TrainingStreams streams_;
  std::string tokens_, labels_;  // fed in training
  std::vector<CarriedState> carried_;
  std::string loss_, epoch_loss_;  // fetched
  std::map<WeightSet, TextInference> inference_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TEXT_ENWIK8_H_

#include "tools/program/enwik8_experiment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/program/digest.h"
#include "tools/program/driver.h"
#include "tools/program/session.h"

namespace late_phase {

const ExperimentInfo& Enwik8Experiment::info() const {
  static const auto* const info = new ExperimentInfo{
      /*name=*/"enwik8",
      /*description=*/
      "Trains the paper's enwik8 LSTM: plain, with rank-1 factors, and with late-phase factors.",
      /*data_help=*/
      "enwik8 (raw, .gz, .zip) or its folder; default: LATE_PHASE_DATA, the cache, or a download",
      /*preset=*/"quick",
      /*items=*/"characters",
      /*models=*/
      {{"base", "", "all"},
       {"rank1", "", "all"},
       {"accumulation", "base", "all-controls"},
       {"lower-rate", "base", "all-controls"},
       {"decay", "base", "all-controls"},
       {"rank1-lower-rate", "rank1", "all-controls"},
       {"rank1-decay", "rank1", "all-controls"},
       {"rank1-accumulation", "rank1", "all"},
       {"late-phase", "rank1", "all"}},
      /*progress=*/ProgressColumn("bpc"),
      /*columns=*/{MetricColumn("bpc")},
      /*network_settings=*/{"units", "embedding", "factors"}};
  return *info;
}

SettingList Enwik8Experiment::OwnSettings() {
  Enwik8Options* o = &options_;
  auto below_one = [](double x) { return x >= 0 && x < 1; };
  return {
      Integer("units", "units of the LSTM", 1, 100000, &o->units),
      Integer("embedding", "size of a character's embedding", 1, 100000, &o->embedding),
      Integer("train_characters", "use only the first N characters of the training split; 0: all",
              0, kMany, &o->limits.train_characters),
      Integer("validation_characters", "the same for the validation split", 0, kMany,
              &o->limits.validation_characters),
      Integer("test_characters", "the same for the test split", 0, kMany,
              &o->limits.test_characters),
      Integer("batch", "parallel streams of text", 1, 1000000, &o->batch),
      Integer("sequence", "characters through which gradients flow back", 1, 1000000, &o->sequence),
      Choice(
          "factors",
          "what the rank-1 factors scale: the recurrent matrix, or the whole kernel, the input's "
          "part included",
          {"recurrent", "whole"}, &o->factors),
      Choice("optimizer", "Adam, or SGD with momentum", {"adam", "sgd"}, &o->optimizer),
      Positive("learning_rate", "learning rate of the optimizer", &o->learning_rate),
      NotNegative("member_learning_rate",
                  "learning rate of the rank-1 factors; 0: same as learning_rate",
                  &o->member_learning_rate),
      Real("beta1", "Adam's beta1", "a number in [0, 1)", below_one, &o->beta1),
      Real("beta2", "Adam's beta2", "a number in [0, 1)", below_one, &o->beta2),
      Positive("epsilon", "Adam's epsilon", &o->epsilon),
      Real("momentum", "Nesterov momentum of SGD", "a number in [0, 1)", below_one, &o->momentum),
      NotNegative("clip_norm", "largest global norm of a minibatch's gradients; 0: no clipping",
                  &o->clip_norm),
  };
}

std::unique_ptr<Experiment> Enwik8Experiment::Copy() const {
  return std::make_unique<Enwik8Experiment>(*this);
}

void Enwik8Experiment::OpenData(const std::string& path, DataFiles* files) {
  std::string checked = path;
  if (HasDriver()) {
    nlohmann::ordered_json need = {{"needs", info().name}, {"data", nullptr}};
    if (!path.empty()) need["data"] = path;
    checked = AskDriver(need);
  }
  if (checked.empty()) throw UsageError("`data` must name the text. Received: data=");
  text_ = files->Text(checked, options_.limits);
}

std::unique_ptr<Task> Enwik8Experiment::MakeTask() const {
  return Require(Enwik8::Create(options_, text_.get()));
}

std::unique_ptr<Enwik8> Enwik8Experiment::MakeTaskWithoutText(
    const std::string& checkpoints) const {
  return Require(Enwik8::CreateWithoutText(options_, checkpoints));
}

std::string Enwik8Experiment::DataDigest() const {
  Digest digest;
  for (const TextSplit& split : {text_->training(), text_->validation(), text_->test()}) {
    digest.Add(split.bytes, split.characters);
  }
  return digest.Text();
}

std::string Enwik8Experiment::Advice() const {
  return absl::StrCat("Start again with a lower --learning-rate (now ", options_.learning_rate,
                      ") or a smaller --clip-norm (now ", options_.clip_norm, ").");
}

}  // namespace late_phase

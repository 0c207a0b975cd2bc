#include "tools/program/experiment.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/program/cifar_experiment.h"
#include "tools/program/enwik8_experiment.h"

namespace late_phase {

SettingList Experiment::Settings() {
  Recipe* r = &recipe();
  name_ = info().name;
  std::vector<std::string> models = {"all", "all-controls"};
  for (const ExperimentInfo::Model& model : info().models) models.push_back(model.name);
  SettingList settings = {
      Choice("program", "the training program", {name_}, &name_),
      Choice(
          "model",
          "model to train; \"all\": the models compared; \"all-controls\": those and every control",
          models, &r->model),
      Text("pretrained", "folder of a run whose weights to start from; empty: fresh weights",
           &r->pretrained),
      Integer("seed", "seed of the weights and of the members' noise", 0, kMany, &r->seed),
      Integer("seeds", "number of runs of each model, with consecutive seeds", 1, 1000, &seeds),
  };
  const SettingList own = OwnSettings();
  settings.insert(settings.end(), own.begin(), own.end());
  settings.insert(
      settings.end(),
      {
          Positive("epochs", "passes over the training data", &r->epochs),
          Integer("steps", "total number of minibatches, instead of epochs; 0: epochs decides", 0,
                  kMany, &r->steps),
          Integer("members", "number of late-phase members K, and minibatches per step of the base",
                  2, 1000, &r->members),
          NotNegative("t0", "epochs before the members are spawned", &r->t0),
          NotNegative("sigma", "spawning noise, relative to the weights", &r->sigma),
          Real(
              "gamma", "factor on the base's summed gradients", "a number in (0, 1]",
              [](double x) { return x > 0 && x <= 1; }, &r->gamma),
          NotNegative("base_decay_scale",
                      "factor on the base's weight decay once gradients are accumulated; 1 is the "
                      "paper's, members times gamma keeps its balance with SGD's gradients",
                      &r->base_decay_scale),
          NotNegative("late_rate",
                      "factor on the learning rates from T0 on in the control lower-rate; 0: "
                      "1/sqrt(members) with Adam, 1/members with SGD",
                      &r->late_rate),
          Boolean(
              "restart_cycle",
              "start a new cycle with member 0 in each epoch, and drop the base gradients of an "
              "unfinished one",
              &r->restart_cycle),
          Boolean("freeze_base", "train only the members once they are spawned", &r->freeze_base),
          Real(
              "swa_start", "epochs before averaging over time (SWA) starts; -1: never",
              "a number >= -1", [](double x) { return x >= -1; }, &r->swa_start),
          Positive("swa_every", "epochs between SWA samples", &r->swa_every),
          Integer("swag_rank", "deviations from the average to keep for SWAG; 0: no SWAG", 0, 1000,
                  &r->swag_rank),
          Choice("dtype", "type of weights and computation", {"float32", "float64"}, &r->dtype),
          Integer("log_every", "minibatches between lines of metrics.jsonl", 1, kMany, &log_every),
          NotNegative("evaluate_every", "epochs between evaluations; 0: only at the end",
                      &evaluate_every),
          Integer("checkpoint_every", "minibatches between checkpoints", 1, kMany,
                  &checkpoint_every),
      });
  return settings;
}

std::unique_ptr<Experiment> MakeExperiment(const std::string& name) {
  std::unique_ptr<Experiment> all[] = {std::make_unique<Enwik8Experiment>(),
                                       std::make_unique<CifarExperiment>()};
  std::vector<std::string> names;
  for (std::unique_ptr<Experiment>& experiment : all) {
    if (experiment->info().name == name) return std::move(experiment);
    names.push_back(experiment->info().name);
  }
  throw UsageError(absl::StrCat("the training program must be one of ", absl::StrJoin(names, ", "),
                                ". Received: ", name));
}

}  // namespace late_phase

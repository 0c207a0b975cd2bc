#include "tools/program/predictors.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "models/images/collapsed_network.h"
#include "models/images/swag_network.h"
#include "tools/program/cifar_experiment.h"
#include "tools/program/command_line.h"
#include "tools/program/session.h"
#include "tools/program/weight_names.h"

namespace late_phase {
namespace {

const CifarOptions& GetOptions(const EvaluatedRun& run) {
  return static_cast<const CifarExperiment&>(*run.experiment).options();
}

Cifar* GetTask(const EvaluatedRun& run) { return static_cast<Cifar*>(run.task.get()); }

// Predictions of different networks could be averaged too, but that is not an ensemble of runs: it
// is almost always a mistake in the list of folders.
void RequireSameNetwork(const std::vector<EvaluatedRun>& runs) {
  if (runs.size() < 2) {
    throw UsageError(absl::StrCat("`ensemble` must have two runs or more. Received: ", runs.size(),
                                  ", ", runs[0].folder));
  }
  const CifarOptions& first = GetOptions(runs[0]);
  for (const EvaluatedRun& run : runs) {
    const CifarOptions& other = GetOptions(run);
    const bool wide = first.network != "convnet";  // depth and width matter
    const auto differ = [&](const char* name, const auto& one, const auto& two) {
      if (one == two) return;
      throw UsageError(absl::StrCat("the runs of an ensemble must have the same `", name,
                                    "`. Received: ", name, "=", one, " of ", runs[0].folder,
                                    " and ", name, "=", two, " of ", run.folder));
    };
    differ("dataset", first.dataset, other.dataset);
    differ("network", first.network, other.network);
    if (wide) {
      differ("depth", first.depth, other.depth);
      differ("width", first.width, other.width);
    }
  }
}

}  // namespace

size_t Predictors::Add(size_t r, const std::string& name, PredictImages predict) {
  const auto [place, is_new] = places_.insert({{r, name}, networks_.size()});
  if (is_new) networks_.push_back({r, std::move(predict)});
  return place->second;
}

size_t Predictors::Add(size_t r, const std::string& name, const Prediction& how) {
  Cifar* task = GetTask(runs_[r]);
  Run* run = runs_[r].run.get();
  return Add(r, name, [=](const ImageView& images) { return task->Predict(run, images, how); });
}

// Networks that are drawn at random.
std::vector<size_t> Predictors::Sampled(size_t r, const std::string& weights) {
  const bool dropout = weights == "mc-dropout";
  const double has =
      dropout ? GetOptions(runs_[r]).dropout : static_cast<double>(GetOptions(runs_[r]).swag_rank);
  if (has == 0) {
    throw NoSuchWeights(
        weights, *runs_[r].task, *runs_[r].run,
        absl::StrCat("it was trained with ", dropout ? "dropout" : "swag_rank", "=0"));
  }
  // Refuses a run without any sample yet.
  if (!dropout) ParseWeightSet("swa", *runs_[r].task, *runs_[r].run);
  const auto swag = std::make_shared<SwagNetwork>(GetTask(runs_[r]), runs_[r].run.get(), seed_);
  std::vector<size_t> networks;
  for (int64_t s = 0; s < samples_; ++s) {
    const std::string name = absl::StrCat(weights, "-", s);
    if (dropout) {
      networks.push_back(Add(r, name, Prediction{WeightSet::kCollapsed, 0, s}));
    } else {
      networks.push_back(
          Add(r, name, [=](const ImageView& images) { return swag->Predict(images, s); }));
    }
  }
  return networks;
}

std::vector<size_t> Predictors::AddNetworks(size_t r, const std::string& weights) {
  const Run& run = *runs_[r].run;
  const Task& task = *runs_[r].task;
  if (weights == "mc-dropout" || weights == "swag") return Sampled(r, weights);
  if (weights == "collapsed" || weights == "swa") {
    return {Add(r, weights, Prediction{ParseWeightSet(weights, task, run)})};
  }
  if (const std::string way = BatchNormWay(weights); !way.empty()) {
    const auto network =
        std::make_shared<CollapsedNetwork>(GetTask(runs_[r]), runs_[r].run.get(), way);
    return {Add(r, weights, [=](const ImageView& images) { return network->Predict(images); })};
  }
  const auto member = [&](int32_t k) {
    return Add(r, absl::StrCat("member-", k), Prediction{WeightSet::kCurrent, k});
  };
  if (weights != "ensemble") return {member(ParseMember(weights, task, run))};
  std::vector<size_t> members;
  for (int32_t k = 0; k < task.MembersAt(run.step()); ++k) members.push_back(member(k));
  return members;
}

Predictors::Predictors(const std::vector<EvaluatedRun>& runs,
                       const std::vector<std::string>& weights, bool ensemble, int64_t samples,
                       int64_t seed)
    : runs_(runs), samples_(samples), seed_(seed) {
  if (ensemble) RequireSameNetwork(runs);
  for (size_t r = 0; r < runs.size(); ++r) {
    for (const std::string& name : WeightNames(weights, *runs[r].task, *runs[r].run)) {
      Predictor one{runs[r].folder, name, r, {}};
      const std::vector<size_t> its = AddNetworks(r, name);
      for (const size_t n : its) one.networks[n] = static_cast<double>(its.size());
      predictors_.push_back(one);
    }
  }
  if (!ensemble) return;
  for (const std::string& name :
       weights.empty() ? std::vector<std::string>{"collapsed"} : weights) {
    if (name == "members") {
      throw UsageError(
          "`weights` must not be members when runs are averaged: each run has several. "
          "`ensemble` averages a run's members first. Received: weights=members with --ensemble");
    }
    Predictor all{absl::StrCat("ensemble of ", runs.size(), " runs"), name, 0, {}};
    for (size_t r = 0; r < runs.size(); ++r) {
      const std::vector<size_t> its = AddNetworks(r, name);
      for (const size_t n : its) all.networks[n] = static_cast<double>(runs.size() * its.size());
    }
    predictors_.push_back(all);
  }
}

std::vector<Probabilities> Predictors::Predict(const std::function<ImageView(size_t)>& images_of,
                                               const std::function<void()>& progress) const {
  std::vector<Probabilities> means(predictors_.size());
  for (size_t n = 0; n < networks_.size(); ++n) {
    const Probabilities one = Require(networks_[n].predict(images_of(networks_[n].run)));
    for (size_t p = 0; p < predictors_.size(); ++p) {
      const auto its = predictors_[p].networks.find(n);
      if (its == predictors_[p].networks.end()) continue;
      means[p].resize(one.size());
      for (size_t i = 0; i < one.size(); ++i) means[p][i] += one[i] / its->second;
    }
    if (progress) progress();
  }
  return means;
}

}  // namespace late_phase

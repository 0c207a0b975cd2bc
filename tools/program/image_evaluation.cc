#include "tools/program/image_evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/images/classification.h"
#include "models/images/corrupted_images.h"
#include "models/images/detection.h"
#include "models/images/flatness.h"
#include "models/images/image_set.h"
#include "tools/program/cifar_experiment.h"
#include "tools/program/predictors.h"
#include "tools/program/progress_line.h"
#include "tools/program/session.h"
#include "tools/program/weight_names.h"

namespace late_phase {
namespace {

constexpr int64_t kEntropyBins = 50;

const CifarExperiment& GetExperiment(const EvaluatedRun& run) {
  return static_cast<const CifarExperiment&>(*run.experiment);
}

struct NamedImages {
  std::string name, path;
  LabelledImages images;
};

std::vector<NamedImages> ReadSets(const std::vector<std::string>& paths) {
  std::vector<NamedImages> sets;
  for (const std::string& path : paths) {
    NamedImages set{"", path, {}};
    const std::string complaint = ReadImageSet(path, &set.images, &set.name);
    if (!complaint.empty()) throw UsageError(complaint);
    const bool taken = std::any_of(sets.begin(), sets.end(),
                                   [&](const NamedImages& one) { return one.name == set.name; });
    if (taken) set.name = path;
    sets.push_back(std::move(set));
  }
  return sets;
}

std::vector<double> Entropies(const Probabilities& probabilities, int64_t count) {
  const int64_t classes = static_cast<int64_t>(probabilities.size()) / count;
  std::vector<double> entropies(count);
  for (int64_t i = 0; i < count; ++i) entropies[i] = Entropy(&probabilities[i * classes], classes);
  return entropies;
}

// Runs the evaluation: each part predicts what it needs and adds to the rows.
class Suite {
 public:
  Suite(const std::vector<EvaluatedRun>& runs, const EvaluationOptions& options)
      : runs_(runs),
        options_(options),
        predictors_(runs, options.weights, options.ensemble, options.samples, options.seed),
        sets_(ReadSets(options.ood)) {
    for (const Predictors::Predictor& predictor : predictors_.all()) {
      result_.rows.push_back({predictor.run, predictor.weights, {}, Json::object()});
      result_.rows.back().details["networks"] = predictor.networks.size();
    }
    if (options.ensemble) RequireSameImages();
    if (!options.corrupt.empty()) OpenCorrupted();
    if (!options.flatness.empty()) flat_ = FlatNetworks();
    steps_ = static_cast<double>(
        predictors_.networks() * (1 + sets_.size() + (options.corrupt.empty() ? 0 : kCorrupted)) +
        flat_.size() * (1 + options.flatness.size() * options.samples));
  }

  Evaluation Result() {
    OwnImages();
    if (!sets_.empty()) OtherImages();
    if (!options_.corrupt.empty()) Corrupted();
    if (!options_.flatness.empty()) FlatnessOfRuns();
    progress_.Clear();
    return std::move(result_);
  }

 private:
  static constexpr size_t kCorrupted = kCorruptions.size() * kSeverities;

  ImageView SplitImages(size_t r) const {
    const CifarData& data = GetExperiment(runs_[r]).data();
    return options_.split == "test" ? data.test : data.validation;
  }

  void RequireSameImages() const {
    for (size_t r = 1; r < runs_.size(); ++r) {
      const ImageView first = SplitImages(0), other = SplitImages(r);
      if (std::equal(first.pixels, first.pixels + first.bytes(), other.pixels,
                     other.pixels + other.bytes())) {
        continue;
      }
      throw UsageError(absl::StrCat("the runs of an ensemble must have the same ", options_.split,
                                    " images. Received: ", first.count, " of ", runs_[0].folder,
                                    " and others, ", other.count, ", of ", runs_[r].folder));
    }
  }

  void OpenCorrupted() {
    for (const EvaluatedRun& run : runs_) {
      const std::string complaint =
          corrupted_.Open(options_.corrupt, GetExperiment(run).data().classes);
      if (!complaint.empty()) throw UsageError(complaint);
    }
  }

  std::vector<Probabilities> Predict(const std::string& what,
                                     const std::function<ImageView(size_t)>& images_of) {
    return predictors_.Predict(images_of, [&] { Advance(what); });
  }

  void Advance(const std::string& what) {
    done_ += 1;
    if (progress_.Seconds() < 3) return;  // most evaluations are over before anyone could read it
    progress_.Show(absl::StrFormat("%s: %.0f of %.0f passes, %s left", what, done_, steps_,
                                   DurationText(progress_.Seconds() / done_ * (steps_ - done_))),
                   std::min(done_ / steps_, 0.999));
  }

  // Accuracy, NLL, ECE, Brier score, and the reliability diagram.
  void OwnImages() {
    const std::vector<Probabilities> probabilities =
        Predict(options_.split + " images", [&](size_t r) -> ImageView { return SplitImages(r); });
    for (size_t p = 0; p < probabilities.size(); ++p) {
      EvaluationRow& row = result_.rows[p];
      const ImageView images = SplitImages(predictors_.all()[p].of_run);
      const ClassificationMetrics metrics = Classify(probabilities[p], images);
      row.metrics = metrics.ByName();
      row.details["images"] = images.count;
      row.details.update(Json(row.metrics));
      const auto bins = metrics.reliability();
      for (size_t b = 0; b < bins.size(); ++b) {
        row.details["reliability"].push_back({{"from", static_cast<double>(b) / bins.size()},
                                              {"to", static_cast<double>(b + 1) / bins.size()},
                                              {"count", bins[b].count},
                                              {"confidence", bins[b].confidence},
                                              {"accuracy", bins[b].accuracy}});
      }
      if (!sets_.empty()) own_entropies_.push_back(Entropies(probabilities[p], images.count));
    }
  }

  // AUROC of the entropy, the run's own images against others.
  void OtherImages() {
    const auto limit = [&](size_t p) {
      const size_t r = predictors_.all()[p].of_run;
      return std::log(static_cast<double>(GetExperiment(runs_[r]).data().classes));
    };
    for (size_t p = 0; p < result_.rows.size(); ++p) {
      result_.rows[p].details["ood"] = {
          {"mean_auroc", 0.0},
          {"entropy_limit", limit(p)},
          {"own_histogram", Histogram(own_entropies_[p], limit(p), kEntropyBins)},
          {"sets", Json::array()}};
    }
    for (const NamedImages& set : sets_) {
      const std::vector<Probabilities> probabilities =
          Predict(set.name, [&](size_t) -> ImageView { return set.images; });
      for (size_t p = 0; p < probabilities.size(); ++p) {
        const std::vector<double> entropies = Entropies(probabilities[p], set.images.count);
        const double auroc = Auroc(own_entropies_[p], entropies);
        EvaluationRow& row = result_.rows[p];
        row.metrics["auroc/" + set.name] = auroc;
        row.metrics["auroc"] += auroc / static_cast<double>(sets_.size());
        Json& ood = row.details["ood"];
        ood["sets"].push_back({{"name", set.name},
                               {"images", set.images.count},
                               {"auroc", auroc},
                               {"histogram", Histogram(entropies, limit(p), kEntropyBins)}});
        ood["mean_auroc"] = row.metrics["auroc"];
      }
      result_.columns.push_back({"auroc/" + set.name, "AUROC " + set.name, 4, ""});
      result_.details["ood"].push_back({{"name", set.name}, {"path", set.path}});
    }
    result_.columns.push_back({"auroc", "mean AUROC", 4, ""});
  }

  // The plain mean of the errors over corruptions and severities.
  void Corrupted() {
    for (EvaluationRow& row : result_.rows) {
      row.details["corruption"] = {{"mean_error", 0.0},
                                   {"by_severity", std::vector<double>(kSeverities)},
                                   {"by_corruption", Json::object()},
                                   {"errors", Json::object()}};
    }
    for (const char* name : kCorruptions) {
      for (int64_t severity = 1; severity <= kSeverities; ++severity) {
        LabelledImages images;
        const std::string complaint = corrupted_.Read(name, severity, &images);
        if (!complaint.empty()) throw std::runtime_error(complaint);
        const std::vector<Probabilities> probabilities =
            Predict(absl::StrCat(name, ", severity ", severity),
                    [&](size_t) -> ImageView { return images; });
        for (size_t p = 0; p < probabilities.size(); ++p) {
          const double error = 1 - Classify(probabilities[p], images).accuracy();
          Json& corruption = result_.rows[p].details["corruption"];
          corruption["errors"][name].push_back(error);
          Json& of_severity = corruption["by_severity"][severity - 1];
          of_severity = of_severity.get<double>() + error / kCorruptions.size();
          Json& of_corruption = corruption["by_corruption"][name];
          of_corruption = (severity == 1 ? 0 : of_corruption.get<double>()) + error / kSeverities;
          corruption["mean_error"] = result_.rows[p].metrics["mce"] += error / kCorrupted;
        }
      }
    }
    result_.columns.push_back({"mce", "mCE %", 2, "", 100});
    absl::StrAppendFormat(
        &result_.below, "\nmCE: the mean error over %d corruptions of %d severities. Images: %s\n",
        kCorruptions.size(), kSeverities, corrupted_.source());
    result_.details["corruption"] = {{"source", corrupted_.source()},
                                     {"folder", options_.corrupt},
                                     {"images", corrupted_.count()}};
  }

  std::vector<std::pair<size_t, std::string>> FlatNetworks() const {
    std::vector<std::pair<size_t, std::string>> networks;
    for (size_t r = 0; r < runs_.size(); ++r) {
      const size_t before = networks.size();
      for (const Predictors::Predictor& one : predictors_.all()) {
        const bool is_one = one.weights == "collapsed" || one.weights == "swa";
        if (one.run == runs_[r].folder && is_one) networks.push_back({r, one.weights});
      }
      if (networks.size() == before) networks.push_back({r, "collapsed"});
    }
    return networks;
  }

  ImageView FlatnessImages(size_t r) const {
    const CifarData& data = GetExperiment(runs_[r]).data();
    const ImageView all = options_.flatness_split == "test" ? data.test : data.training;
    return all.Part(0, std::min(all.count, options_.flatness_images));
  }

  // δL(σ) of those predictors that are single networks, collapsed or averaged over time; for a run
  // without any, of its collapsed network.
  void FlatnessOfRuns() {
    Json& details = result_.details["flatness"];
    details = {{"split", options_.flatness_split},
               {"samples", options_.samples},
               {"seed", options_.seed},
               {"curves", Json::array()}};
    std::string& table = result_.below;
    absl::StrAppend(&table,
                    "\n| run | weights | images | loss | σ | δL | standard error |\n"
                    "|---|---|---|---|---|---|---|\n");
    for (const auto& [r, weights] : flat_) {
      const ImageView images = FlatnessImages(r);
      FlatnessOptions options{options_.flatness, options_.samples, options_.seed,
                              ParseWeightSet(weights, *runs_[r].task, *runs_[r].run),
                              [&] { Advance("flatness"); }};
      const Flatness flatness = Require(MeasureFlatness(static_cast<Cifar*>(runs_[r].task.get()),
                                                        runs_[r].run.get(), images, options));
      Json points = Json::array();
      for (const Flatness::Point& point : flatness.points) {
        points.push_back({{"sigma", point.sigma},
                          {"mean", point.mean},
                          {"standard_error", point.standard_error},
                          {"differences", point.differences}});
        absl::StrAppendFormat(&table, "| %s | %s | %d %s | %.4f | %g | %.4g | %.2g |\n",
                              runs_[r].folder, weights, images.count, options_.flatness_split,
                              flatness.loss, point.sigma, point.mean, point.standard_error);
      }
      details["curves"].push_back({{"run", runs_[r].folder},
                                   {"weights", weights},
                                   {"images", images.count},
                                   {"loss", flatness.loss},
                                   {"points", points}});
    }
  }

  const std::vector<EvaluatedRun>& runs_;
  const EvaluationOptions& options_;
  const Predictors predictors_;
  const std::vector<NamedImages> sets_;
  std::vector<std::pair<size_t, std::string>> flat_;  // (run, weights) whose flatness is measured
  CorruptedImages corrupted_;
  std::vector<std::vector<double>> own_entropies_;  // of each predictor
  Evaluation result_;
  double done_ = 0, steps_ = 0;  // passes of a network over a set of images
  ProgressLine progress_{60};
};

}  // namespace

Evaluation EvaluateImages(const std::vector<EvaluatedRun>& runs, const EvaluationOptions& options) {
  return Suite(runs, options).Result();
}

}  // namespace late_phase

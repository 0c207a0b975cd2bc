#include "models/images/flatness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/cpu/normals.h"
#include "models/images/classification.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"

namespace late_phase {
namespace {

using tensorflow::Tensor;

// w_i + σ w_i ε_i
Tensor Perturbed(const Tensor& weight, const NormalStream& stream, uint32_t row, double sigma) {
  Tensor perturbed(weight.dtype(), weight.shape());
  float normals[kNormalChunk];
  for (int64_t i = 0; i < weight.NumElements(); ++i) {
    if (i % kNormalChunk == 0) FillNormals(stream, row, i / kNormalChunk, 1, normals);
    const double w = ElementOf(weight, i);
    SetElement(&perturbed, i, w + sigma * w * normals[i % kNormalChunk]);
  }
  return perturbed;
}

absl::Status LossOf(Cifar* task, Run* run, const ImageView& images,
                    const TrialWeights::Plain& weights, double* loss) {
  if (absl::Status status = task->trial_weights()->Assign(run, weights); !status.ok()) {
    return status;
  }
  std::vector<double> probabilities;
  absl::Status status = task->PredictTrial(run, images, &probabilities);
  if (!status.ok()) return status;
  const int64_t classes = static_cast<int64_t>(probabilities.size()) / images.count;
  ClassificationMetrics metrics(classes);
  for (int64_t i = 0; i < images.count; ++i) {
    metrics.Add(&probabilities[i * classes], images.labels[i]);
  }
  *loss = metrics.nll();
  return absl::OkStatus();
}

void Summarise(Flatness::Point* point) {
  const double n = static_cast<double>(point->differences.size());
  double sum = 0, squares = 0;
  for (const double difference : point->differences) sum += difference;
  point->mean = sum / n;
  for (const double difference : point->differences) {
    squares += (difference - point->mean) * (difference - point->mean);
  }
  point->standard_error =
      n > 1 ? std::sqrt(squares / (n - 1) / n) : std::numeric_limits<double>::quiet_NaN();
}

absl::Status Measure(Cifar* task, Run* run, const ImageView& images, const FlatnessOptions& options,
                     Flatness* flatness) {
  TrialWeights* trial = task->trial_weights();
  TrialWeights::Plain plain;
  absl::Status status = trial->Read(run, options.set, &plain);
  if (status.ok()) status = LossOf(task, run, images, plain, &flatness->loss);
  if (!status.ok()) return status;
  if (options.progress) options.progress();
  flatness->points.clear();
  for (const double sigma : options.sigmas) {
    Flatness::Point point{sigma, {}, 0, 0};
    for (int64_t draw = 0; draw < options.samples; ++draw) {
      const NormalStream stream = MakeNormalStream(Normals::kFlatness, options.seed, draw);
      TrialWeights::Plain weights = plain;
      for (size_t w = 0; w < trial->trained().size(); ++w) {
        Tensor& weight = weights.at(trial->trained()[w]);
        weight = Perturbed(weight, stream, static_cast<uint32_t>(w), sigma);
      }
      double loss = 0;
      status = LossOf(task, run, images, weights, &loss);
      if (!status.ok()) return status;
      point.differences.push_back(loss - flatness->loss);
      if (options.progress) options.progress();
    }
    Summarise(&point);
    flatness->points.push_back(point);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureFlatness(Cifar* task, Run* run, const ImageView& images,
                             const FlatnessOptions& options, Flatness* flatness) {
  const absl::Status measured = Measure(task, run, images, options, flatness);
  const absl::Status restored = task->trial_weights()->Restore(run);
  return measured.ok() ? restored : measured;
}

}  // namespace late_phase

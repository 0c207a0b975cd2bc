#include "models/images/flatness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/cpu/normals.h"
#include "models/images/classification.h"
#include "models/images/trial_end.h"
#include "optimizers/random_streams.h"
#include "optimizers/tensors.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::Tensor;

// w_i + σ w_i ε_i
Tensor Perturbed(const Tensor& weight, const NormalStream& stream, uint32_t row, double sigma) {
  Tensor perturbed(weight.dtype(), weight.shape());
  float normals[kNormalChunk];
  for (int64_t i = 0; i < weight.NumElements(); ++i) {
    if (i % kNormalChunk == 0) FillNormals(stream, row, i / kNormalChunk, 1, normals);
    const double w = GetElement(weight, i);
    SetElement(&perturbed, i, w + sigma * w * normals[i % kNormalChunk]);
  }
  return perturbed;
}

absl::StatusOr<double> TrialLoss(Cifar* task, Run* run, const ImageView& images,
                                 const TrialWeights::Plain& weights) {
  TF_RETURN_IF_ERROR(task->trial_weights()->Assign(run, weights));
  TF_ASSIGN_OR_RETURN(const Probabilities probabilities, task->PredictTrial(run, images));
  return Classify(probabilities, images).nll();
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

absl::StatusOr<Flatness> Measure(Cifar* task, Run* run, const ImageView& images,
                                 const FlatnessOptions& options) {
  const TrialWeights* trial = task->trial_weights();
  Flatness flatness;
  TF_ASSIGN_OR_RETURN(const TrialWeights::Plain plain,
                      trial->Read(run, WeightSetName(options.set)));
  TF_ASSIGN_OR_RETURN(flatness.loss, TrialLoss(task, run, images, plain));
  if (options.progress) options.progress();
  for (const double sigma : options.sigmas) {
    Flatness::Point point{sigma, {}, 0, 0};
    for (int64_t draw = 0; draw < options.samples; ++draw) {
      const NormalStream stream = MakeNormalStream(Normals::kFlatness, options.seed, draw);
      TrialWeights::Plain weights = plain;
      for (size_t w = 0; w < trial->trained().size(); ++w) {
        Tensor& weight = weights.at(trial->trained()[w]);
        weight = Perturbed(weight, stream, static_cast<uint32_t>(w), sigma);
      }
      TF_ASSIGN_OR_RETURN(const double loss, TrialLoss(task, run, images, weights));
      point.differences.push_back(loss - flatness.loss);
      if (options.progress) options.progress();
    }
    Summarise(&point);
    flatness.points.push_back(point);
  }
  return flatness;
}

}  // namespace

absl::StatusOr<Flatness> MeasureFlatness(Cifar* task, Run* run, const ImageView& images,
                                         const FlatnessOptions& options) {
  return EndTrial(task->trial_weights(), run, Measure(task, run, images, options));
}

}  // namespace late_phase

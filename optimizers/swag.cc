#include "optimizers/swag.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/normals.h"
#include "optimizers/averages.h"
#include "optimizers/random_streams.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {

using tensorflow::Tensor;

namespace {

constexpr double kLeastVariance = 1e-30;  // rounding may leave a negative variance

// z2 [kept].
std::vector<float> FactorNormals(int64_t seed, int64_t sample, int64_t kept) {
  const int64_t chunks = (kept + kNormalChunk - 1) / kNormalChunk;
  std::vector<float> normals(chunks * kNormalChunk);
  FillNormals(MakeNormalStream(Normals::kSwag, seed, 0), static_cast<uint32_t>(sample), 0, chunks,
              normals.data());
  normals.resize(kept);
  return normals;
}

// w: [size] out; of one weight.
template <typename T>
void Sample(const SwagMoments::Weight& weight, const NormalStream& stream, int64_t sample,
            const std::vector<float>& z2, T* w) {
  const T* mean = weight.mean.flat<T>().data();
  const T* square = weight.square.flat<T>().data();
  const T* deviations = weight.deviations.flat<T>().data();
  const int64_t size = weight.mean.NumElements(), kept = static_cast<int64_t>(z2.size());
  const double factor = kept < 2 ? 0 : 1 / std::sqrt(2.0 * (kept - 1));
  float z1[kNormalChunk];
  for (int64_t i = 0; i < size; ++i) {
    if (i % kNormalChunk == 0) {
      FillNormals(stream, static_cast<uint32_t>(sample), i / kNormalChunk, 1, z1);
    }
    const double m = mean[i], variance = std::max(square[i] - m * m, kLeastVariance);
    double low_rank = 0;
    for (int64_t r = 0; r < kept; ++r) low_rank += double{deviations[r * size + i]} * z2[r];
    w[i] = static_cast<T>(m + std::sqrt(variance / 2) * z1[i % kNormalChunk] + factor * low_rank);
  }
}

}  // namespace

absl::StatusOr<SwagMoments> ReadSwagMoments(Run* run) {
  std::map<std::string, std::string> reads;
  for (const SavedVariable& variable : run->saved()) reads[variable.name] = variable.read;
  const auto count = reads.find(kSampleCount);
  if (run->options().swag_rank == 0 || count == reads.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run must collect SWAG's moments (`swag_rank`). Received: swag_rank=",
                     run->options().swag_rank));
  }
  TF_ASSIGN_OR_RETURN(const std::vector<Tensor> number, run->Fetch({}, {count->second}));
  const int64_t samples = number[0].scalar<int64_t>()();
  if (samples == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("SWA must have taken a sample. Received: none at step ", run->step()));
  }
  SwagMoments moments;
  moments.kept = std::min(samples, run->options().swag_rank);
  for (const SavedVariable& variable : run->saved()) {
    const auto deviations = reads.find(variable.name + "/swag_deviations");
    if (deviations == reads.end()) continue;
    TF_ASSIGN_OR_RETURN(
        const std::vector<Tensor> values,
        run->Fetch({}, {reads.at(variable.name + "/swa"), reads.at(variable.name + "/swa_square"),
                        deviations->second}));
    moments.weights.push_back({variable.name, values[0], values[1], values[2]});
  }
  return moments;
}

std::map<std::string, Tensor> SwagSample(const SwagMoments& moments, int64_t seed, int64_t sample) {
  const std::vector<float> z2 = FactorNormals(seed, sample, moments.kept);
  std::map<std::string, Tensor> weights;
  for (size_t i = 0; i < moments.weights.size(); ++i) {
    const SwagMoments::Weight& weight = moments.weights[i];
    const NormalStream stream = MakeNormalStream(Normals::kSwag, seed, 1 + static_cast<int64_t>(i));
    Tensor w(weight.mean.dtype(), weight.mean.shape());
    if (w.dtype() == tensorflow::DT_DOUBLE) {
      Sample(weight, stream, sample, z2, w.flat<double>().data());
    } else {
      Sample(weight, stream, sample, z2, w.flat<float>().data());
    }
    weights[weight.name] = w;
  }
  return weights;
}

}  // namespace late_phase

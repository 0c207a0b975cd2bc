#include "models/training/member_metrics.h"

#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace {

using tensorflow::Tensor;

// Σ_k,i (φ_ki − φ̄_i)² / K and Σ_i φ̄_i²
struct Spread {
  double distances = 0, means = 0;

  void AddTo(const std::string& name, Metrics* metrics) const {
    if (means > 0) (*metrics)[name] = std::sqrt(distances / means);
  }
};

// Of a stack [K, size].
template <typename T>
Spread MeasureSpread(const T* stack, int64_t K, int64_t size) {
  Spread spread;
  for (int64_t i = 0; i < size; ++i) {
    double mean = 0, squares = 0;
    for (int64_t k = 0; k < K; ++k) mean += static_cast<double>(stack[k * size + i]) / K;
    for (int64_t k = 0; k < K; ++k) squares += std::pow(stack[k * size + i] - mean, 2);
    spread.distances += squares / K;
    spread.means += mean * mean;
  }
  return spread;
}

Spread MeasureSpread(const Tensor& stack) {
  const int64_t K = stack.dim_size(0), size = stack.NumElements() / K;
  return stack.dtype() == tensorflow::DT_DOUBLE
             ? MeasureSpread(stack.flat<double>().data(), K, size)
             : MeasureSpread(stack.flat<float>().data(), K, size);
}

// Calls visit(value) for each number of the tensors, in order.
template <typename Visit>
void ForNumbers(absl::Span<const Tensor> tensors, const Visit& visit) {
  for (const Tensor& tensor : tensors) {
    const int64_t size = tensor.NumElements();
    if (tensor.dtype() == tensorflow::DT_DOUBLE) {
      const double* values = tensor.flat<double>().data();
      for (int64_t i = 0; i < size; ++i) visit(values[i]);
    } else {
      const float* values = tensor.flat<float>().data();
      for (int64_t i = 0; i < size; ++i) visit(static_cast<double>(values[i]));
    }
  }
}

template <typename T>
Tensor Scalar(T value) {
  Tensor scalar(tensorflow::DataTypeToEnum<T>::value, {});
  scalar.scalar<T>()() = value;
  return scalar;
}

// Σ_k g_k / ‖g_k‖, and so the mean cosine of all pairs: the sum's square is K + Σ_j≠k cos(g_j,
// g_k).
class UnitSum {
 public:
  // False if the gradient has no direction.
  bool Add(absl::Span<const Tensor> gradient) {
    double squares = 0;
    size_t size = 0;
    ForNumbers(gradient, [&](double g) {
      squares += g * g;
      ++size;
    });
    if (!(squares > 0) || std::isinf(squares)) return false;
    sum_.resize(size);
    const double norm = std::sqrt(squares);
    size_t i = 0;
    ForNumbers(gradient, [&](double g) { sum_[i++] += g / norm; });
    ++count_;
    return true;
  }

  double MeanCosine() const {
    double squares = 0;
    for (const double value : sum_) squares += value * value;
    return (squares - count_) / (count_ * (count_ - 1));
  }

 private:
  std::vector<double> sum_;
  double count_ = 0;
};

}  // namespace

absl::StatusOr<Metrics> MemberSpread(const LatePhase& late_phase, Run* run) {
  Metrics metrics;
  Spread all;
  for (const TrainedWeight& weight : late_phase.weights()) {
    if (!weight.late_phase) continue;
    const auto saved = absl::c_find_if(
        late_phase.saved(), [&](const SavedVariable& one) { return one.name == weight.name; });
    // One at a time: on a GPU each is a copy.
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> stack, run->Fetch({}, {saved->read}));
    const Spread one = MeasureSpread(stack[0]);
    all.distances += one.distances;
    all.means += one.means;
    one.AddTo(absl::StrCat("member_spread/", weight.name), &metrics);
  }
  all.AddTo("member_spread", &metrics);
  return metrics;
}

absl::StatusOr<std::optional<double>> GradientAgreement(const LatePhase& late_phase,
                                                        const std::vector<CarriedState>& carried,
                                                        const MakeMinibatch& minibatch, Run* run) {
  std::vector<std::string> fetches;
  for (const TrainedWeight& weight : late_phase.weights()) {
    if (!weight.late_phase) fetches.push_back(weight.gradient.name());
  }
  const size_t gradients = fetches.size();
  if (gradients == 0) return std::nullopt;
  for (const CarriedState& state : carried) fetches.push_back(state.kept);
  UnitSum sum;
  std::vector<Tensor> states;  // after the last minibatch
  for (int32_t k = 0; k < run->options().members; ++k) {
    const int64_t t = run->step() + k;
    TF_ASSIGN_OR_RETURN(Run::Feeds feeds, minibatch(t));
    feeds.push_back({late_phase.step().name(), Scalar<int64_t>(t)});
    feeds.push_back({late_phase.member().name(), Scalar<int32_t>(k)});
    for (size_t i = 0; i < states.size(); ++i) feeds.push_back({carried[i].read, states[i]});
    TF_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, run->Fetch(feeds, fetches));
    if (!sum.Add(absl::MakeConstSpan(outputs).first(gradients))) return std::nullopt;
    states.assign(outputs.begin() + gradients, outputs.end());
  }
  return sum.MeanCosine();
}

}  // namespace late_phase

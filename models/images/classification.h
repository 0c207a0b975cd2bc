// Metrics of a classifier: accuracy, negative log likelihood, Brier score, expected calibration
// error. No TensorFlow.
#ifndef LATE_PHASE_MODELS_IMAGES_CLASSIFICATION_H_
#define LATE_PHASE_MODELS_IMAGES_CLASSIFICATION_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/images/labelled_images.h"

namespace late_phase {

// probabilities = exp(logits) / Σ exp(logits), without overflow; NaN where a logit is NaN or +∞.
// logits: [classes], read. probabilities: [classes], written; may be the logits.
void Softmax(const double* logits, int64_t classes, double* probabilities);

// Collects predictions, then gives the metrics over all of them; NaN while there are none.
class ClassificationMetrics {
 public:
  explicit ClassificationMetrics(int64_t classes) : classes_(classes) {}

  // probabilities: [classes], read. REQUIRES: 0 <= label < classes.
  // A prediction with a NaN among its probabilities is wrong, and makes nll(), brier() and ece()
  // NaN.
  void Add(const double* probabilities, int32_t label);

  int64_t count() const { return count_; }

  // The share of predictions whose largest probability (the first one in a tie) is the label's.
  double accuracy() const;

  // The mean of −ln(probability of the label). A probability below the smallest positive normal
  // number, 2.2e-308, counts as that: one that was rounded to 0 costs 708 nats, not infinitely
  // many.
  double nll() const;

  // The mean of Σ_c (probability of c − [c is the label])², in [0, 2].
  double brier() const;

  // Expected calibration error: predictions are sorted into 15 bins of equal width by confidence,
  // the largest probability; bin b is (b/15, (b + 1)/15]. Σ over the bins of
  // |accuracy − mean confidence| · share of the predictions.
  double ece() const;

  // What a reliability diagram shows for a bin; NaN for an empty one. Predictions with a NaN are in
  // none.
  struct Reliability {
    int64_t count = 0;
    double confidence = 0;  // mean
    double accuracy = 0;
  };
  std::vector<Reliability> reliability() const;  // [15]

  // "accuracy", "nll", "ece", "brier".
  std::map<std::string, double> ByName() const;

 private:
  struct Bin {
    int64_t count = 0, right = 0;
    double confidence = 0;  // sum
  };

  int64_t classes_;
  int64_t count_ = 0;
  double nll_ = 0, brier_ = 0;  // sums
  std::array<Bin, 15> bins_;
};

// The metrics of predictions for images. probabilities: [images, classes].
ClassificationMetrics Classify(const std::vector<double>& probabilities, const ImageView& images);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_CLASSIFICATION_H_

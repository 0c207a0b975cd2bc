// How well the entropy of a classifier's predictions tells unknown images from known ones. No
// TensorFlow.
#ifndef LATE_PHASE_MODELS_IMAGES_DETECTION_H_
#define LATE_PHASE_MODELS_IMAGES_DETECTION_H_

#include <cstdint>
#include <vector>

namespace late_phase {

// Shannon entropy, −Σ p ln p in nats; 0 ln 0 is 0. NaN if a probability is.
// probabilities: [classes], read.
double Entropy(const double* probabilities, int64_t classes);

// The area under the ROC curve: the share of pairs (one of `negatives`, one of `positives`) in
// which the positive has the larger score, with ties counting half. 0.5 is chance. Computed from
// ranks in O(n log n). NaN if a score is NaN or one of the lists is empty; readers refuse empty
// sets.
double Auroc(const std::vector<double>& negatives, const std::vector<double>& positives);

// How many values are in each of `bins` equal parts of [0, limit]; values that rounding has put
// outside count in the outermost bins. NaN is in none.
std::vector<int64_t> Histogram(const std::vector<double>& values, double limit, int64_t bins);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_DETECTION_H_

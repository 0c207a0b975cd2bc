// Minibatches of images for training and evaluation: normalised, and for training shuffled and
// augmented. No TensorFlow.
#ifndef LATE_PHASE_MODELS_IMAGES_IMAGE_BATCHES_H_
#define LATE_PHASE_MODELS_IMAGES_IMAGE_BATCHES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "models/images/labelled_images.h"
#include "optimizers/worker_group.h"

namespace late_phase {

// How a training image is augmented, in this order, after it has been normalised.
struct Augmentation {
  int64_t pad = 4;     // zeros (the mean colour) added on every side before a random crop
  bool flip = true;    // mirrored left to right with probability 1/2
  int64_t cutout = 0;  // the side of a square of zeros, centred anywhere in the image; 0: none
};

// Statistics of pixel values in [0, 1].
struct ChannelStatistics {
  double mean[3], deviation[3];
};

// Computed from integer sums; the deviation is the population's. REQUIRES: images.count >= 1.
ChannelStatistics ComputeStatistics(const ImageView& images);

// Images [begin, begin + count), normalised as (value / 255 − mean) / deviation and otherwise
// unchanged; a deviation of 0, that of a constant channel, counts as 1.
// pixels: [count, side, side, 3], written. labels: [count], written. T: float or double.
template <typename T>
void FillImages(const ImageView& images, const ChannelStatistics& statistics, int64_t begin,
                int64_t count, T* pixels, int32_t* labels);

// The minibatches t = 0, 1, … of training. An epoch is all images in an order of its own, cut into
// minibatches; its last one may be smaller. The contents of minibatch t depend only on the seed and
// t, on every platform; its crops and flips are the same with and without cutout.
// Called from one thread at a time.
class TrainingBatches {
 public:
  // The images must outlive the object.
  // REQUIRES: images.count >= 1, batch >= 1, 0 <= pad, cutout <= 2^31.
  TrainingBatches(const ImageView& images, const ChannelStatistics& statistics,
                  const Augmentation& augmentation, int64_t batch, int64_t seed);

  int64_t steps_per_epoch() const { return (images_.count - 1) / batch_ + 1; }

  // Images of minibatch t. REQUIRES: t >= 0.
  int64_t Size(int64_t t) const;

  // An error message, or an empty string: the minibatches must divide evenly.
  [[nodiscard]] std::string Check(const Share& share) const;

  // pixels: [n, side, side, 3], written. labels: [n], written. n is the share's part of Size(t).
  // T: float or double. REQUIRES: t >= 0.
  template <typename T>
  void Fill(int64_t t, T* pixels, int32_t* labels, const Share& share = Share());

 private:
  const std::vector<int64_t>& Order(int64_t epoch);

  ImageView images_;
  ChannelStatistics statistics_;
  Augmentation augmentation_;
  int64_t batch_, seed_;
  int64_t epoch_ = -1;          // whose order is kept
  std::vector<int64_t> order_;  // [images]
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_IMAGE_BATCHES_H_

// Square colour images with labels, as readers return them and minibatches use them.
#ifndef LATE_PHASE_MODELS_IMAGES_LABELLED_IMAGES_H_
#define LATE_PHASE_MODELS_IMAGES_LABELLED_IMAGES_H_

#include <cstdint>
#include <vector>

namespace late_phase {

// Square RGB images with labels.
struct LabelledImages {
  int64_t count = 0, side = 32;
  std::vector<uint8_t> pixels;  // [count, side, side, 3]
  std::vector<int32_t> labels;  // [count]
};

// A view of consecutive images, which must outlive it.
struct ImageView {
  int64_t count = 0, side = 32;
  const uint8_t* pixels = nullptr;  // [count, side, side, 3]
  const int32_t* labels = nullptr;  // [count]

  ImageView() = default;
  // All of the images are a view, too.
  ImageView(const LabelledImages& all)  // NOLINT(google-explicit-constructor)
      : count(all.count), side(all.side), pixels(all.pixels.data()), labels(all.labels.data()) {}

  // Images [begin, begin + size) of these. REQUIRES: begin + size <= count.
  ImageView Part(int64_t begin, int64_t size) const {
    ImageView part = *this;
    part.count = size;
    part.pixels += begin * side * side * 3;
    part.labels += begin;
    return part;
  }
  int64_t bytes() const { return count * side * side * 3; }  // of pixels
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_LABELLED_IMAGES_H_

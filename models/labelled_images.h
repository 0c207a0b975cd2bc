// Square colour images with labels, as readers return them and minibatches are made of.
#ifndef LATE_PHASE_MODELS_LABELLED_IMAGES_H_
#define LATE_PHASE_MODELS_LABELLED_IMAGES_H_

#include <cstdint>
#include <vector>

namespace late_phase {

// Square RGB images with labels.
struct LabelledImages {
  int64_t count = 0, side = 32;
  std::vector<uint8_t> pixels;  // [count, side, side, 3]
  std::vector<int32_t> labels;  // [count]
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_LABELLED_IMAGES_H_

// Test images under fifteen corruptions of five severities each, in the layout in which CIFAR-10-C
// and CIFAR-100-C are published. No TensorFlow. python/late_phase_cli/corruptions.py generates such
// files.
//
// A folder holds NAME.npy, uint8 [5·n, 32, 32, 3], for each corruption, the n images of severity 1
// first; and labels.npy, [5·n].
#ifndef LATE_PHASE_MODELS_IMAGES_CORRUPTED_IMAGES_H_
#define LATE_PHASE_MODELS_IMAGES_CORRUPTED_IMAGES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/images/labelled_images.h"

namespace late_phase {

constexpr int64_t kSeverities = 5;
// In the published order: noise, blur, weather, digital.
constexpr std::array<const char*, 15> kCorruptions = {"gaussian_noise",
                                                      "shot_noise",
                                                      "impulse_noise",
                                                      "defocus_blur",
                                                      "glass_blur",
                                                      "motion_blur",
                                                      "zoom_blur",
                                                      "snow",
                                                      "frost",
                                                      "fog",
                                                      "brightness",
                                                      "contrast",
                                                      "elastic_transform",
                                                      "pixelate",
                                                      "jpeg_compression"};

class CorruptedImages {
 public:
  // Checks every file of the folder. Returns an error message, or an empty string.
  [[nodiscard]] std::string Open(const std::string& folder, int64_t classes);

  int64_t count() const { return count_; }  // n
  // Where they come from: the text of source.txt, which python/late_phase_cli/corruptions.py
  // writes, or else the folder.
  const std::string& source() const { return source_; }

  // severity: 1 to 5. Returns an error message, or an empty string.
  [[nodiscard]] std::string Read(const std::string& corruption, int64_t severity,
                                 LabelledImages* images) const;

 private:
  [[nodiscard]] std::string Check(const std::string& folder, int64_t classes);

  std::string folder_, source_;
  int64_t count_ = 0;
  std::vector<int32_t> labels_;  // [5·n]
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_CORRUPTED_IMAGES_H_

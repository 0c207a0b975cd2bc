// The images of CIFAR-10 and CIFAR-100, read from their "binary version". No TensorFlow.
//
// A file is a sequence of records. CIFAR-10: label, image. CIFAR-100: coarse label, fine label,
// image; the fine label is the one that is used. A label is a byte; an image is 3072 bytes, three
// planes (red, green, blue) of 32 rows of 32.
#ifndef LATE_PHASE_MODELS_IMAGES_CIFAR_IMAGES_H_
#define LATE_PHASE_MODELS_IMAGES_CIFAR_IMAGES_H_

#include <cstdint>
#include <string>

#include "models/images/labelled_images.h"

namespace late_phase {

enum class CifarSet { kCifar10, kCifar100 };

struct CifarImages {
  int64_t classes = 0;
  LabelledImages training, test;  // labels are in [0, classes)
};

// `path` is the folder with the files, or the archive (.tar.gz) with them, in any folder of
// the archive, or a folder that holds either under the name it is published with. Files may have
// fewer records than published, but not more, so memory is bounded whatever an archive claims.
//
// Returns an error message, or an empty string; on an error *images is unchanged. The message says
// what is wrong with which file, which files are expected and where to get them.
[[nodiscard]] std::string ReadCifar(CifarSet set, const std::string& path, CifarImages* images);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_CIFAR_IMAGES_H_

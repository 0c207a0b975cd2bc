// Other sets of images to show to a trained network: test images of CIFAR, or any file of records
// in CIFAR-10's form. No TensorFlow. The sets to train on are in models/images/cifar_images.h.
#ifndef LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_
#define LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_

#include <string>

#include "models/images/labelled_images.h"

namespace late_phase {

// `path` is the folder cifar-10-batches-bin (its test_batch.bin is read) or cifar-100-binary (its
// test.bin), a folder that holds one of them, or a file of records: a label of one byte, or two as
// in CIFAR-100, and 3072 bytes of an image, three planes (red, green, blue) of 32 rows of 32.
// Labels are not checked: the classes are not the network's. At most 1 GB is read.
//
// Returns an error message, or an empty string; on an error *images and *name are unchanged. *name
// is what the set is called in tables: "cifar100", or the file's name without its extension.
[[nodiscard]] std::string ReadImageSet(const std::string& path, LabelledImages* images,
                                       std::string* name);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_

// Further sets of images that a trained network is shown: test images of CIFAR, or any file of
// records in CIFAR-10's form. No TensorFlow. The sets that are trained on:
// models/images/cifar_images.h.
#ifndef LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_
#define LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_

#include <string>

#include "models/images/labelled_images.h"

namespace late_phase {

// `path` is the folder cifar-10-batches-bin (its test_batch.bin is read) or cifar-100-binary (its
// test.bin), a folder that holds one of them, or a file of records: a label, a byte or as in
// CIFAR-100 two, and 3072 bytes of an image, three planes (red, green, blue) of 32 rows of 32.
// Labels are not judged: the classes are others than the network's. At most 1 GB is read.
//
// Returns the complaint, or an empty string; after a complaint *images and *name are as they were.
// *name is what the set is called in tables: "cifar100", or the file's name without its ending.
[[nodiscard]] std::string ReadImageSet(const std::string& path, LabelledImages* images,
                                       std::string* name);

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_IMAGE_SET_H_

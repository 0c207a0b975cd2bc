#include "models/images/corrupted_images.h"

#include <fstream>

#include "models/images/npy.h"

namespace late_phase {
namespace {

std::string NpyPath(const std::string& folder, const std::string& name) {
  return folder + "/" + name + ".npy";
}

}  // namespace

std::string CorruptedImages::Check(const std::string& folder, int64_t classes) {
  folder_ = folder;
  NpyFile labels;
  std::string complaint = labels.Open(NpyPath(folder, "labels"));
  if (!complaint.empty()) return complaint;
  if (labels.shape().size() != 1 || labels.shape()[0] < 1 || labels.shape()[0] % kSeverities != 0) {
    return labels.path() + " is " + labels.Text() + " instead of [5·n], n labels for each severity";
  }
  const int64_t rows = labels.shape()[0];
  count_ = rows / kSeverities;
  std::vector<int64_t> numbers;
  complaint = labels.ReadNumbers(0, rows, &numbers);
  if (!complaint.empty()) return complaint;
  labels_.clear();
  for (const int64_t label : numbers) {
    if (label < 0 || label >= classes) {
      return labels.path() + " has label " + std::to_string(label) + " instead of one below " +
             std::to_string(classes);
    }
    labels_.push_back(static_cast<int32_t>(label));
  }
  for (const char* name : kCorruptions) {
    NpyFile file;
    complaint = file.Open(NpyPath(folder, name));
    if (!complaint.empty()) return complaint;
    if (file.dtype() != "|u1" || file.shape() != std::vector<int64_t>{rows, 32, 32, 3}) {
      return file.path() + " is " + file.Text() + " instead of |u1[" + std::to_string(rows) +
             ",32,32,3], one image per label";
    }
  }
  return "";
}

std::string CorruptedImages::Open(const std::string& folder, int64_t classes) {
  const std::string complaint = Check(folder, classes);
  if (!complaint.empty()) {
    return "`corrupt` must be a folder with NAME.npy, uint8 [5·n, 32, 32, 3], for fifteen "
           "corruptions, and labels.npy, [5·n], as CIFAR-10-C and CIFAR-100-C have them. Received: "
           "corrupt=" +
           folder + " (" + complaint + ")";
  }
  std::ifstream source(folder + "/source.txt");
  if (!std::getline(source, source_)) source_ = folder;
  return "";
}

std::string CorruptedImages::Read(const std::string& corruption, int64_t severity,
                                  LabelledImages* images) const {
  NpyFile file;
  std::string complaint = file.Open(NpyPath(folder_, corruption));
  if (!complaint.empty()) return complaint;
  const int64_t begin = (severity - 1) * count_;
  images->count = count_;
  images->side = 32;
  images->labels.assign(labels_.begin() + begin, labels_.begin() + begin + count_);
  return file.ReadBytes(begin, count_, &images->pixels);
}

}  // namespace late_phase

#include "models/images/image_set.h"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "models/images/cifar_records.h"

namespace late_phase {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = int64_t{1} << 30;

// Where a set's test images are.
struct Place {
  const char *folder, *file, *name;
  int64_t label_bytes;
};
constexpr Place kPlaces[] = {{"cifar-10-batches-bin", "test_batch.bin", "cifar10", 1},
                             {"cifar-100-binary", "test.bin", "cifar100", 2}};

struct Found {
  fs::path path;
  std::string name;
  int64_t label_bytes;  // 0: not yet known
};

std::string FindInFolder(const fs::path& folder, Found* found) {
  std::vector<Found> all;
  std::error_code ignored;
  for (const fs::path& inside : {fs::path(), fs::path("*")}) {
    for (const Place& place : kPlaces) {
      const fs::path path =
          folder / (inside.empty() ? inside : fs::path(place.folder)) / place.file;
      if (fs::exists(path, ignored)) all.push_back({path, place.name, place.label_bytes});
    }
  }
  if (all.size() == 1) {
    *found = all[0];
    return "";
  }
  if (all.empty()) {
    return "it holds neither test_batch.bin (CIFAR-10) nor test.bin (CIFAR-100), nor the folder of "
           "one of them";
  }
  return "it holds both " + all[0].path.string() + " and " + all[1].path.string() + ": name one";
}

std::string Read(const fs::path& path, LabelledImages* images, std::string* name) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) return error.message();
  Found found{path, path.stem().string(), 0};
  if (fs::is_directory(status)) {
    const std::string complaint = FindInFolder(path, &found);
    if (!complaint.empty()) return complaint;
  }
  if (!fs::is_regular_file(found.path, error)) return found.path.string() + " is not a file";
  const int64_t size = static_cast<int64_t>(fs::file_size(found.path, error));
  if (error) return found.path.string() + ": " + error.message();
  if (found.label_bytes == 0) found.label_bytes = size % (1 + kCifarImageBytes) == 0 ? 1 : 2;
  const int64_t record = found.label_bytes + kCifarImageBytes;
  if (size == 0 || size % record != 0 || size > kMostBytes) {
    return found.path.string() + " has " + std::to_string(size) +
           " bytes instead of whole records of " + std::to_string(1 + kCifarImageBytes) +
           " or, as in "
           "CIFAR-100, " +
           std::to_string(2 + kCifarImageBytes) + " bytes, 1 GB at most";
  }
  std::vector<uint8_t> bytes;
  const std::string complaint = ReadBytes(found.path, size, &bytes);
  if (!complaint.empty()) return complaint;
  LabelledImages read;
  read.count = size / record;
  read.side = kCifarSide;
  read.pixels.resize(static_cast<size_t>(read.count * kCifarImageBytes));
  read.labels.resize(static_cast<size_t>(read.count));
  for (int64_t i = 0; i < read.count; ++i) {
    const uint8_t* planes = &bytes[static_cast<size_t>(i * record + found.label_bytes)];
    read.labels[static_cast<size_t>(i)] = planes[-1];
    DecodeCifarImage(planes, &read.pixels[static_cast<size_t>(i * kCifarImageBytes)]);
  }
  *images = std::move(read);
  *name = found.name;
  return "";
}

}  // namespace

std::string ReadImageSet(const std::string& path, LabelledImages* images, std::string* name) {
  const std::string complaint = Read(path, images, name);
  if (complaint.empty()) return "";
  return "`ood` must be the folder of CIFAR-10's or CIFAR-100's binary version, or a file of "
         "records, each a label byte and 3072 bytes of an image. Received: ood=" +
         path + " (" + complaint + ")";
}

}  // namespace late_phase

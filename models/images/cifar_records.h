// The records of CIFAR's binary version: label bytes, then an image of 3072 bytes, three planes
// (red, green, blue) of 32 rows of 32. No TensorFlow.
#ifndef LATE_PHASE_MODELS_IMAGES_CIFAR_RECORDS_H_
#define LATE_PHASE_MODELS_IMAGES_CIFAR_RECORDS_H_

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace late_phase {

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarPlane = kCifarSide * kCifarSide;
constexpr int64_t kCifarImageBytes = 3 * kCifarPlane;

// planes: [3, 32, 32], read. pixels: [32, 32, 3], written.
inline void DecodeCifarImage(const uint8_t* planes, uint8_t* pixels) {
  const uint8_t *red = planes, *green = red + kCifarPlane, *blue = green + kCifarPlane;
  for (int64_t p = 0; p < kCifarPlane; ++p, pixels += 3) {
    pixels[0] = red[p];
    pixels[1] = green[p];
    pixels[2] = blue[p];
  }
}

// The first `size` bytes of a file. Returns an error message, which begins with the path, or an
// empty string.
[[nodiscard]] inline std::string ReadBytes(const std::filesystem::path& path, int64_t size,
                                           std::vector<uint8_t>* bytes) {
  bytes->resize(static_cast<size_t>(size));
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (stream.read(reinterpret_cast<char*>(bytes->data()), size)) return "";
  return path.string() + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read");
}

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_IMAGES_CIFAR_RECORDS_H_

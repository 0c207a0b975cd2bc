// Arrays for a core to write: what it leaves out shows, even where NaN is the right answer.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_UNWRITTEN_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_UNWRITTEN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace late_phase {
namespace cuda_harness {

// Every byte is 0xFF: in every floating-point type a NaN that no arithmetic produces.
template <typename T>
T UnwrittenValue() {
  T value;
  std::memset(static_cast<void*>(&value), 0xFF, sizeof(T));
  return value;
}

template <typename T>
std::vector<T> Unwritten(int64_t size) {
  return std::vector<T>(size, UnwrittenValue<T>());
}

// Empty if every element has been written, else which has not.
template <typename T>
[[nodiscard]] std::string FirstUnwritten(const T* array, int64_t size) {
  // Bytes, because a NaN is not equal to itself.
  const auto* bytes = reinterpret_cast<const unsigned char*>(array);
  for (int64_t i = 0; i < size; ++i, bytes += sizeof(T)) {
    if (std::all_of(bytes, bytes + sizeof(T), [](unsigned char byte) { return byte == 0xFF; })) {
      return "element " + std::to_string(i) + " of " + std::to_string(size) +
             " is expected to be written";
    }
  }
  return "";
}
template <typename T>
[[nodiscard]] std::string FirstUnwritten(const std::vector<T>& array) {
  return FirstUnwritten(array.data(), array.size());
}

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_UNWRITTEN_H_

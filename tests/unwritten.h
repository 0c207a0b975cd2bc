// Arrays for a core to write: what it leaves out shows, also where NaN is the right answer.
#ifndef LATE_PHASE_TESTS_UNWRITTEN_H_
#define LATE_PHASE_TESTS_UNWRITTEN_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace late_phase {
namespace testing {

// A NaN that no arithmetic makes: every byte is 0xFF.
template <typename T>
T UnwrittenValue() {
  T value;
  std::memset(&value, 0xFF, sizeof(T));
  return value;
}

template <typename T>
std::vector<T> Unwritten(int64_t size) {
  return std::vector<T>(size, UnwrittenValue<T>());
}

// Empty if every element has been written, else which has not.
template <typename T>
std::string FirstUnwritten(const std::vector<T>& array) {
  const T mark = UnwrittenValue<T>();
  for (size_t i = 0; i < array.size(); ++i) {
    if (std::memcmp(&array[i], &mark, sizeof(T)) == 0) {
      return "element " + std::to_string(i) + " of " + std::to_string(array.size());
    }
  }
  return "";
}

}  // namespace testing
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_UNWRITTEN_H_

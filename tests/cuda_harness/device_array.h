// Device memory for tests of kernels: exactly as large as requested, so that AddressSanitizer sees
// every access outside, and filled with a pattern that shows what a kernel has not written.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ARRAY_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ARRAY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda_harness/unwritten.h"

namespace late_phase {
namespace cuda_harness {

template <typename T>
class DeviceArray {
 public:
  // Unwritten: every byte is 0xFF, a NaN that no arithmetic produces.
  explicit DeviceArray(int64_t size) : size_(size) { cudaMalloc(&data_, size * sizeof(T)); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (size_ > 0) std::memcpy(data_, values.data(), size_ * sizeof(T));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }

  // Empty if a kernel has written every element, else which it has not.
  [[nodiscard]] std::string Unwritten() const { return FirstUnwritten(data_, size_); }

 private:
  int64_t size_;
  T* data_ = nullptr;
};

}  // namespace cuda_harness
}  // namespace late_phase

// In a GoogleTest: every element of a DeviceArray has been written.
#define EXPECT_WRITTEN(array) EXPECT_EQ((array).Unwritten(), "")

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_DEVICE_ARRAY_H_

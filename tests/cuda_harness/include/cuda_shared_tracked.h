// Shared memory that monitors its use: what kernels/cuda/shared.h is in the CUDA harness.
//
// Per element it knows the last write and the reads since then, each with its Moment (block.h). A
// finding: an index out of range, a read of what no thread of the block has written, and two
// accesses by different threads, one of them a write, that neither a barrier of the block nor,
// within a warp, __syncwarp puts in order. This includes writes of equal values, which a GPU would
// forgive.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_SHARED_TRACKED_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_SHARED_TRACKED_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace late_phase {
namespace cuda_harness {

class SharedTracker {
 public:
  // `static_bytes`: what the array adds to the block's shared memory; 0: it is the dynamic one.
  SharedTracker(int64_t size, size_t static_bytes);
  ~SharedTracker();
  SharedTracker(const SharedTracker&) = delete;
  SharedTracker& operator=(const SharedTracker&) = delete;

  // The current thread is about to read or write `count` elements from `i` on.
  void Read(int64_t i, int64_t count = 1);
  void Write(int64_t i, int64_t count = 1);

 private:
  struct Element;
  Element& At(int64_t i, const char* what);
  std::string Name(int64_t i) const;

  const size_t static_bytes_;
  int64_t block_ = 0;  // the serial number of the block to which the elements belong
  std::vector<Element> elements_;
};

// An element that knows when it is read and written. Lives for one expression only: `auto x =
// s[i]`, which would read later than on a GPU, does not compile when it is used.
template <typename T>
class SharedElement {
 public:
  SharedElement(T* value, SharedTracker* tracker, int64_t i, int64_t count)
      : value_(value), tracker_(tracker), i_(i), count_(count) {}

  operator T() && {
    tracker_->Read(i_, count_);
    return *value_;
  }
  T operator=(T value) && {
    tracker_->Write(i_, count_);
    return *value_ = value;
  }
  T operator=(SharedElement&& other) && { return Put(T(std::move(other))); }
  T operator+=(T value) && { return Put(Get() + value); }
  T operator-=(T value) && { return Put(Get() - value); }
  T operator*=(T value) && { return Put(Get() * value); }

 private:
  T Get() { return T(std::move(*this)); }
  T Put(T value) { return std::move(*this) = value; }

  T* value_;
  SharedTracker* tracker_;
  int64_t i_, count_;
};

}  // namespace cuda_harness

template <typename T, int N>
class Shared {
 public:
  cuda_harness::SharedElement<T> operator[](int i) {
    // An index out of range is a finding before the address is used.
    return {&values_[i < 0 || i >= N ? 0 : i], &tracker_, i, 1};
  }

 private:
  T values_[N];
  cuda_harness::SharedTracker tracker_{N, N * sizeof(T)};
};

namespace cuda_harness {

// The dynamic shared memory of the block; tracked in units of two bytes, the smallest type's.
constexpr int64_t kSharedUnit = 2;
struct DynamicMemory {
  unsigned char* bytes;
  int64_t size;
  SharedTracker* tracker;
};
DynamicMemory DynamicSharedMemory();
// Ends the launch: [first, first + bytes) is not inside.
[[noreturn]] void FailOutside(int64_t first, int64_t bytes, int64_t size);

}  // namespace cuda_harness

template <typename T>
class DynamicShared {
 public:
  explicit DynamicShared(int offset_bytes = 0) : offset_(offset_bytes) {
    static_assert(sizeof(T) % cuda_harness::kSharedUnit == 0, "tracked in units of two bytes");
  }
  cuda_harness::SharedElement<T> operator[](int i) const {
    const auto memory = cuda_harness::DynamicSharedMemory();
    const int64_t bytes = sizeof(T), first = offset_ + i * bytes;
    if (first < 0 || first + bytes > memory.size || first % alignof(T) != 0) {
      cuda_harness::FailOutside(first, bytes, memory.size);
    }
    return {reinterpret_cast<T*>(memory.bytes + first), memory.tracker,
            first / cuda_harness::kSharedUnit, bytes / cuda_harness::kSharedUnit};
  }

 private:
  int64_t offset_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_SHARED_TRACKED_H_

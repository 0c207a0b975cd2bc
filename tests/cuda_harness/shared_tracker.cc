#include <cuda_shared_tracked.h>

#include <string>

#include "tests/cuda_harness/block.h"

namespace late_phase {
namespace cuda_harness {

struct SharedTracker::Element {
  Moment write;               // thread -1: none in this block
  std::vector<Moment> reads;  // since the write and the last barrier
};

SharedTracker::SharedTracker(int64_t size, size_t static_bytes)
    : static_bytes_(static_bytes), elements_(size) {}
SharedTracker::~SharedTracker() = default;

std::string SharedTracker::Name(int64_t i) const {
  if (static_bytes_ == 0) return "dynamic shared byte " + std::to_string(i * kSharedUnit);
  return "shared element " + std::to_string(i);
}

SharedTracker::Element& SharedTracker::At(int64_t i, const char* what) {
  Block& block = Block::Current();
  if (block_ != block.serial()) {
    block_ = block.serial();
    for (Element& element : elements_) element = Element();
    block.AddShared(static_bytes_);
  }
  const int64_t size = static_cast<int64_t>(elements_.size());
  if (i < 0 || i >= size) {
    block.Fail(std::string(what) + " " + Name(i) + " of an array of " + std::to_string(size));
  }
  return elements_[i];
}

void SharedTracker::Read(int64_t i, int64_t count) {
  Block& block = Block::Current();
  const Moment now = block.Now();
  for (const int64_t end = i + count; i < end; ++i) {
    Element& element = At(i, "reads");
    if (element.write.thread < 0) block.Fail("reads " + Name(i) + ", which is not written yet");
    if (!block.HappenedBefore(element.write)) {
      block.Fail("reads " + Name(i) + ", which " + block.ThreadName(element.write.thread) +
                 " writes with no barrier in between");
    }
    std::vector<Moment>& reads = element.reads;
    // What was read before a barrier of the block is over for everyone.
    if (!reads.empty() && reads.back().barriers < now.barriers) reads.clear();
    // A thread runs until it waits, so its reads are consecutive.
    if (!reads.empty() && reads.back().thread == now.thread) reads.pop_back();
    reads.push_back(now);
  }
}

void SharedTracker::Write(int64_t i, int64_t count) {
  Block& block = Block::Current();
  for (const int64_t end = i + count; i < end; ++i) {
    Element& element = At(i, "writes");
    if (element.write.thread >= 0 && !block.HappenedBefore(element.write)) {
      block.Fail("writes " + Name(i) + ", which " + block.ThreadName(element.write.thread) +
                 " writes too, with no barrier in between");
    }
    for (const Moment& read : element.reads) {
      if (block.HappenedBefore(read)) continue;
      block.Fail("writes " + Name(i) + ", which " + block.ThreadName(read.thread) +
                 " reads with no barrier in between");
    }
    element.reads.clear();
    element.write = block.Now();
  }
}

DynamicMemory DynamicSharedMemory() {
  constexpr int64_t kMost = 48 * 1024;
  alignas(256) static unsigned char bytes[kMost];
  static SharedTracker tracker(kMost / kSharedUnit, 0);
  return {bytes, static_cast<int64_t>(Block::Current().dynamic_bytes()), &tracker};
}

void FailOutside(int64_t first, int64_t bytes, int64_t size) {
  Block::Current().Fail("uses bytes " + std::to_string(first) + " to " +
                        std::to_string(first + bytes - 1) + " of " + std::to_string(size) +
                        " bytes of dynamic shared memory, aligned to the type");
}

}  // namespace cuda_harness
}  // namespace late_phase

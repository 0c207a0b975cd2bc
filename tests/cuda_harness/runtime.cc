// The CUDA runtime's functions: launches, memory, the properties of a small device.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_harness/block.h"
#include "tests/cuda_harness/device_access.h"
#include "tests/cuda_harness/schedule.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace late_phase {
namespace cuda_harness {
namespace {

constexpr uint64_t kThreadsPerBlock = 1024;
constexpr size_t kSharedBytes = 48 * 1024;
// Few enough that a grid made for the device must stride over arrays of a few thousand elements.
constexpr int kMultiprocessors = 2, kBlocksPerMultiprocessor = 2, kThreadsPerMultiprocessor = 2048;

Schedule schedule;
// Changes with every launch, so that a random order differs each time.
std::mt19937 random_order;
cudaError_t last_error = cudaSuccess;
std::string last_finding;

cudaError_t Refuse(cudaError_t error, const std::string& text) {
  last_finding = text;
  return last_error = error;
}

std::string Received(const char* name, dim3 size) {
  return std::string(" Received: ") + name + "=(" + std::to_string(size.x) + "," +
         std::to_string(size.y) + "," + std::to_string(size.z) + ")";
}

// Checks the limits of every GPU since Maxwell; empty if they are respected.
[[nodiscard]] std::string CheckLaunch(dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads < 1 ||
      threads > kThreadsPerBlock) {
    return "a block must have 1 to 1024 threads, at most 64 of them along z." +
           Received("block", block);
  }
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7FFFFFFF || grid.y > 65535 ||
      grid.z > 65535) {
    return "a grid must have 1 to 2^31 - 1 blocks along x, and 1 to 65535 along y and z." +
           Received("grid", grid);
  }
  if (shared_bytes > kSharedBytes) {
    return "shared memory must be at most 49152 bytes. Received: shared_bytes=" +
           std::to_string(shared_bytes);
  }
  return "";
}

#if defined(__SANITIZE_ADDRESS__)
void NameThread(const char*) {
  if (!Block::IsRunning()) return;
  std::fprintf(stderr, "CUDA harness: in block (%u,%u,%u), thread (%u,%u,%u)\n", blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}
#endif

}  // namespace

ScopedSchedule::ScopedSchedule(const Schedule& wanted) : before_(schedule) {
  schedule = wanted;
  random_order.seed(wanted.seed);
}

ScopedSchedule::~ScopedSchedule() { schedule = before_; }

cudaError_t LaunchThreads(dim3 grid, dim3 block, size_t shared_bytes,
                          const std::function<void()>& thread) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_set_error_report_callback(NameThread);
#endif
  const std::string complaint = CheckLaunch(grid, block, shared_bytes);
  if (!complaint.empty()) return Refuse(cudaErrorInvalidConfiguration, complaint);
  std::vector<uint64_t> blocks(uint64_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (schedule.order == Order::kReverse) std::reverse(blocks.begin(), blocks.end());
  if (schedule.order == Order::kRandom) std::shuffle(blocks.begin(), blocks.end(), random_order);
  gridDim = grid;
  const DeviceAccess access;
  for (const uint64_t i : blocks) {
    const dim3 index(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
    try {
      Block(index, block, shared_bytes, schedule.order, &random_order).Run(thread);
    } catch (const Finding& finding) {
      return Refuse(cudaErrorLaunchFailure, finding.text);
    }
  }
  return cudaSuccess;
}

int ResidentBlocks(int threads, size_t shared_bytes) {
  if (threads < 1 || threads > 1024 || shared_bytes > kSharedBytes) return 0;
  return std::min(kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / threads);
}

}  // namespace cuda_harness
}  // namespace late_phase

using late_phase::cuda_harness::last_error;
using late_phase::cuda_harness::last_finding;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return last_finding.c_str();
  }
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(address, 256, bytes) != 0) return last_error = cudaErrorMemoryAllocation;
  memset(*address, 0xFF, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  free(address);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t) {
  const late_phase::cuda_harness::DeviceAccess access;
  if (bytes > 0) memset(address, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  const late_phase::cuda_harness::DeviceAccess access;
  if (bytes > 0) memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (attribute != cudaDevAttrMultiProcessorCount || device != 0) {
    return last_error = cudaErrorInvalidValue;
  }
  *value = late_phase::cuda_harness::kMultiprocessors;
  return cudaSuccess;
}

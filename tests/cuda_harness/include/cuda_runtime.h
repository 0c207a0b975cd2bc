// The CUDA that a kernel sees when the host compiler compiles it: stands in for the toolkit's
// header of this name, so that the same sources that nvcc compiles run on the CPU, with checks.
//
// Simulated: the threads of a block and their barriers, warps with shuffles and votes, shared
// memory (kernels/cuda/shared.h), the limits of a launch, a device of two multiprocessors. Threads
// run one at a time, in the order of a Schedule; blocks one after the other.
//
// Not simulated: time; blocks that wait for each other (they hang); the order in which writes to
// global memory reach other threads, and races there; registers and __launch_bounds__; fused
// multiply-adds that nvcc makes from a * b + c by itself; streams, which are always idle. Of CUDA
// only what the kernels use exists: a missing function is a compile error here.
//
// Stricter than a GPU: every lane that a mask names must exist and take part, even one that has
// ended; and a barrier is the same one only on the same line of source.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_RUNTIME_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_RUNTIME_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// One variable for all threads; Shared<T, N> starts afresh with every block.
#define __shared__ static
#define __constant__ static const

// Vectors: T2 and T4 are aligned to their size, T3 is not.
#define LATE_PHASE_VECTORS(T, name)                                  \
  struct alignas(2 * sizeof(T)) name##2 {                            \
    T x, y;                                                          \
  };                                                                 \
  struct name##3 {                                                   \
    T x, y, z;                                                       \
  };                                                                 \
  struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) name##4 {      \
    T x, y, z, w;                                                    \
  };                                                                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
// clang-format off
LATE_PHASE_VECTORS(signed char, char)
LATE_PHASE_VECTORS(unsigned char, uchar)
LATE_PHASE_VECTORS(short, short)
LATE_PHASE_VECTORS(unsigned short, ushort)
LATE_PHASE_VECTORS(int, int)
LATE_PHASE_VECTORS(unsigned, uint)
LATE_PHASE_VECTORS(long long, longlong)
LATE_PHASE_VECTORS(unsigned long long, ulonglong)
LATE_PHASE_VECTORS(float, float)
LATE_PHASE_VECTORS(double, double)
// clang-format on
#undef LATE_PHASE_VECTORS

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  unsigned x, y, z;
};

// Of the running thread.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace late_phase {
namespace cuda_harness {

// What a thread waits in: a barrier of the block (mask 0) or a meeting of lanes.
struct Call {
  const char* name;
  unsigned mask;
  const char* file;
  int line;
};

enum class Shuffle { kFromLane, kUp, kDown, kXor };

// The current thread takes part and waits for the others (warp.cc).
int SyncThreads(const Call& call, bool predicate);
void SyncWarp(const Call& call);
unsigned Ballot(const Call& call, bool predicate);
uint64_t ShuffleBits(Shuffle kind, const Call& call, uint64_t bits, int operand, int width);

template <typename T>
T ShuffleValue(Shuffle kind, const Call& call, T value, int operand, int width) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "CUDA shuffles 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(kind, call, bits, operand, width);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_harness
}  // namespace late_phase

// Barriers, votes and shuffles know where they are called from.
#define LATE_PHASE_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LATE_PHASE_HERE) {
  late_phase::cuda_harness::SyncThreads({"__syncthreads", 0, file, line}, false);
}
inline int __syncthreads_count(int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::SyncThreads({"__syncthreads_count", 0, file, line}, predicate);
}
inline int __syncthreads_or(int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::SyncThreads({"__syncthreads_or", 0, file, line}, predicate) > 0;
}
inline int __syncthreads_and(int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::SyncThreads({"__syncthreads_and", 0, file, line}, !predicate) ==
         0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, LATE_PHASE_HERE) {
  late_phase::cuda_harness::SyncWarp({"__syncwarp", mask, file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::Ballot({"__ballot_sync", mask, file, line}, predicate);
}
inline int __any_sync(unsigned mask, int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::Ballot({"__any_sync", mask, file, line}, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::Ballot({"__all_sync", mask, file, line}, predicate) == mask;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::ShuffleValue(late_phase::cuda_harness::Shuffle::kFromLane,
                                                {"__shfl_sync", mask, file, line}, value, lane,
                                                width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::ShuffleValue(late_phase::cuda_harness::Shuffle::kUp,
                                                {"__shfl_up_sync", mask, file, line}, value,
                                                static_cast<int>(delta), width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::ShuffleValue(late_phase::cuda_harness::Shuffle::kDown,
                                                {"__shfl_down_sync", mask, file, line}, value,
                                                static_cast<int>(delta), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, LATE_PHASE_HERE) {
  return late_phase::cuda_harness::ShuffleValue(late_phase::cuda_harness::Shuffle::kXor,
                                                {"__shfl_xor_sync", mask, file, line}, value,
                                                lane_mask, width);
}
#undef LATE_PHASE_HERE

// Arithmetic. Fast intrinsics are the exact functions here.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline float rsqrt(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t{a} * b >> 32; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
inline float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
inline unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
inline float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

// Global memory. Threads run one at a time, so nothing can intervene.
template <typename T>
T atomicAdd(T* address, T value) {
  return std::exchange(*address, *address + value);
}
template <typename T>
T atomicMax(T* address, T value) {
  return std::exchange(*address, max(*address, value));
}
inline void __threadfence() {}

// The runtime. A launch runs immediately and ends in success or in a finding, which is the text of
// its error.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
typedef struct CUstream_st* cudaStream_t;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
// Exactly that many bytes, each 0xFF: a NaN in every floating-point type (device_array.h).
cudaError_t cudaMalloc(void** address, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** address, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(address), bytes);
}
cudaError_t cudaFree(void* address);
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

namespace late_phase {
namespace cuda_harness {

cudaError_t LaunchThreads(dim3 grid, dim3 block, size_t shared_bytes,
                          const std::function<void()>& thread);
int ResidentBlocks(int threads, size_t shared_bytes);

template <typename... Parameters, size_t... i>
cudaError_t LaunchFunction(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                           size_t shared_bytes, std::index_sequence<i...>) {
  return LaunchThreads(grid, block, shared_bytes, [=] {
    kernel(*static_cast<std::remove_reference_t<Parameters>*>(arguments[i])...);
  });
}

}  // namespace cuda_harness
}  // namespace late_phase

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes = 0, cudaStream_t = nullptr) {
  return late_phase::cuda_harness::LaunchFunction(kernel, grid, block, arguments, shared_bytes,
                                                  std::index_sequence_for<Parameters...>());
}

template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Parameters...),
                                                          int threads, size_t shared_bytes) {
  *blocks = late_phase::cuda_harness::ResidentBlocks(threads, shared_bytes);
  return cudaSuccess;
}

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_INCLUDE_CUDA_RUNTIME_H_

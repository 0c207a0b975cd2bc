// The CUDA harness: correct kernels pass, in every order of threads, and each of the mistakes that
// a GPU would punish is found in a kernel that makes it. No TensorFlow; also run under ASan and
// UBSan, which find what the harness leaves to them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared.h"
#include "kernels/philox_normal.h"
#include "tests/cuda_harness/device_array.h"
#include "tests/cuda_harness/schedule.h"
#include "tests/cuda_harness/test_kernels.h"

namespace late_phase {
namespace {

using cuda_harness::DeviceArray;
using cuda_harness::Schedule;
using cuda_harness::ScopedSchedule;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr unsigned kAllLanes = 0xFFFFFFFF;

template <typename... Parameters, typename... Arguments>
[[nodiscard]] std::string Launch(dim3 grid, dim3 block, void (*kernel)(Parameters...),
                                 Arguments... arguments) {
  return LaunchKernel({"Broken", grid, block, 0, nullptr}, kernel, arguments...);
}

// The message has all of these parts.
void ExpectFinding(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
}

template <typename T>
std::vector<T> Counting(int64_t size) {
  std::vector<T> values(size);
  std::iota(values.begin(), values.end(), T(1));
  return values;
}

// ---- Correct kernels pass, in every order.

class CorrectKernel : public ::testing::TestWithParam<Schedule> {
 protected:
  ScopedSchedule schedule_{GetParam()};
};

TEST_P(CorrectKernel, GridStrideLoopReachesEveryElement) {
  for (int64_t size : {1, 31, 32, 33, 257, 5000}) {
    DeviceArray<float> x(Counting<float>(size)), y(size);
    EXPECT_EQ(test_util::Scale(size, 2.0f, x.data(), y.data(), nullptr), "");
    EXPECT_WRITTEN(y);
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(y[i], 2 * (i + 1)) << i;
  }
}

TEST_P(CorrectKernel, BlocksReduceWithShufflesAndSharedMemory) {
  for (int threads : {32, 96, 1024}) {
    for (int64_t columns : {1, 31, 32, 33, 257}) {
      constexpr int64_t kRows = 3;
      DeviceArray<double> x(Counting<double>(kRows * columns)), sums(kRows);
      EXPECT_EQ(test_util::SumRows(kRows, columns, x.data(), sums.data(), threads, nullptr), "");
      EXPECT_WRITTEN(sums);
      for (int64_t r = 0; r < kRows; ++r) {
        const double first = r * columns + 1, last = (r + 1) * columns;
        EXPECT_EQ(sums[r], (first + last) / 2 * columns);
      }
    }
  }
}

TEST_P(CorrectKernel, DynamicSharedMemoryStartsAfreshInEveryBlock) {
  for (int columns : {1, 63, 64, 65, 257}) {
    DeviceArray<float> x(Counting<float>(3 * columns)), y(3 * columns);
    EXPECT_EQ(test_util::ReverseRows(3, columns, x.data(), y.data(), nullptr), "");
    for (int i = 0; i < 3 * columns; ++i) {
      const int r = i / columns, c = i % columns;
      EXPECT_EQ(y[i], x[r * columns + columns - 1 - c]);
    }
  }
}

// 2^33 elements of which only the last exist: an index of 32 bits would miss them.
__global__ void FillFrom(int64_t first, int64_t size, int64_t* end) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first + thread; i < size; i += stride) end[i - size] = i;
}

TEST_P(CorrectKernel, SizesHave64Bits) {
  const int64_t size = int64_t{1} << 33;
  DeviceArray<int64_t> y(257);
  EXPECT_EQ(Launch(2, 32, FillFrom, size - 257, size, y.data() + 257), "");
  for (int i = 0; i < 257; ++i) EXPECT_EQ(y[i], size - 257 + i);
}

// Three dimensions, counted with x fastest.
__global__ void WriteIndex(int* index) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  index[i] = static_cast<int>(i);
}

TEST_P(CorrectKernel, EveryIndexOfThreeDimensionsRunsOnce) {
  DeviceArray<int> index(2 * 3 * 4 * 5 * 2 * 3);
  EXPECT_EQ(Launch({2, 3, 4}, {5, 2, 3}, WriteIndex, index.data()), "");
  for (int64_t i = 0; i < index.size(); ++i) EXPECT_EQ(index[i], i);
}

// Neighbours within a warp exchange values with only __syncwarp.
__global__ void RotateInWarp(int* y) {
  __shared__ Shared<int, 64> values;
  const int i = threadIdx.x, next = i / 32 * 32 + (i + 1) % 32;
  for (int round = 0; round < 3; ++round) {
    values[i] = 100 * round + i;
    __syncwarp();
    y[i] = values[next];
    __syncwarp();
  }
}

TEST_P(CorrectKernel, SyncwarpOrdersSharedMemoryOfAWarp) {
  DeviceArray<int> y(64);
  EXPECT_EQ(Launch(3, 64, RotateInWarp, y.data()), "");
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y[i], 200 + i / 32 * 32 + (i + 1) % 32);
}

__global__ void Votes(int* y) {
  const int i = threadIdx.x;
  y[i] = __syncthreads_count(i % 3 == 0);
  y[i] += 1000 * __syncthreads_or(i == 7) + 2000 * __syncthreads_and(i == 7);
  y[i] += 10000 * __popc(__ballot_sync(kAllLanes, i % 2 == 0));
  y[i] += 1000000 * __any_sync(kAllLanes, i == 40) + 2000000 * __all_sync(kAllLanes, i < 32);
}

TEST_P(CorrectKernel, VotesCount) {
  DeviceArray<int> y(64);
  EXPECT_EQ(Launch(1, 64, Votes, y.data()), "");
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(y[i], 22 + 1000 + 160000 + (i < 32 ? 2000000 : 1000000));
  }
}

__global__ void Shuffles(int* y) {
  const int i = threadIdx.x;
  y[i] = __shfl_sync(kAllLanes, i, 3);
  y[32 + i] = __shfl_sync(kAllLanes, i, 9, 8);
  y[64 + i] = __shfl_up_sync(kAllLanes, i, 2, 16);
  y[96 + i] = __shfl_down_sync(kAllLanes, i, 2, 16);
  y[128 + i] = __shfl_xor_sync(kAllLanes, i, 5);
  y[160 + i] = __shfl_xor_sync(kAllLanes, i, 16, 16);
  // Half a warp among itself, in a branch.
  y[192 + i] = -1;
  if (i < 16) y[192 + i] = static_cast<int>(__shfl_xor_sync(0xFFFF, i + 0.5, 1));
}

TEST_P(CorrectKernel, ShufflesFollowTheRulesOfSegments) {
  DeviceArray<int> y(224);
  EXPECT_EQ(Launch(1, 32, Shuffles, y.data()), "");
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(y[i], 3);
    EXPECT_EQ(y[32 + i], i / 8 * 8 + 1);
    EXPECT_EQ(y[64 + i], i % 16 < 2 ? i : i - 2);
    EXPECT_EQ(y[96 + i], i % 16 > 13 ? i : i + 2);
    EXPECT_EQ(y[128 + i], i ^ 5);
    // Towards an earlier segment it reads; towards a later one it keeps its own.
    EXPECT_EQ(y[160 + i], i < 16 ? i : i - 16);
    EXPECT_EQ(y[192 + i], i < 16 ? i ^ 1 : -1);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, CorrectKernel, ::testing::ValuesIn(cuda_harness::kSchedules),
                         [](const auto& info) { return info.param.name; });

// ---- Broken kernels are detected, in every order.

class BrokenKernel : public CorrectKernel {};

__global__ void BarrierInBranch(int* y) {
  if (threadIdx.x < 40) __syncthreads();
  y[threadIdx.x] = 1;
}
TEST_P(BrokenKernel, BarrierThatSomeThreadsNeverReach) {
  DeviceArray<int> y(64);
  ExpectFinding(Launch(2, 64, BarrierInBranch, y.data()),
                {"CUDA kernel Broken: block (", "thread (0,0,0): waits in",
                 "__syncthreads at cuda_harness_test.cc:", "for thread (40,0,0), which has ended"});
}

__global__ void TwoBarriers(int* y) {
  if (threadIdx.x < 40) {
    y[threadIdx.x] = 1;
    __syncthreads();
  } else {
    __syncthreads();
  }
}
TEST_P(BrokenKernel, ThreadsAtDifferentBarriers) {
  DeviceArray<int> y(64);
  ExpectFinding(Launch(1, 64, TwoBarriers, y.data()),
                {"for thread (40,0,0), which is in __syncthreads at cuda_harness_test.cc:"});
}

__global__ void ReadUnwritten(float* y) {
  __shared__ Shared<float, 64> values;
  if (threadIdx.x != 5) values[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}
TEST_P(BrokenKernel, SharedElementIsReadBeforeItIsWritten) {
  DeviceArray<float> y(64);
  // Also in a later block, where the element still holds what an earlier one left.
  ExpectFinding(Launch(2, 64, ReadUnwritten, y.data()),
                {"thread (4,0,0): reads shared element 5, which is not written yet"});
}

__global__ void MissingBarrier(int* y) {
  __shared__ Shared<int, 64> values;
  values[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) values[63] = 1;
  y[threadIdx.x] = values[threadIdx.x];
}
// The vote makes every thread read before any writes again, but does not order memory.
__global__ void MissingBarrierAfterRead(int* y) {
  __shared__ Shared<int, 32> values;
  values[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = values[31 - threadIdx.x];
  if (__any_sync(kAllLanes, true)) values[threadIdx.x] = 0;
}
__global__ void MissingBarrierBeforeRead(int* y) {
  __shared__ Shared<int, 64> values;
  values[threadIdx.x] = 0;
  __syncthreads();
  values[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = values[63 - threadIdx.x];
}
TEST_P(BrokenKernel, RacesOnSharedMemory) {
  DeviceArray<int> y(64);
  ExpectFinding(
      Launch(1, 64, MissingBarrier, y.data()),
      {"writes shared element 63, which thread (", "writes too, with no barrier in between"});
  ExpectFinding(Launch(1, 32, MissingBarrierAfterRead, y.data()),
                {"reads with no barrier in between"});
  // Which of the two accesses comes second depends on the order.
  ExpectFinding(Launch(1, 64, MissingBarrierBeforeRead, y.data()),
                {"s with no barrier in between"});
}

// A shuffle waits for the warp but does not order its memory accesses; __syncwarp does, though not
// those of two warps.
__global__ void ShuffleInsteadOfSyncwarp(int* y) {
  __shared__ Shared<int, 32> values;
  values[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = __shfl_sync(kAllLanes, 1, 0);
  y[threadIdx.x] += values[threadIdx.x ^ 1];
}
__global__ void SyncwarpAcrossWarps(int* y) {
  __shared__ Shared<int, 64> values;
  values[threadIdx.x] = threadIdx.x;
  __syncwarp();
  y[threadIdx.x] = values[63 - threadIdx.x];
}
// Lanes 0 to 15 and 16 to 31 each among themselves.
__global__ void SyncwarpOfHalves(int* y) {
  __shared__ Shared<int, 32> values;
  values[threadIdx.x] = threadIdx.x;
  __syncwarp(threadIdx.x < 16 ? 0x0000FFFF : 0xFFFF0000);
  y[threadIdx.x] = values[threadIdx.x ^ 16];
}
TEST_P(BrokenKernel, RacesWithinAndBetweenWarps) {
  DeviceArray<int> y(64);
  const std::string race = "writes with no barrier in between";
  ExpectFinding(Launch(1, 32, ShuffleInsteadOfSyncwarp, y.data()), {race});
  const auto is_found = AnyOf(HasSubstr(race), HasSubstr("not written yet"));
  EXPECT_THAT(Launch(1, 64, SyncwarpAcrossWarps, y.data()), is_found);
  EXPECT_THAT(Launch(1, 32, SyncwarpOfHalves, y.data()), is_found);
}

__global__ void ReadUnwrittenDynamic(double* y) {
  DynamicShared<double> values;
  if (threadIdx.x < 16) values[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 20) *y = values[16];
}
TEST_P(BrokenKernel, DynamicSharedMemoryIsWatchedToo) {
  DeviceArray<double> y(1);
  ExpectFinding(LaunchKernel({"Broken", 1, 32, 256, nullptr}, ReadUnwrittenDynamic, y.data()),
                {"thread (20,0,0): reads dynamic shared byte 128, which is not written yet"});
}

__global__ void SharedIndex(int i) {
  __shared__ Shared<int, 64> values;
  if (threadIdx.x == 3) values[i] = 1;
}
__global__ void DynamicSharedIndex(int i) {
  DynamicShared<int> values;
  if (threadIdx.x == 3) values[i] = 1;
}
TEST_P(BrokenKernel, SharedIndexOutOfRange) {
  EXPECT_EQ(Launch(1, 32, SharedIndex, 63), "");
  ExpectFinding(Launch(1, 32, SharedIndex, 64),
                {"thread (3,0,0): writes shared element 64 of an array of 64"});
  ExpectFinding(Launch(1, 32, SharedIndex, -1), {"writes shared element -1"});
  EXPECT_EQ(LaunchKernel({"Edge", 1, 32, 16, nullptr}, DynamicSharedIndex, 3), "");
  ExpectFinding(LaunchKernel({"Edge", 1, 32, 16, nullptr}, DynamicSharedIndex, 4),
                {"CUDA kernel Edge: block (0,0,0), thread (3,0,0): uses bytes 16 to 19 of "
                 "16 bytes of dynamic shared memory"});
}

__global__ void ShuffleInBranch(int* y) {
  if (threadIdx.x < 20) y[threadIdx.x] = __shfl_down_sync(kAllLanes, 1, 1);
}
__global__ void ShuffleWithoutItself(int* y) { y[threadIdx.x] = __shfl_sync(0x0000FFFF, 1, 0); }
__global__ void ShuffleFromOutside(int* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_down_sync(0x0000FFFF, 1, 1);
}
__global__ void ShuffleWithOtherMasks(int* y) {
  const unsigned mask = threadIdx.x < 16 ? 0xFFFFFFFF : 0xFFFF0001;
  y[threadIdx.x] = __shfl_sync(mask, 1, 0);
}
__global__ void ShuffleOfWidth(int width) { __shfl_sync(kAllLanes, 1, 0, width); }
TEST_P(BrokenKernel, ShufflesWhoseMaskIsWrong) {
  DeviceArray<int> y(64);
  ExpectFinding(Launch(1, 32, ShuffleInBranch, y.data()),
                {"thread (0,0,0): waits in __shfl_down_sync at cuda_harness_test.cc:",
                 "with mask 0xffffffff for thread (20,0,0), which has ended"});
  ExpectFinding(Launch(1, 32, ShuffleWithoutItself, y.data()),
                {"with mask 0x0000ffff, which does not name its own lane"});
  ExpectFinding(
      Launch(1, 32, ShuffleFromOutside, y.data()),
      {"thread (15,0,0): reads lane 16 by __shfl_down_sync, whose mask does not name it"});
  ExpectFinding(Launch(1, 32, ShuffleWithOtherMasks, y.data()),
                {"which is in __shfl_sync at cuda_harness_test.cc:"});
  // The second warp of 40 threads has eight.
  ExpectFinding(Launch(1, 40, ShuffleOfWidth, 32), {"but its warp has 8 threads"});
  ExpectFinding(Launch(1, 32, ShuffleOfWidth, 12), {"Received: width=12"});
}

INSTANTIATE_TEST_SUITE_P(Orders, BrokenKernel, ::testing::ValuesIn(cuda_harness::kSchedules),
                         [](const auto& info) { return info.param.name; });

// A sum in the order in which threads come: the harness cannot know that it is wrong, but a test
// that compares the orders does.
__global__ void LastThreadWins(unsigned* y) { *y = threadIdx.x; }
TEST(ScheduleTest, OrderDependenceShows) {
  std::vector<unsigned> results;
  for (const Schedule& schedule : cuda_harness::kSchedules) {
    const ScopedSchedule scope(schedule);
    DeviceArray<unsigned> y(1);
    EXPECT_EQ(Launch(1, 256, LastThreadWins, y.data()), "");
    results.push_back(y[0]);
  }
  EXPECT_EQ(results[0], 255u);
  EXPECT_EQ(results[1], 0u);
  EXPECT_NE(results[2], results[3]);
}

TEST(LaunchTest, LimitsOfADevice) {
  DeviceArray<int> y(64);
  const auto launch = [&](dim3 grid, dim3 block, size_t shared_bytes) {
    return LaunchKernel({"Idle", grid, block, shared_bytes, nullptr}, DynamicSharedIndex, 0);
  };
  EXPECT_EQ(launch(1, 1024, 48 * 1024), "");
  EXPECT_EQ(launch(1, 1025, 4),
            "CUDA kernel Idle: a block must have 1 to 1024 threads, at most 64 of them along z. "
            "Received: block=(1025,1,1)");
  ExpectFinding(launch(1, {64, 32, 1}, 4), {"Received: block=(64,32,1)"});
  ExpectFinding(launch(1, 0, 4), {"Received: block=(0,1,1)"});
  ExpectFinding(launch(1, {1, 1, 65}, 4), {"Received: block=(1,1,65)"});
  ExpectFinding(launch(0, 32, 4), {"Received: grid=(0,1,1)"});
  ExpectFinding(launch({1, 65536, 1}, 32, 4), {"Received: grid=(1,65536,1)"});
  ExpectFinding(launch(1, 32, 48 * 1024 + 1),
                {"at most 49152 bytes. Received: shared_bytes=49153"});
}

__global__ void HalfOfSharedMemory() {
  __shared__ Shared<float, 6 * 1024> values;
  values[threadIdx.x] = 1;
}
TEST(LaunchTest, StaticAndDynamicSharedMemoryAddUp) {
  EXPECT_EQ(LaunchKernel({"Half", 1, 32, 24 * 1024, nullptr}, HalfOfSharedMemory), "");
  ExpectFinding(LaunchKernel({"Half", 1, 32, 24 * 1024 + 4, nullptr}, HalfOfSharedMemory),
                {"uses 49156 bytes of shared memory, of at most 49152"});
}

TEST(LaunchTest, GoesOnAfterAFinding) {
  DeviceArray<int> y(64);
  for (int round = 0; round < 3; ++round) {
    EXPECT_NE(Launch(1, 64, BarrierInBranch, y.data()), "");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(Launch(1, 64, RotateInWarp, y.data()), "");
  }
}

TEST(LaunchTest, GridCoversTheWorkButNotMoreThanTheDevice) {
  EXPECT_EQ(GridForBlocks(0, SharedIndex, 256, 0), 1u);
  EXPECT_EQ(GridForBlocks(3, SharedIndex, 256, 0), 3u);
  EXPECT_EQ(GridForBlocks(int64_t{1} << 40, SharedIndex, 256, 0), 4u);
}

__global__ void FillButOne(float* y) {
  if (threadIdx.x != 17) y[threadIdx.x] = std::numeric_limits<float>::quiet_NaN();
}
TEST(DeviceArrayTest, UnwrittenElementIsNamed) {
  DeviceArray<float> y(32);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(Launch(1, 32, FillButOne, y.data()), "");
  // A NaN that was computed counts as written.
  EXPECT_EQ(y.Unwritten(), "element 17 of 32 is expected to be written");
}

// Global memory is checked only by AddressSanitizer.
#if defined(__SANITIZE_ADDRESS__)
__global__ void Touch(const float* x, int64_t i, float* y) {
  if (threadIdx.x == 9) *y = x[i];
}
TEST(DeviceArrayDeathTest, AddressSanitizerNamesTheThread) {
  DeviceArray<float> x(Counting<float>(33)), y(1);
  EXPECT_EQ(Launch(1, 32, Touch, x.data(), 32, y.data()), "");
  EXPECT_DEATH(EXPECT_EQ(Launch(1, 32, Touch, x.data(), 33, y.data()), ""),
               "heap-buffer-overflow(.|\n)*Touch(.|\n)*block .0,0,0., thread .9,0,0.");
  EXPECT_DEATH(EXPECT_EQ(Launch(1, 32, Touch, x.data(), -1, y.data()), ""), "heap-buffer-overflow");
}
#endif

TEST(TypesTest, VectorsAreAlignedLikeCudas) {
  EXPECT_EQ(alignof(float2), 8u);
  EXPECT_EQ(alignof(float3), 4u);
  EXPECT_EQ(alignof(float4), 16u);
  EXPECT_EQ(alignof(int4), 16u);
  EXPECT_EQ(alignof(double2), 16u);
  EXPECT_EQ(make_float4(1, 2, 3, 4).w, 4);
}

TEST(TypesTest, HalfTypesRoundToTheNearestEven) {
  EXPECT_EQ(float(__half(1 + 1.0f / 2048)), 1);
  EXPECT_EQ(float(__half(1 + 3.0f / 2048)), 1 + 4.0f / 2048);
  EXPECT_TRUE(std::isinf(__half2float(__float2half(1e6f))));
  EXPECT_EQ(float(__nv_bfloat16(1 + 1.0f / 256)), 1);
  EXPECT_EQ(float(__nv_bfloat16(1 + 3.0f / 256)), 1 + 4.0f / 256);
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(float(__nv_bfloat16(3.4e38f))));
}

// Every finite value, and what is around and half-way to the next one.
TEST(TypesTest, HalvesAreThoseOfTheStandard) {
  auto value_of = [](int bits) {
    const int exponent = bits >> 10, fraction = bits & 0x3FF;
    return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  };
  for (int bits = 0; bits < 0x7C00; ++bits) {
    const float value = static_cast<float>(value_of(bits));
    ASSERT_EQ(float(__ushort_as_half(bits)), value);
    ASSERT_EQ(float(__ushort_as_half(0x8000 | bits)), -value);
    ASSERT_EQ(__half_as_ushort(value), bits);
    ASSERT_EQ(__half_as_ushort(-value), 0x8000 | bits);
    const float middle = static_cast<float>((value_of(bits) + value_of(bits + 1)) / 2);
    ASSERT_EQ(__half_as_ushort(middle), bits + bits % 2);
    ASSERT_EQ(__half_as_ushort(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(__half_as_ushort(std::nextafter(middle, 1e9f)), bits + 1);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float(__half(infinity)), infinity);
  EXPECT_EQ(float(__half(-infinity)), -infinity);
  EXPECT_TRUE(std::isnan(float(__half(std::nanf("")))));
}

__global__ void Normals(NormalStream stream, float* y) {
  float normals[4];
  FourNormals(stream, 3, threadIdx.x, normals);
  for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = normals[i];
}
TEST(TypesTest, SharedHeadersRunInKernels) {
  const NormalStream stream = MakeNormalStream(1, 2);
  DeviceArray<float> y(4 * 33);
  EXPECT_EQ(Launch(1, 33, Normals, stream, y.data()), "");
  for (int counter = 0; counter < 33; ++counter) {
    float normals[4];
    FourNormals(stream, 3, counter, normals);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(y[4 * counter + i], normals[i]);
  }
}

}  // namespace
}  // namespace late_phase

// Copies and conversions of arrays in device memory, in the CUDA harness.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/arrays.h"
#include "tests/cuda_harness/device_array.h"

namespace late_phase {
namespace {

using cuda_harness::DeviceArray;

// What 16 bits stand for by the definition of the formats: a sign, an exponent, a mantissa.
double Decode(uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits,
            mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1, fraction = std::ldexp(mantissa, -mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <typename T>
void ExpectEveryValueGoesThereAndBack(int mantissa_bits) {
  std::vector<T> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back({static_cast<uint16_t>(bits)});
  DeviceArray<T> from(all), back(all.size());
  DeviceArray<float> wide(all.size());
  ASSERT_EQ(WidenGpu(from.size(), from.data(), wide.data(), nullptr), "");
  ASSERT_EQ(RoundGpu(wide.size(), wide.data(), back.data(), nullptr), "");
  for (size_t i = 0; i < all.size(); ++i) {
    const double value = Decode(all[i].bits, mantissa_bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(wide[i])) << i;
      EXPECT_TRUE(std::isnan(Decode(back[i].bits, mantissa_bits))) << i;
    } else {
      EXPECT_EQ(wide[i], value) << i;
      EXPECT_EQ(back[i].bits, all[i].bits) << i;
    }
  }
}
TEST(CudaArraysTest, EveryHalfGoesThereAndBack) { ExpectEveryValueGoesThereAndBack<Half>(10); }
TEST(CudaArraysTest, EveryBFloat16GoesThereAndBack) {
  ExpectEveryValueGoesThereAndBack<BFloat16>(7);
}

// Between two neighbours: to the nearer, in the middle to the even one.
template <typename T>
void ExpectRoundsToNearest(int mantissa_bits) {
  const float unit = std::ldexp(1.0f, -mantissa_bits);
  const std::vector<float> values = {1 + unit / 2,      1 + 3 * unit / 2,   1 + unit * 0.499f,
                                     1 + unit * 0.501f, -1 - unit * 0.501f, -1 - unit / 2};
  const std::vector<double> expected = {1, 1 + 2.0 * unit, 1, 1.0 + unit, -1.0 - unit, -1};
  DeviceArray<float> from(values);
  DeviceArray<T> to(values.size());
  ASSERT_EQ(RoundGpu(from.size(), from.data(), to.data(), nullptr), "");
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(Decode(to[i].bits, mantissa_bits), expected[i]) << i;
  }
}
TEST(CudaArraysTest, HalfRoundsToNearest) { ExpectRoundsToNearest<Half>(10); }
TEST(CudaArraysTest, BFloat16RoundsToNearest) { ExpectRoundsToNearest<BFloat16>(7); }

// Arrays that begin anywhere, of any size: all of it and nothing besides.
TEST(CudaArraysTest, OddSizesAndPlaces) {
  for (const int64_t offset : {0, 1, 3}) {
    for (const int64_t size : {0, 1, 31, 32, 33, 257, 5000}) {
      std::vector<float> values(offset + size);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100);
      DeviceArray<float> from(values), back(offset + size + 1);
      DeviceArray<Half> half(offset + size + 1);
      ASSERT_EQ(RoundGpu(size, from.data() + offset, half.data() + offset, nullptr), "");
      ASSERT_EQ(WidenGpu(size, half.data() + offset, back.data() + offset, nullptr), "");
      for (int64_t i = 0; i < offset + size + 1; ++i) {
        if (i < offset || i >= offset + size) {
          EXPECT_EQ(half[i].bits, 0xFFFF) << i;  // as it was made
          EXPECT_TRUE(std::isnan(back[i])) << i;
        } else {
          EXPECT_EQ(back[i], values[i]) << i;
        }
      }
    }
  }
}

TEST(CudaArraysTest, CopiesAndZeros) {
  DeviceArray<double> from(std::vector<double>{1, 2, 3}), to(3);
  ASSERT_EQ(CopyGpu(2 * sizeof(double), from.data(), to.data(), nullptr), "");
  ASSERT_EQ(ZeroGpu(sizeof(double), to.data(), nullptr), "");
  EXPECT_EQ(to[0], 0);
  EXPECT_EQ(to[1], 2);
  EXPECT_TRUE(std::isnan(to[2]));
  EXPECT_EQ(CopyGpu(0, nullptr, nullptr, nullptr), "");
  EXPECT_EQ(ZeroGpu(0, nullptr, nullptr), "");
}

}  // namespace
}  // namespace late_phase

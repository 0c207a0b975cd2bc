// optimizers/number_text.h: numbers that read back, and the six digits of version 0.1.0.
#include "optimizers/number_text.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

std::string PrintedInSixDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Where six digits are enough, texts are those of version 0.1.0.
TEST(NumberText, HasSixDigitsOrAsManyMoreAsItTakes) {
  for (const auto& [value, text] : std::initializer_list<std::pair<double, const char*>>{
           {0, "0"},
           {0.1, "0.1"},
           {-0.25, "-0.25"},
           {1e-8, "1e-08"},
           {0.0001, "0.0001"},
           {391, "391"},
           {100000, "100000"},
           {1e6, "1e+06"},
           {0.123456, "0.123456"},
           {0.1234567, "0.1234567"},
           {1234567, "1234567"},
           {1.0 / 3, "0.3333333333333333"},
           {0.1 + 0.2, "0.30000000000000004"},
           {std::numeric_limits<double>::infinity(), "inf"}}) {
    EXPECT_EQ(NumberText(value), text);
  }
}

TEST(NumberText, EveryNumberReadsBackAndItsSixDigitsAreThoseOfVersion010) {
  std::mt19937_64 engine(1);
  for (int i = 0; i < 20000; ++i) {
    // All exponents from 1e-300 to 1e300, full and short mantissas.
    double value =
        std::ldexp(static_cast<double>(engine() >> 11), static_cast<int>(engine() % 1900) - 1000);
    if (i % 2 == 0) value = std::strtod(PrintedInSixDigits(value).c_str(), nullptr);
    const std::string text = NumberText(value);
    ASSERT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    ASSERT_EQ(InSixDigits(text), PrintedInSixDigits(value)) << text;
    ASSERT_TRUE(i % 2 == 1 || text == PrintedInSixDigits(value)) << text;
  }
}

TEST(NumberText, InSixDigitsTouchesNumbersOnly) {
  EXPECT_EQ(InSixDigits("adam lr=0:0.3333333333333333,1000:-0.01234567 by 391 decay=0 beta1=0.9"),
            "adam lr=0:0.333333,1000:-0.0123457 by 391 decay=0 beta1=0.9");
  EXPECT_EQ(InSixDigits("double[3,128]"), "double[3,128]");
  EXPECT_EQ(InSixDigits("cifar10"), "cifar10");
  EXPECT_EQ(InSixDigits(""), "");
}

}  // namespace
}  // namespace late_phase

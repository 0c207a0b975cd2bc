#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/driver.h"

namespace late_phase {
namespace {

TEST(DriverWarningTest, NoDriverIsNoNews) { EXPECT_EQ(DriverWarning(13000, 0), ""); }

TEST(DriverWarningTest, DriversOfTheMajorVersionAndNewerServe) {
  for (int driver : {13000, 13020, 14000}) EXPECT_EQ(DriverWarning(13000, driver), "");
  EXPECT_EQ(DriverWarning(13020, 13000), "");
}

TEST(DriverWarningTest, AnOlderDriverIsNamedWithTheWayOut) {
  EXPECT_EQ(DriverWarning(13000, 12040),
            "late_phase: the CUDA driver is too old for the GPU kernels: they were built with CUDA "
            "13.0, the driver supports CUDA up to 12.4. CPU kernels work. For the GPU, install a "
            "driver of the 580 series or newer, or build late_phase with a toolkit of CUDA 12 "
            "(LATE_PHASE_CUDA).");
  EXPECT_THAT(DriverWarning(12080, 11080), ::testing::HasSubstr("525 series"));
}

}  // namespace
}  // namespace late_phase

// The small version of a campaign over bytes: good inputs, and a few thousand damaged ones. Also
// run under the sanitizers.
#include "gtest/gtest.h"
#include "tests/campaign/bytes/damage.h"
#include "tests/campaign/bytes/parser.h"

namespace late_phase {
namespace {

TEST(BytesTest, GoodInputsAreAccepted) {
  ASSERT_FALSE(GoodInputs().empty());
  for (const std::string& bytes : GoodInputs()) {
    outcomes = {};
    Parse(bytes);
    EXPECT_EQ(outcomes.accepted, 1) << bytes;
  }
}

TEST(BytesTest, DamagedInputsAreRefusedOrRead) {
  Damage damage(1);
  outcomes = {};
  const std::vector<std::string> good = GoodInputs();
  for (int i = 0; i < 3000; ++i) Parse(damage.To(good[i % good.size()]));
  EXPECT_EQ(outcomes.accepted + outcomes.refused, 3000);
  EXPECT_GT(outcomes.accepted, 0);
  EXPECT_GT(outcomes.refused, 0);
}

}  // namespace
}  // namespace late_phase

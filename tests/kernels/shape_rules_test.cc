// Shape rules: binding, agreement, unknown sizes, messages.
#include "kernels/shape_rules.h"

#include "gtest/gtest.h"

namespace late_phase {
namespace {

constexpr int64_t kUnknown = ShapeMatcher::kUnknown;

TEST(ShapeRules, FirstAppearanceSetsASizeLaterOnesAgree) {
  ShapeMatcher sizes("Op");
  EXPECT_EQ(sizes.Match({"a", "[batch, units]"}, {3, 7}), "");
  EXPECT_EQ(sizes.Match({"b", "[units, 4*units]"}, {7, 28}), "");
  EXPECT_EQ(sizes["batch"], 3);
  EXPECT_EQ(sizes["units"], 7);
  EXPECT_EQ(sizes["nowhere"], kUnknown);
  EXPECT_EQ(sizes.Resolve("[4*units, batch, nowhere]"), (std::vector<int64_t>{28, 3, kUnknown}));
}

TEST(ShapeRules, ContradictionNamesArgumentRuleKnownSizesAndShape) {
  ShapeMatcher sizes("Op");
  ASSERT_EQ(sizes.Match({"a", "[batch, units]"}, {3, 7}), "");
  EXPECT_EQ(sizes.Match({"b", "[units, 4*units]"}, {7, 29}),
            "Op: `b` must be [units, 4*units] with units=7. Received: shape=[7,29]");
}

TEST(ShapeRules, WrongRank) {
  ShapeMatcher sizes("Op");
  EXPECT_EQ(sizes.Match({"a", "[batch, units]"}, {3}),
            "Op: `a` must be [batch, units]. Received: shape=[3]");
  EXPECT_EQ(sizes.Match({"member", "[]"}, {1}),
            "Op: `member` must be a scalar. Received: shape=[1]");
  EXPECT_EQ(sizes.Match({"member", "[]"}, {}), "");
}

TEST(ShapeRules, AlternativesAreChosenByRank) {
  const ShapeRule rule{"x", "[batch, units] or [batch, time, units]"};
  ShapeMatcher flat("Op"), deep("Op");
  EXPECT_EQ(flat.Match(rule, {3, 7}), "");
  EXPECT_EQ(flat["units"], 7);
  EXPECT_EQ(flat["time"], kUnknown);
  EXPECT_EQ(deep.Match(rule, {3, 5, 7}), "");
  EXPECT_EQ(deep["units"], 7);
  EXPECT_EQ(deep["time"], 5);
  const std::string complaint = "Op: `x` must be [batch, units] or [batch, time, units]";
  EXPECT_EQ(ShapeMatcher("Op").Match(rule, {3}), complaint + ". Received: shape=[3]");
  EXPECT_EQ(ShapeMatcher("Op").Match(rule, {3, 5, 7, 9}),
            complaint + ". Received: shape=[3,5,7,9]");
  EXPECT_EQ(deep.Match(rule, {3, 8}),
            complaint + " with batch=3, units=7, time=5. Received: shape=[3,8]");
}

TEST(ShapeRules, LeastSize) {
  ShapeMatcher sizes("Op");
  EXPECT_EQ(sizes.Match({"u", "[K>=1, units]"}, {0, 7}),
            "Op: `u` must be [K>=1, units]. Received: shape=[0,7]");
  EXPECT_EQ(sizes["units"], kUnknown) << "a refused shape must set nothing";
  EXPECT_EQ(sizes.Match({"u", "[K>=1, units]"}, {1, 7}), "");
}

TEST(ShapeRules, AMultipleMustDivide) {
  ShapeMatcher sizes("Op");
  EXPECT_NE(sizes.Match({"bias", "[4*units]"}, {30}), "");
  EXPECT_EQ(sizes.Match({"bias", "[4*units]"}, {28}), "");
  EXPECT_EQ(sizes["units"], 7);
}

TEST(ShapeRules, ContradictionWithinOneShape) {
  ShapeMatcher sizes("Op");
  EXPECT_NE(sizes.Match({"r", "[units, 4*units]"}, {7, 32}), "");
}

TEST(ShapeRules, UnknownSizesFitAndAreLearntLater) {
  ShapeMatcher sizes("Op");
  EXPECT_EQ(sizes.Match({"a", "[batch, units]"}, {kUnknown, kUnknown}), "");
  EXPECT_EQ(sizes["units"], kUnknown);
  EXPECT_EQ(sizes.Match({"b", "[4*units]"}, {28}), "");
  EXPECT_EQ(sizes.Match({"c", "[units, batch]"}, {8, kUnknown}),
            "Op: `c` must be [units, batch] with units=7. Received: shape=[8,?]");
}

}  // namespace
}  // namespace late_phase

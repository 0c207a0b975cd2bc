// GoogleMock's matchers for absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(run->Initialize(), IsOk());
//   EXPECT_THAT(run->Restore(dir), StatusIs(absl::StatusCode::kNotFound));
//   EXPECT_THAT(options.Check(), StatusIs(_, HasSubstr("`members` must be")));
//
// For the value of a StatusOr: TF_ASSERT_OK_AND_ASSIGN, from TensorFlow's statusor.h, or
// ExpectValue.
#ifndef LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensorflow/core/platform/statusor.h"

namespace late_phase {
namespace test_util {

inline absl::Status GetStatus(absl::Status status) { return status; }
template <typename T>
absl::Status GetStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << GetStatus(arg);
  return GetStatus(arg).ok();
}

// code: a code, or a matcher of codes, as _.
MATCHER_P(StatusIs, code, "") {
  *result_listener << GetStatus(arg);
  return ::testing::ExplainMatchResult(code, GetStatus(arg).code(), result_listener);
}

// message: a text, or a matcher of texts.
MATCHER_P2(StatusIs, code, message, "") {
  *result_listener << GetStatus(arg) << " ";
  return ::testing::ExplainMatchResult(code, GetStatus(arg).code(), result_listener) &&
         ::testing::ExplainMatchResult(message, std::string(GetStatus(arg).message()),
                                       result_listener);
}

// The value; if there is none, the test fails, and a default value is returned. For functions that
// return something; elsewhere use TF_ASSERT_OK_AND_ASSIGN.
template <typename T>
T ExpectValue(absl::StatusOr<T> value) {
  EXPECT_THAT(value, IsOk());
  return value.ok() ? *std::move(value) : T();
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_

// gmock matchers of absl::Status and absl::StatusOr, as Abseil has them in a header that
// TensorFlow's wheel leaves out:
//
//   EXPECT_THAT(run.Start(), IsOk());
//   EXPECT_THAT(Read(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
#ifndef LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace late_phase {
namespace test_util {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const absl::Status& status = ToStatus(arg);
  if (!status.ok()) *result_listener << "which is " << status;
  return status.ok();
}

// `code` and `message` are values or matchers.
MATCHER_P2(StatusIs, code, message,
           "has a code that " + ::testing::DescribeMatcher<absl::StatusCode>(code, negation) +
               (negation ? " or" : " and") + " a message that " +
               ::testing::DescribeMatcher<std::string>(message, negation)) {
  const absl::Status& status = ToStatus(arg);
  *result_listener << "which is " << status;
  return ::testing::Matches(code)(status.code()) &&
         ::testing::Matches(message)(std::string(status.message()));
}

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_SUPPORT_STATUS_MATCHERS_H_

// Opens every TensorFlow session of a process, so that each has as many threads as it says.
//
// The threads inside ops belong to the process: TensorFlow starts them for the first session and
// ignores what later sessions ask for. A session with another number is therefore an error here.
#ifndef LATE_PHASE_OPTIMIZERS_SESSION_H_
#define LATE_PHASE_OPTIMIZERS_SESSION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tensorflow/core/public/session.h"

namespace late_phase {

// A session without a graph, whose ops share `threads` threads and run one at a time.
// InvalidArgument if the process has another number of threads already.
absl::StatusOr<std::unique_ptr<tensorflow::Session>> OpenSession(int threads);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_SESSION_H_

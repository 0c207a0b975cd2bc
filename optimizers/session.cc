#include "optimizers/session.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace late_phase {

absl::StatusOr<std::unique_ptr<tensorflow::Session>> OpenSession(int threads) {
  if (threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("`threads` must be at least 1. Received: threads=", threads));
  }
  tensorflow::SessionOptions options;
  options.config.set_intra_op_parallelism_threads(threads);
  // One op at a time: ops have their own threads, and the order of execution, hence of any
  // rounding, is the same in every run. The session has its own pool: the process's has as many
  // threads as its first session wanted.
  options.config.add_session_inter_op_thread_pool()->set_num_threads(1);
  // In a graph placed on a GPU, ops without a GPU kernel stay on the CPU.
  options.config.set_allow_soft_placement(true);
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  if (session == nullptr) return absl::InternalError("TensorFlow cannot open a session");
  const tensorflow::DeviceMgr* devices = nullptr;
  TF_RETURN_IF_ERROR(session->LocalDeviceManager(&devices));
  const int there = devices->HostCPU()->tensorflow_cpu_worker_threads()->num_threads;
  if (there != threads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`threads` must be ", there,
        ", as in the first session of this process, whose threads TensorFlow gives to all. "
        "Received: threads=",
        threads));
  }
  return session;
}

}  // namespace late_phase

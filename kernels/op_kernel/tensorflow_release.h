// What differs between the supported releases of TensorFlow; no other file tells them apart.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_TENSORFLOW_RELEASE_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_TENSORFLOW_RELEASE_H_

// 2.21 renamed the stream executor's addresses. The wheel's headers do not say which release they
// are of, so the file is asked for.
#if __has_include("xla/stream_executor/device_address.h")
#include "xla/stream_executor/device_address.h"
namespace late_phase {
using DeviceAddress = stream_executor::DeviceAddressBase;
}  // namespace late_phase
#else
#include "xla/stream_executor/device_memory.h"
namespace late_phase {
using DeviceAddress = stream_executor::DeviceMemoryBase;
}  // namespace late_phase
#endif

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_TENSORFLOW_RELEASE_H_

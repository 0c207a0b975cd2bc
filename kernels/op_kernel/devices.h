// The devices and types for which every op has a kernel.
#ifndef LATE_PHASE_KERNELS_OP_KERNEL_DEVICES_H_
#define LATE_PHASE_KERNELS_OP_KERNEL_DEVICES_H_

#include "kernels/op_kernel/cpu_device.h"
#include "kernels/op_kernel/gpu_device.h"

// REGISTER(Device, T); for each of them.
#define LATE_PHASE_FOR_ALL_TYPES(REGISTER) \
  REGISTER(Cpu, float);                    \
  REGISTER(Cpu, double);                   \
  REGISTER(Cpu, Eigen::half);              \
  REGISTER(Cpu, Eigen::bfloat16);          \
  REGISTER(Gpu, float);                    \
  REGISTER(Gpu, double);                   \
  REGISTER(Gpu, Eigen::half);              \
  REGISTER(Gpu, Eigen::bfloat16)

#endif  // LATE_PHASE_KERNELS_OP_KERNEL_DEVICES_H_

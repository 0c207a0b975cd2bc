// What the library knows about CUDA on this machine. Safe to call without a GPU or driver.
#ifndef LATE_PHASE_KERNELS_CUDA_RUNTIME_H_
#define LATE_PHASE_KERNELS_CUDA_RUNTIME_H_

namespace late_phase {

// CUDA's numbering: 13000 is 13.0.
struct CudaVersions {
  int toolkit;  // built with
  int driver;   // the newest version the driver supports; 0: no driver
};

struct CudaReport {
  CudaVersions versions;
  int devices;    // GPUs that can be used
  bool has_code;  // the library holds code for the first GPU; false without one
};

// Does not touch the GPUs.
CudaVersions AskCudaVersions();
CudaReport AskCuda();

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_RUNTIME_H_

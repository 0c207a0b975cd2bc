// What the library knows about CUDA where it runs. Safe to ask on a machine without GPU or driver.
#ifndef LATE_PHASE_KERNELS_CUDA_RUNTIME_H_
#define LATE_PHASE_KERNELS_CUDA_RUNTIME_H_

namespace late_phase {

// As CUDA counts: 13000 is 13.0.
struct CudaVersions {
  int toolkit;  // built with
  int driver;   // the newest version the driver serves; 0: no driver
};

struct CudaReport {
  CudaVersions versions;
  int devices;    // GPUs that can be used
  bool has_code;  // the library holds code for the first GPU; false without one
};

// Leaves the GPUs alone.
CudaVersions AskCudaVersions();
CudaReport AskCuda();

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_RUNTIME_H_

// A CUDA stream as CUDA cores take it, for headers that are read without the CUDA toolkit.
#ifndef LATE_PHASE_KERNELS_CUDA_STREAM_H_
#define LATE_PHASE_KERNELS_CUDA_STREAM_H_

struct CUstream_st;

namespace late_phase {

using CudaStream = CUstream_st*;  // the toolkit's cudaStream_t

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CUDA_STREAM_H_

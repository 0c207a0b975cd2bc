// Arrays of the normal random numbers of kernels/philox_normal.h, many at a time. The same bits for
// every instruction set.
#ifndef LATE_PHASE_KERNELS_CPU_NORMALS_H_
#define LATE_PHASE_KERNELS_CPU_NORMALS_H_

#include <cstdint>

#include "kernels/philox_normal.h"

namespace late_phase {

// Elements [chunk · kNormalChunk, (chunk + chunks) · kNormalChunk) of a row of the stream.
// normals: [chunks · kNormalChunk] out.
void FillNormals(const NormalStream& stream, uint32_t row, int64_t chunk, int64_t chunks,
                 float* normals);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_NORMALS_H_

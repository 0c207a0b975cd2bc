// The memory floor of element-wise work: the same reads and writes, next to no arithmetic, no
// TensorFlow. For tools/bench/bench_optimizer.cc and tools/bench/bench_batchnorm.cc.
#ifndef LATE_PHASE_TOOLS_BENCH_MEMORY_PASS_H_
#define LATE_PHASE_TOOLS_BENCH_MEMORY_PASS_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace late_phase {

// Reads D floats of each of `reads` and writes D of each of `writes`, in one pass; an array may be
// both. It writes the mean of what it read, so that values neither grow nor vanish.
// REQUIRES: a combination of numbers that MemoryBlock in memory_pass.cc lists.
void MemoryPass(int64_t D, const std::vector<const float*>& reads,
                const std::vector<float*>& writes, const Parallel& parallel);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_BENCH_MEMORY_PASS_H_

// What touches all members of a late-phase array [K,D] at once: spawning, averaging over time
// (SWA), averaging over members.
//
// K members of D weights each. Cores: no TensorFlow; nothing is checked here. Results have the same
// bits for any number of threads, any instruction set and any GPU. Updates of one row are in
// kernels/update_rules.h.
//
// A Cpu function takes float and double. A Gpu function is its twin on a stream, which takes Half
// and BFloat16 too: arrays are in device memory, and it returns before they are written, empty or
// with an error message.
#ifndef LATE_PHASE_KERNELS_MEMBER_ROWS_H_
#define LATE_PHASE_KERNELS_MEMBER_ROWS_H_

#include <cstdint>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/stream.h"
#include "kernels/half_types.h"

namespace late_phase {

// RMS(x) = ‖x‖/√D is summed in double in an order that depends only on D: within a block of
// kBlockElements kRmsLanes sums, sum j over the elements j, j + kRmsLanes, ...; these in order;
// then the blocks in order.
constexpr int64_t kRmsLanes = 64;

template <typename T>
struct SpawnArgs {
  int64_t K, D;
  T* rows;               // [K,D] in: row 0; out: all rows
  ComputeType<T> sigma;  // σ0 >= 0; 0 copies row 0 exactly
  int64_t seed[2];       // element (k, i) of the noise depends only on the seed, k and i
                         // (kernels/philox_normal.h)
  double* sums;          // scratch of SpawnSums elements
};

// The sums of the blocks, and a last element in which the Gpu function keeps its scale.
constexpr int64_t SpawnSums(int64_t D) { return (D + kBlockElements - 1) / kBlockElements + 1; }

// row k ← row 0 + sigma · RMS(row 0) · ε_k, ε ~ N(0, 1), for every k, including 0: all members are
// alike in distribution.
template <typename T>
void SpawnCpu(const SpawnArgs<T>& args, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string SpawnGpu(const SpawnArgs<T>& args, CudaStream stream);

// average ← (count · average + source) / (count + 1)     both [D]; count samples are in the average
// so far; 0 copies exactly. Computed as average + (source − average) / (count + 1), whose rounding
// error does not grow with count.
template <typename T>
void SwaUpdateCpu(int64_t D, const T* source, int64_t count, T* average, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string SwaUpdateGpu(int64_t D, const T* source, int64_t count,
                                       ComputeType<T>* average, CudaStream stream);

// mean ← (1/K) Σ_k rows[k]     rows [K,D] read only; mean [D] may not overlap it. K >= 1.
// Computed in double as row 0 + Σ_k (row k − row 0) / K, in the order of k: the mean of equal rows
// is that row exactly.
template <typename T>
void CollapseCpu(int64_t K, int64_t D, const T* rows, T* mean, const Parallel& parallel);
template <typename T>
[[nodiscard]] std::string CollapseGpu(int64_t K, int64_t D, const T* rows, T* mean,
                                      CudaStream stream);

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_MEMBER_ROWS_H_

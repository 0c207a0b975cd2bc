// How a core runs work on several threads without owning any.
//
// The caller supplies the threads: an OpKernel hands over TensorFlow's intra-op pool
// (kernels/op_kernel/cpu_device.h), a test runs tasks inline. Tasks of one call never wait for
// each other, so any pool finishes them, even one with a single free thread.
#ifndef LATE_PHASE_KERNELS_CPU_PARALLEL_H_
#define LATE_PHASE_KERNELS_CPU_PARALLEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>

namespace late_phase {

struct Parallel {
  // How many tasks may usefully run at once; >= 1.
  int threads = 1;
  // Calls task(i) once for each i in [0, tasks), in any order and on any thread, and returns when
  // all are done.
  std::function<void(int64_t tasks, const std::function<void(int64_t)>& task)> run =
      [](int64_t tasks, const std::function<void(int64_t)>& task) {
        for (int64_t i = 0; i < tasks; ++i) task(i);
      };
};

// The i-th of `parts` nearly equal slices of [0, size).
struct Slice {
  Slice(int64_t size, int64_t parts, int64_t i)
      : begin(size / parts * i + std::min(i, size % parts)),
        end(begin + size / parts + (i < size % parts ? 1 : 0)) {}
  int64_t size() const { return end - begin; }
  int64_t begin, end;
};

// Element-wise work on large arrays is cut at multiples of this: the arrays of a block fit into a
// second-level cache, and its work outweighs a task's own cost. A multiple of every vector width.
constexpr int64_t kBlockElements = 16 * 1024;

// Calls block(begin, end) for slices that cover [0, size), each starting at a multiple of
// kBlockElements. Small arrays are processed inline.
template <typename Block>
void ForBlocks(int64_t size, const Parallel& parallel, const Block& block) {
  const int64_t blocks = (size + kBlockElements - 1) / kBlockElements;
  const int64_t tasks = std::min<int64_t>(blocks, std::max(1, parallel.threads));
  if (tasks <= 1) return block(int64_t{0}, size);
  parallel.run(tasks, [&](int64_t i) {
    const Slice slice(blocks, tasks, i);
    block(slice.begin * kBlockElements, std::min(slice.end * kBlockElements, size));
  });
}

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_CPU_PARALLEL_H_

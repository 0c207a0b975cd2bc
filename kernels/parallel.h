// How a core runs work on several threads without owning any.
//
// The caller supplies the threads: an OpKernel hands over TensorFlow's intra-op pool
// (kernels/cpu_op.h), a test runs tasks in line. Tasks of one call never wait for each other, so
// any pool, also one with a single free thread, finishes them.
#ifndef LATE_PHASE_KERNELS_PARALLEL_H_
#define LATE_PHASE_KERNELS_PARALLEL_H_

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

}  // namespace late_phase

#endif  // LATE_PHASE_KERNELS_PARALLEL_H_

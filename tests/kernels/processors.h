// What the cases of a core run on: the CPU core and, in the CUDA harness, its CUDA twin.
#ifndef LATE_PHASE_TESTS_KERNELS_PROCESSORS_H_
#define LATE_PHASE_TESTS_KERNELS_PROCESSORS_H_

#include <cstdlib>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/parallel.h"
#include "tests/cuda_harness/schedule.h"
#include "tests/support/backwards.h"

namespace late_phase {
namespace test_util {

enum class Processor { kCpu, kCuda };

inline const char* Name(Processor processor) {
  return processor == Processor::kCpu ? "Cpu" : "Cuda";
}
inline void PrintTo(Processor processor, std::ostream* out) { *out << Name(processor); }

// CUDA only once, not for every instruction set.
inline std::vector<Processor> Processors() {
  if (std::getenv("LATE_PHASE_CPU") != nullptr) return {Processor::kCpu};
  return {Processor::kCpu, Processor::kCuda};
}

// What runs a core. `threads`: how many on a CPU; on CUDA it chooses the order of the threads.
struct Executor {
  Processor processor;
  int threads;

  // Calls cpu(parallel), or cuda(), whose error message must be empty.
  template <class Cpu, class Cuda>
  void Run(const Cpu& cpu, const Cuda& cuda) const {
    if (processor == Processor::kCpu) return cpu(Backwards(threads));
    const cuda_harness::ScopedSchedule schedule(cuda_harness::kSchedules[threads % 4]);
    EXPECT_EQ(cuda(), "");
  }
};

}  // namespace test_util
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_KERNELS_PROCESSORS_H_

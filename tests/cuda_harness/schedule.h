// The order in which the harness runs threads and blocks. A GPU promises none, so a test runs a
// kernel in each.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_SCHEDULE_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_SCHEDULE_H_

#include <cstdint>

namespace late_phase {
namespace cuda_harness {

enum class Order { kForward, kReverse, kRandom };

struct Schedule {
  const char* name = "Forward";
  Order order = Order::kForward;
  uint32_t seed = 0;  // of a random order
};

constexpr Schedule kSchedules[] = {{"Forward", Order::kForward},
                                   {"Reverse", Order::kReverse},
                                   {"Random1", Order::kRandom, 1},
                                   {"Random2", Order::kRandom, 2}};

// Launches follow `schedule` as long as the object lives.
class ScopedSchedule {
 public:
  explicit ScopedSchedule(const Schedule& schedule);
  ~ScopedSchedule();
  ScopedSchedule(const ScopedSchedule&) = delete;
  ScopedSchedule& operator=(const ScopedSchedule&) = delete;

 private:
  Schedule before_;
};

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_SCHEDULE_H_

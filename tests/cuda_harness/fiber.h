// A separate stack, on which a function runs that can pause in mid-call and continue later.
//
// Boost.Context switches the stacks; AddressSanitizer is told about every switch, so that it knows
// which stack it is looking at. A fiber is reused for the next function, and never abandoned in
// mid-call: whoever pauses one resumes it until it has ended.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_FIBER_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_FIBER_H_

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <functional>

namespace late_phase {
namespace cuda_harness {

class Fiber {
 public:
  Fiber();
  // REQUIRES: nothing is paused in it.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From outside: runs `work`, which may not throw, until it pauses or ends. True: it has ended.
  bool Start(std::function<void()> work);
  bool Resume();

  // From inside: back to Start or Resume, until the next Resume.
  void Pause();

 private:
  boost::context::fiber Loop(boost::context::fiber&& outside);
  void SwitchIn();

  static constexpr size_t kStackBytes = 256 * 1024;

  boost::context::protected_fixedsize_stack allocator_{kStackBytes};
  boost::context::stack_context stack_;
  boost::context::fiber inside_, outside_;
  std::function<void()> work_;
  bool ended_ = true, closing_ = false;
  // What AddressSanitizer needs to know about the two stacks.
  void *inside_fake_stack_ = nullptr, *outside_fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
};

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_FIBER_H_

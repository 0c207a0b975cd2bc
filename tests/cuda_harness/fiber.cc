#include "tests/cuda_harness/fiber.h"

#include <boost/context/preallocated.hpp>
#include <memory>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace late_phase {
namespace cuda_harness {
namespace {

// Before a switch to the stack at `bottom`. `fake_stack` keeps what belongs to the stack that is
// left; null: it is left forever.
void BeforeSwitch(void** fake_stack, const void* bottom, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#else
  (void)fake_stack, (void)bottom, (void)bytes;
#endif
}

// After a switch, on the new stack, which kept `fake_stack`. Tells which stack was left.
void AfterSwitch(void* fake_stack, const void** left_bottom, size_t* left_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, left_bottom, left_bytes);
#else
  (void)fake_stack, (void)left_bottom, (void)left_bytes;
#endif
}

}  // namespace

Fiber::Fiber()
    : stack_(allocator_.allocate()),
      inside_(std::allocator_arg, boost::context::preallocated(stack_.sp, stack_.size, stack_),
              allocator_,
              [this](boost::context::fiber&& outside) { return Loop(std::move(outside)); }) {}

Fiber::~Fiber() {
  closing_ = true;
  SwitchIn();  // the loop ends, and the stack is given back
}

bool Fiber::Start(std::function<void()> work) {
  work_ = std::move(work);
  ended_ = false;
  return Resume();
}

bool Fiber::Resume() {
  SwitchIn();
  return ended_;
}

void Fiber::SwitchIn() {
  // The stack grows downwards from sp.
  BeforeSwitch(&outside_fake_stack_, static_cast<char*>(stack_.sp) - stack_.size, stack_.size);
  inside_ = std::move(inside_).resume();
  AfterSwitch(outside_fake_stack_, nullptr, nullptr);
}

void Fiber::Pause() {
  BeforeSwitch(&inside_fake_stack_, outside_bottom_, outside_bytes_);
  outside_ = std::move(outside_).resume();
  AfterSwitch(inside_fake_stack_, &outside_bottom_, &outside_bytes_);
}

boost::context::fiber Fiber::Loop(boost::context::fiber&& outside) {
  AfterSwitch(nullptr, &outside_bottom_, &outside_bytes_);
  outside_ = std::move(outside);
  while (!closing_) {
    work_();
    ended_ = true;
    Pause();
  }
  BeforeSwitch(nullptr, outside_bottom_, outside_bytes_);
  return std::move(outside_);
}

}  // namespace cuda_harness
}  // namespace late_phase

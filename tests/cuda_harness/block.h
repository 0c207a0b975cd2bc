// The threads of one block: who runs, who waits for whom, and what happened before what.
//
// Every thread is a fiber that runs until it ends or must wait for others, so a barrier really
// is one. A block in which all wait and none can be released is what hangs on a GPU, or continues
// with wrong values: it ends with a finding. Happens-before, which the tracking of shared memory
// needs, has two parts: the barriers of the block that a thread has passed, and within a warp
// vector clocks, which only __syncwarp advances: shuffles and votes do not order memory.
#ifndef LATE_PHASE_TESTS_CUDA_HARNESS_BLOCK_H_
#define LATE_PHASE_TESTS_CUDA_HARNESS_BLOCK_H_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda_harness/fiber.h"
#include "tests/cuda_harness/schedule.h"

namespace late_phase {
namespace cuda_harness {

// A mistake that a GPU would punish, described. Thrown inside the thread that is to blame.
struct Finding {
  std::string text;
};

// A moment in the life of a thread, to be compared with later moments of others.
struct Moment {
  int thread = -1;
  int barriers = 0;  // of the block, passed before
  int clock = 0;     // __syncwarp calls passed before
};

class Block {
 public:
  // `shared_bytes`: dynamic shared memory. `random` decides the order, if that is random.
  Block(dim3 index, dim3 size, size_t shared_bytes, Order order, std::mt19937* random);
  ~Block();

  // Runs `kernel` on every thread. Throws Finding.
  void Run(const std::function<void()>& kernel);

  // The running block, whose current thread is the caller.
  static Block& Current();
  static bool IsRunning();

  // Ends the launch with a finding of the current thread.
  [[noreturn]] void Fail(const std::string& what) const;

  // Waits for all threads of the block, and returns how many came with a true predicate.
  int MeetBlock(const Call& call, bool predicate);
  // Waits for all lanes of call.mask, and returns what each of them brought.
  std::array<uint64_t, 32> MeetWarp(const Call& call, uint64_t value, bool orders_memory);

  int size() const { return static_cast<int>(threads_.size()); }
  int lane() const { return current_ % 32; }
  // A number that no other block of the process has.
  int64_t serial() const { return serial_; }
  Moment Now() const;
  // Whether `then` is past for the current thread, so that all its effects are visible.
  bool HappenedBefore(const Moment& then) const;
  std::string ThreadName(int thread) const;
  size_t dynamic_bytes() const { return dynamic_bytes_; }
  // Takes static shared memory into account.
  void AddShared(size_t bytes);

 private:
  enum class State { kReady, kAtBarrier, kInWarp, kEnded };
  struct Thread {
    State state = State::kReady;
    std::unique_ptr<Fiber> fiber;  // null before the first instruction and after the last
    Call call = {};                // what it waits in
    uint64_t value = 0;            // what it brought: a predicate or the bits of a value
    std::array<uint64_t, 32> received = {};
    int barriers = 0;
    int clock = 0;
    std::array<int, 32> seen = {};  // by lane: the clock up to which this one sees its effects
  };

  void Continue(int thread, const std::function<void()>& kernel);
  void Wait(State state, const Call& call, uint64_t value);
  void ReleaseBlockIfComplete();
  void ReleaseWarpIfComplete(bool orders_memory);
  int FirstMissingLane(int thread) const;
  // Why no thread can continue.
  std::string Deadlock() const;
  std::string Whereabouts(int thread) const;
  // Ends all threads that wait.
  void Abandon();

  uint3 index_;
  dim3 dim_;
  size_t dynamic_bytes_, shared_bytes_;
  Order order_;
  std::mt19937* random_;
  std::vector<Thread> threads_;
  int current_ = 0, at_barrier_ = 0, ended_ = 0;
  int64_t serial_;
  std::string finding_;
  bool abandoned_ = false;
};

}  // namespace cuda_harness
}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CUDA_HARNESS_BLOCK_H_

#include "tests/cuda_harness/block.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace late_phase {
namespace cuda_harness {
namespace {

constexpr int kWarp = 32;
constexpr size_t kSharedBytes = 48 * 1024;

// Unwinds a thread whose launch has failed elsewhere.
struct Abandoned {};

Block* running = nullptr;

// Fibers wait here to be reused: making one takes longer than most threads run.
std::vector<std::unique_ptr<Fiber>>& IdleFibers() {
  static std::vector<std::unique_ptr<Fiber>> idle;
  return idle;
}

std::string Tuple(const uint3& index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," +
         std::to_string(index.z) + ")";
}

std::string Text(const Call& call) {
  const std::string file = call.file;
  std::string text = std::string(call.name) + " at " + file.substr(file.rfind('/') + 1) + ":" +
                     std::to_string(call.line);
  if (call.mask == 0) return text;
  char mask[32];
  std::snprintf(mask, sizeof(mask), " with mask 0x%08x", call.mask);
  return text + mask;
}

// By text, not by address: a header's function may be compiled into several files.
bool SameCall(const Call& a, const Call& b) {
  return a.mask == b.mask && a.line == b.line && std::strcmp(a.name, b.name) == 0 &&
         std::strcmp(a.file, b.file) == 0;
}

uint3 Unflatten(unsigned i, const dim3& dim) {
  return {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
}

}  // namespace

Block::Block(dim3 index, dim3 size, size_t shared_bytes, Order order, std::mt19937* random)
    : index_{index.x, index.y, index.z},
      dim_(size),
      dynamic_bytes_(shared_bytes),
      shared_bytes_(shared_bytes),
      order_(order),
      random_(random),
      threads_(size.x * size.y * size.z) {
  static int64_t blocks = 0;
  serial_ = ++blocks;
  running = this;
}

Block::~Block() { running = nullptr; }

Block& Block::Current() { return *running; }
bool Block::IsRunning() { return running != nullptr; }

void Block::Run(const std::function<void()>& kernel) {
  blockIdx = index_;
  blockDim = dim_;
  std::vector<int> order(threads_.size());
  std::iota(order.begin(), order.end(), 0);
  if (order_ == Order::kReverse) std::reverse(order.begin(), order.end());
  while (ended_ < size()) {
    if (order_ == Order::kRandom) std::shuffle(order.begin(), order.end(), *random_);
    bool moved = false;
    for (const int thread : order) {
      if (threads_[thread].state != State::kReady) continue;
      moved = true;
      Continue(thread, kernel);
      if (!finding_.empty()) break;
    }
    if (!moved) finding_ = Deadlock();
    if (!finding_.empty()) {
      Abandon();
      throw Finding{finding_};
    }
  }
}

void Block::Continue(int thread, const std::function<void()>& kernel) {
  Thread& t = threads_[thread];
  current_ = thread;
  threadIdx = Unflatten(thread, dim_);
  bool ended;
  if (t.fiber != nullptr) {
    ended = t.fiber->Resume();
  } else {
    auto& idle = IdleFibers();
    if (idle.empty()) idle.push_back(std::make_unique<Fiber>());
    t.fiber = std::move(idle.back());
    idle.pop_back();
    ended = t.fiber->Start([this, &kernel] {
      try {
        kernel();
      } catch (const Finding& finding) {
        finding_ = finding.text;
      } catch (const Abandoned&) {
      }
    });
  }
  if (!ended) return;
  IdleFibers().push_back(std::move(t.fiber));
  t.state = State::kEnded;
  ++ended_;
}

void Block::Abandon() {
  abandoned_ = true;
  for (int thread = 0; thread < size(); ++thread) {
    if (threads_[thread].fiber != nullptr) Continue(thread, {});
  }
}

void Block::Fail(const std::string& what) const {
  throw Finding{"block " + Tuple(index_) + ", " + ThreadName(current_) + ": " + what};
}

std::string Block::ThreadName(int thread) const {
  return "thread " + Tuple(Unflatten(thread, dim_));
}

void Block::Wait(State state, const Call& call, uint64_t value) {
  Thread& t = threads_[current_];
  t.state = state;
  t.call = call;
  t.value = value;
}

int Block::MeetBlock(const Call& call, bool predicate) {
  const int thread = current_;
  Wait(State::kAtBarrier, call, predicate);
  ++at_barrier_;
  ReleaseBlockIfComplete();
  threads_[thread].fiber->Pause();
  if (abandoned_) throw Abandoned();
  return static_cast<int>(threads_[thread].received[0]);
}

void Block::ReleaseBlockIfComplete() {
  if (at_barrier_ < size()) return;
  uint64_t count = 0;
  for (const Thread& t : threads_) {
    if (!SameCall(t.call, threads_[0].call)) return;  // Deadlock() will say so
    count += t.value;
  }
  at_barrier_ = 0;
  for (Thread& t : threads_) {
    t.received[0] = count;
    ++t.barriers;
    t.state = State::kReady;
  }
}

std::array<uint64_t, 32> Block::MeetWarp(const Call& call, uint64_t value, bool orders_memory) {
  const int thread = current_, first = thread - lane();
  if ((call.mask >> lane() & 1) == 0) {
    Fail("calls " + Text(call) + ", which does not name its own lane " + std::to_string(lane()));
  }
  const int lanes = std::min(kWarp, size() - first);
  if (lanes < kWarp && call.mask >> lanes != 0) {
    Fail("calls " + Text(call) + ", but its warp has " + std::to_string(lanes) + " threads");
  }
  Wait(State::kInWarp, call, value);
  ReleaseWarpIfComplete(orders_memory);
  threads_[thread].fiber->Pause();
  if (abandoned_) throw Abandoned();
  return threads_[thread].received;
}

// The first lane of the thread's mask that is not in the same call, or -1.
int Block::FirstMissingLane(int thread) const {
  const int first = thread - thread % kWarp;
  const Call& call = threads_[thread].call;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((call.mask >> lane & 1) == 0) continue;
    const Thread& other = threads_[first + lane];
    if (other.state != State::kInWarp || !SameCall(other.call, call)) return lane;
  }
  return -1;
}

void Block::ReleaseWarpIfComplete(bool orders_memory) {
  if (FirstMissingLane(current_) >= 0) return;
  Thread* const warp = &threads_[current_ - lane()];
  const unsigned mask = threads_[current_].call.mask;
  std::array<uint64_t, 32> values = {};
  std::array<int, 32> seen = {};
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    values[lane] = warp[lane].value;
    if (orders_memory) {
      for (int i = 0; i < kWarp; ++i) seen[i] = std::max(seen[i], warp[lane].seen[i]);
      seen[lane] = std::max(seen[lane], ++warp[lane].clock);
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    warp[lane].received = values;
    if (orders_memory) warp[lane].seen = seen;
    warp[lane].state = State::kReady;
  }
}

Moment Block::Now() const {
  return {current_, threads_[current_].barriers, threads_[current_].clock};
}

bool Block::HappenedBefore(const Moment& then) const {
  const Thread& now = threads_[current_];
  if (then.thread == current_ || then.barriers < now.barriers) return true;
  return then.thread / kWarp == current_ / kWarp && then.clock < now.seen[then.thread % kWarp];
}

void Block::AddShared(size_t bytes) {
  shared_bytes_ += bytes;
  if (shared_bytes_ > kSharedBytes) {
    Fail("uses " + std::to_string(shared_bytes_) + " bytes of shared memory, of at most " +
         std::to_string(kSharedBytes));
  }
}

std::string Block::Whereabouts(int thread) const {
  const Thread& t = threads_[thread];
  const std::string name = ThreadName(thread);
  return name + (t.state == State::kEnded ? ", which has ended" : ", which is in " + Text(t.call));
}

std::string Block::Deadlock() const {
  // A stuck warp may be the reason for a stuck barrier; not the other way round.
  for (const State state : {State::kInWarp, State::kAtBarrier}) {
    for (int thread = 0; thread < size(); ++thread) {
      const Thread& t = threads_[thread];
      if (t.state != state) continue;
      int missing = -1;
      if (state == State::kInWarp) {
        missing = thread - thread % kWarp + FirstMissingLane(thread);
      } else {
        for (int other = 0; other < size() && missing < 0; ++other) {
          const bool there = threads_[other].state == State::kAtBarrier;
          if (!there || !SameCall(threads_[other].call, t.call)) missing = other;
        }
      }
      return "block " + Tuple(index_) + ", " + ThreadName(thread) + ": waits in " + Text(t.call) +
             " for " + Whereabouts(missing);
    }
  }
  return "";
}

}  // namespace cuda_harness
}  // namespace late_phase

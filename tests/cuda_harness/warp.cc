// Barriers, votes and shuffles by CUDA's rules, on top of the meetings of a block.
#include <cuda_runtime.h>

#include <string>

#include "tests/cuda_harness/block.h"

namespace late_phase {
namespace cuda_harness {
namespace {

// The lane that `lane` reads; `operand` is a lane or a distance. Lanes are divided into segments of
// `width`. A lane that reads past its segment's end, upwards or downwards, keeps its own value.
int SourceLane(Shuffle kind, int lane, int operand, int width) {
  const int first = lane & ~(width - 1), last = first + width - 1;
  switch (kind) {
    case Shuffle::kFromLane:
      return first | (operand & (width - 1));
    case Shuffle::kUp:
      return lane - operand < first ? lane : lane - operand;
    case Shuffle::kDown:
      return lane + operand > last ? lane : lane + operand;
    case Shuffle::kXor:
      return (lane ^ operand) > last ? lane : lane ^ operand;
  }
  return lane;
}

}  // namespace

int SyncThreads(const Call& call, bool predicate) {
  return Block::Current().MeetBlock(call, predicate);
}

void SyncWarp(const Call& call) { Block::Current().MeetWarp(call, 0, /*orders_memory=*/true); }

unsigned Ballot(const Call& call, bool predicate) {
  const auto values = Block::Current().MeetWarp(call, predicate, /*orders_memory=*/false);
  unsigned ballot = 0;
  for (int lane = 0; lane < warpSize; ++lane) ballot |= static_cast<unsigned>(values[lane]) << lane;
  return ballot;
}

uint64_t ShuffleBits(Shuffle kind, const Call& call, uint64_t bits, int operand, int width) {
  Block& block = Block::Current();
  if (width < 1 || width > warpSize || (width & (width - 1)) != 0) {
    block.Fail("calls " + std::string(call.name) +
               ", whose width must be a power of two of at most 32. Received: width=" +
               std::to_string(width));
  }
  const int source = SourceLane(kind, block.lane(), operand, width);
  const auto values = block.MeetWarp(call, bits, /*orders_memory=*/false);
  if ((call.mask >> source & 1) == 0) {
    block.Fail("reads lane " + std::to_string(source) + " by " + call.name +
               ", whose mask does not name it");
  }
  return values[source];
}

}  // namespace cuda_harness
}  // namespace late_phase

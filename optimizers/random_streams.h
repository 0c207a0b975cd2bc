// Every random number of the programs, in one place: which generator it comes from, and which of
// the generator's streams.
//
// Numbers drawn from one stream twice are not random the second time, so each purpose has streams
// of its own (tests/optimizers/random_streams_test.cc). A stream's numbers must not change: runs
// are resumed, and repeated from their config.toml, bit for bit. A new purpose gets a new row.
//
// Seeds are >= 0. In Python, late_phase.keras.LatePhaseOptimizer draws members' noise from the same
// streams.
#ifndef LATE_PHASE_OPTIMIZERS_RANDOM_STREAMS_H_
#define LATE_PHASE_OPTIMIZERS_RANDOM_STREAMS_H_

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/philox_normal.h"

namespace late_phase {

// 1. Normal numbers: stream number n of a purpose is the stream (seed, first + n) of
// kernels/philox_normal.h, with n in [0, kStreamsOfAPurpose).
constexpr int64_t kStreamsOfAPurpose = int64_t{1} << 32;

enum class Normals {
  kMemberNoise,
  kInitialWeights,
  kFlatness,
  kSwag,
  kNqpLatePhase,
  kNqpDrift,
  kNqpFullEnsemble
};

struct NormalRange {
  Normals purpose;
  // The noisy quadratic problem has no network, and its streams may be numbered like a network's.
  bool nqp;
  int64_t first;
};

constexpr NormalRange kNormalRanges[] = {
    // n: the weight's place in the order of declaration; row: the member
    {Normals::kMemberNoise, false, 0},
    // n: the weight's place among those of an image network; row 0
    {Normals::kInitialWeights, false, 1 * kStreamsOfAPurpose},
    // n: the draw; row: the weight's place. For evaluations, which have a seed of their own.
    {Normals::kFlatness, false, 2 * kStreamsOfAPurpose},
    // n: 0 for the numbers of the deviations, else 1 + the weight's place; row: the sample. As
    // above.
    {Normals::kSwag, false, 3 * kStreamsOfAPurpose},
    // n: K; row: the member
    {Normals::kNqpLatePhase, true, 1 * kStreamsOfAPurpose},
    {Normals::kNqpDrift, true, 2 * kStreamsOfAPurpose},
    {Normals::kNqpFullEnsemble, true, 3 * kStreamsOfAPurpose},
};

// The second half of the seed of stream number n.
constexpr int64_t NormalStreamNumber(Normals purpose, int64_t n) {
  for (const NormalRange& range : kNormalRanges) {
    if (range.purpose == purpose) return range.first + n;
  }
  return -1;  // not reached: every purpose has a row
}

inline NormalStream MakeNormalStream(Normals purpose, int64_t seed, int64_t n) {
  return MakeNormalStream(seed, NormalStreamNumber(purpose, n));
}

// 2. Uniform numbers of dropout and ShakeDrop: TensorFlow's StatelessRandomUniform with a seed of
// two words. Layers, in the order in which they draw, are distinguished above the bits that count
// minibatches or samples.
//   training:           seed,   t + layer · 2⁴⁰                       t < 2⁴⁰: the minibatch
//   dropout's samples:  ~seed,  part + sample · 2²⁰ + layer · 2⁴⁰     part, sample < 2²⁰
constexpr int64_t kUniformsOfALayer = int64_t{1} << 40;
constexpr int64_t kDropoutSamples = int64_t{1} << 20;

// part: which of the groups of images that are evaluated together.
constexpr std::array<int64_t, 2> DropoutSampleUniforms(int64_t seed, int64_t sample, int64_t part) {
  return {~seed, sample * kDropoutSamples + part};
}
// To be added to the second word.
constexpr int64_t LayerOffset(int64_t layer) { return layer * kUniformsOfALayer; }

// 3. Whole numbers and uniform weights: engines std::mt19937_64, seeded by std::seed_seq of the
// words below, or by one word directly. Engine and seed_seq are the same on every platform; the
// standard's distributions and shuffle are not.
enum class Draws {
  kTextWeights,   // seed (low, high), n: the weight's place                   words: 3
  kImageOrder,    // seed (low, high), 0, n (low, high): the epoch             words: 5
  kAugmentation,  // seed (low, high), 1, n (low, high): the minibatch         words: 5
  kSampledText    // seed alone, as one word of 64 bits; n is not used
};
std::mt19937_64 MakeEngine(Draws purpose, int64_t seed, int64_t n);

}  // namespace late_phase

#endif  // LATE_PHASE_OPTIMIZERS_RANDOM_STREAMS_H_

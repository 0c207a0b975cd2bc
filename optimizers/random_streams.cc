#include "optimizers/random_streams.h"

namespace late_phase {
namespace {

std::mt19937_64 SeedEngine(const std::vector<uint32_t>& words) {
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

}  // namespace

std::mt19937_64 MakeEngine(Draws purpose, int64_t seed, int64_t n) {
  auto low = [](int64_t value) { return static_cast<uint32_t>(value); };
  auto high = [](int64_t value) { return static_cast<uint32_t>(value >> 32); };
  switch (purpose) {
    case Draws::kTextWeights:
      return SeedEngine({low(seed), high(seed), low(n)});
    case Draws::kImageOrder:
      return SeedEngine({low(seed), high(seed), 0, low(n), high(n)});
    case Draws::kAugmentation:
      return SeedEngine({low(seed), high(seed), 1, low(n), high(n)});
    case Draws::kSampledText:
      break;
  }
  return std::mt19937_64(static_cast<uint64_t>(seed));
}

}  // namespace late_phase

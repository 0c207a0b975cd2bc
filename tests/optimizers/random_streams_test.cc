// optimizers/random_streams.h: no two purposes draw the same numbers, and those of training are the
// ones that recorded runs and checkpoints were made with.
#include "optimizers/random_streams.h"

#include <map>
#include <set>
#include <tuple>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

constexpr Draws kDraws[] = {Draws::kTextWeights, Draws::kImageOrder, Draws::kAugmentation,
                            Draws::kSampledText};

TEST(RandomStreams, RangesOfNormalsDoNotOverlap) {
  std::set<Normals> purposes;
  for (const NormalRange& a : kNormalRanges) {
    EXPECT_TRUE(purposes.insert(a.purpose).second) << "two rows of one purpose";
    EXPECT_GE(a.first, 0);
    EXPECT_EQ(NormalStreamNumber(a.purpose, 0), a.first);
    EXPECT_EQ(NormalStreamNumber(a.purpose, kStreamsOfAPurpose - 1),
              a.first + kStreamsOfAPurpose - 1);
    for (const NormalRange& b : kNormalRanges) {
      if (&a == &b || a.nqp != b.nqp) continue;
      EXPECT_TRUE(a.first + kStreamsOfAPurpose <= b.first ||
                  b.first + kStreamsOfAPurpose <= a.first)
          << a.first << " " << b.first;
    }
  }
  // Every one of the enumeration has a row.
  EXPECT_EQ(purposes.size(), static_cast<size_t>(Normals::kNqpFullEnsemble) + 1);
}

// The numbers themselves: of each purpose the first streams and rows, which are those in use, and
// the last ones, which would be the first to run into a neighbour.
TEST(RandomStreams, NormalsOfTwoPurposesDiffer) {
  for (const bool nqp : {false, true}) {
    std::map<std::array<uint32_t, 4>, std::tuple<int64_t, int64_t, uint32_t>> seen;
    for (const NormalRange& range : kNormalRanges) {
      if (range.nqp != nqp) continue;
      for (const int64_t seed : {0, 1, 2, 1000}) {
        for (int64_t i = -20; i < 20; ++i) {
          const int64_t n = i < 0 ? kStreamsOfAPurpose + i : i;
          const NormalStream stream = MakeNormalStream(range.purpose, seed, n);
          for (uint32_t row = 0; row < 20; ++row) {
            const PhiloxWords words = NormalWords(stream, row, 0);
            const std::array<uint32_t, 4> key = {words.word[0], words.word[1], words.word[2],
                                                 words.word[3]};
            const auto [other, fresh] = seen.insert({key, {range.first, n, row}});
            ASSERT_TRUE(fresh) << range.first << " " << n << " " << row << " and "
                               << std::get<0>(other->second) << " " << std::get<1>(other->second)
                               << " " << std::get<2>(other->second);
          }
        }
      }
    }
    EXPECT_EQ(seen.size(), (nqp ? 3u : 4u) * 4 * 40 * 20);
  }
}

TEST(RandomStreams, SeedsOfUniformsDiffer) {
  std::set<std::pair<int64_t, int64_t>> seen;
  size_t count = 0;
  for (const int64_t seed : {0, 1, 2}) {
    for (const int64_t layer : {0, 1, 2, 100}) {
      auto add = [&](int64_t first, int64_t second) {
        seen.insert({first, second + LayerOffset(layer)});
        ++count;
      };
      // Training's: the seed itself and the minibatch, models/images/networks/image_weights.cc.
      for (const int64_t t : {int64_t{0}, int64_t{1}, int64_t{2}, kUniformsOfALayer - 1}) {
        add(seed, t);
      }
      for (const int64_t sample : {int64_t{0}, int64_t{1}, kDropoutSamples - 1}) {
        for (const int64_t part : {int64_t{0}, int64_t{1}, kDropoutSamples - 1}) {
          const auto words = DropoutSampleUniforms(seed, sample, part);
          add(words[0], words[1]);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
}

TEST(RandomStreams, EnginesDiffer) {
  std::set<uint64_t> seen;
  size_t count = 0;
  for (const Draws purpose : kDraws) {
    for (const int64_t seed : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 32}) {
      for (int64_t n = 0; n < (purpose == Draws::kSampledText ? 1 : 50); ++n) {
        seen.insert(MakeEngine(purpose, seed, n)());
        ++count;
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
}

// Numbers of version 0.1.0.
TEST(RandomStreams, TrainingsNumbersStayAsTheyAre) {
  EXPECT_EQ(NormalStreamNumber(Normals::kMemberNoise, 5), 5);
  EXPECT_EQ(NormalStreamNumber(Normals::kInitialWeights, 5), (int64_t{1} << 32) + 5);
  EXPECT_EQ(NormalStreamNumber(Normals::kNqpLatePhase, 5), (int64_t{1} << 32) + 5);
  EXPECT_EQ(NormalStreamNumber(Normals::kNqpDrift, 5), (int64_t{2} << 32) + 5);
  EXPECT_EQ(NormalStreamNumber(Normals::kNqpFullEnsemble, 5), (int64_t{3} << 32) + 5);
  EXPECT_EQ(LayerOffset(3), int64_t{3} << 40);
  const int64_t seed = (int64_t{9} << 32) + 7, n = (int64_t{4} << 32) + 3;
  auto of_words = [](std::initializer_list<uint32_t> words) {
    std::seed_seq sequence(words);
    return std::mt19937_64(sequence);
  };
  EXPECT_EQ(MakeEngine(Draws::kTextWeights, seed, 3), of_words({7, 9, 3}));
  EXPECT_EQ(MakeEngine(Draws::kImageOrder, seed, n), of_words({7, 9, 0, 3, 4}));
  EXPECT_EQ(MakeEngine(Draws::kAugmentation, seed, n), of_words({7, 9, 1, 3, 4}));
  EXPECT_EQ(MakeEngine(Draws::kSampledText, 7, 0), std::mt19937_64(7));
}

}  // namespace
}  // namespace late_phase

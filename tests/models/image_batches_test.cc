// Minibatches of images, against an augmentation written pixel by pixel. Also run under the
// sanitizers.
#include "models/images/image_batches.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

// Label i is on image i, so a label tells which image it is.
LabelledImages NumberedImages(int64_t count, int64_t side, uint64_t seed = 1) {
  LabelledImages images;
  images.count = count;
  images.side = side;
  images.pixels.resize(count * side * side * 3);
  std::mt19937_64 engine(seed);
  for (uint8_t& value : images.pixels) value = static_cast<uint8_t>(engine() % 256);
  images.labels.resize(count);
  std::iota(images.labels.begin(), images.labels.end(), 0);
  return images;
}

// No byte becomes 0.
constexpr ChannelStatistics kStatistics = {{0.491234, 0.482345, 0.446543}, {0.25, 0.24, 0.26}};

struct Place {
  int64_t down, right;  // where the crop begins in the padded image
  bool mirrored;
  bool operator<(const Place& other) const {
    return std::tie(down, right, mirrored) < std::tie(other.down, other.right, other.mirrored);
  }
};

struct Square {
  int64_t y, x;  // its centre
  bool operator<(const Square& other) const { return std::tie(y, x) < std::tie(other.y, other.x); }
};

// Step by step as it is described: normalise, pad, crop, flip, cut out. cutout 0: none.
std::vector<double> Naive(const LabelledImages& images, int64_t image, int64_t pad,
                          const Place& place, int64_t cutout = 0, Square square = {0, 0}) {
  const int64_t S = images.side, P = S + 2 * pad;
  std::vector<double> padded(P * P * 3, 0.0), result(S * S * 3);
  for (int64_t y = 0; y < S; ++y) {
    for (int64_t x = 0; x < S; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const double value = images.pixels[((image * S + y) * S + x) * 3 + c] / 255.0;
        padded[((y + pad) * P + x + pad) * 3 + c] =
            (value - kStatistics.mean[c]) / kStatistics.deviation[c];
      }
    }
  }
  for (int64_t y = 0; y < S; ++y) {
    for (int64_t x = 0; x < S; ++x) {
      // An odd square has its centre in the middle, an even one just after it.
      const int64_t from_y = y - (square.y - cutout / 2), from_x = x - (square.x - cutout / 2);
      const bool cut = from_y >= 0 && from_y < cutout && from_x >= 0 && from_x < cutout;
      const int64_t column = place.mirrored ? S - 1 - x : x;
      for (int64_t c = 0; c < 3; ++c) {
        result[(y * S + x) * 3 + c] =
            cut ? 0 : padded[((y + place.down) * P + column + place.right) * 3 + c];
      }
    }
  }
  return result;
}

template <typename T>
bool Same(const T* filled, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(filled[i] - expected[i]) > 4e-7 * std::abs(expected[i])) return false;
  }
  return true;
}

// Which crop of the image this is; must be one, and only one.
template <typename T>
Place FindPlace(const LabelledImages& images, int64_t image, int64_t pad, const T* filled) {
  std::vector<Place> found;
  for (int64_t down = 0; down <= 2 * pad; ++down) {
    for (int64_t right = 0; right <= 2 * pad; ++right) {
      for (const bool mirrored : {false, true}) {
        const Place place = {down, right, mirrored};
        if (Same(filled, Naive(images, image, pad, place))) found.push_back(place);
      }
    }
  }
  EXPECT_EQ(found.size(), 1u) << "image " << image;
  return found.empty() ? Place() : found[0];
}

template <typename T>
Square FindSquare(const LabelledImages& images, int64_t image, int64_t cutout, const T* filled) {
  std::vector<Square> found;
  for (int64_t y = 0; y < images.side; ++y) {
    for (int64_t x = 0; x < images.side; ++x) {
      if (Same(filled, Naive(images, image, 0, {0, 0, false}, cutout, {y, x}))) {
        found.push_back({y, x});
      }
    }
  }
  EXPECT_EQ(found.size(), 1u) << "image " << image;
  return found.empty() ? Square() : found[0];
}

template <typename T>
struct Minibatch {
  std::vector<T> pixels;
  std::vector<int32_t> labels;
  bool operator==(const Minibatch& other) const {
    return pixels == other.pixels && labels == other.labels;
  }
};

// Exactly as large as promised: the address sanitizer watches the ends.
template <typename T>
Minibatch<T> Filled(const LabelledImages& images, int64_t t, TrainingBatches* batches) {
  const int64_t size = batches->Size(t);
  Minibatch<T> minibatch = {std::vector<T>(size * images.side * images.side * 3, T(-99)),
                            std::vector<int32_t>(size, -1)};
  batches->Fill(t, minibatch.pixels.data(), minibatch.labels.data());
  return minibatch;
}

// All values occur, none much more often than others: 6 standard deviations.
template <typename Value>
void ExpectUniform(const std::map<Value, int64_t>& counts, size_t values) {
  EXPECT_EQ(counts.size(), values);
  int64_t sum = 0;
  for (const auto& [value, count] : counts) sum += count;
  const double mean = static_cast<double>(sum) / static_cast<double>(values);
  for (const auto& [value, count] : counts) EXPECT_NEAR(count, mean, 6 * std::sqrt(mean));
}

template <typename T>
class ImageBatchesTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ImageBatchesTest, Types);

TYPED_TEST(ImageBatchesTest, VariationsAreThoseOfTheNaiveAugmentation) {
  using T = TypeParam;
  constexpr int64_t kPad = 2, kCutout = 3, kSide = 5, kImage = kSide * kSide * 3;
  const LabelledImages images = NumberedImages(30, kSide);
  // One seed: crops and flips of one, squares of the other, both of the third.
  TrainingBatches cropped(images, kStatistics, {kPad, true, 0}, 7, 5);
  TrainingBatches cut(images, kStatistics, {0, false, kCutout}, 7, 5);
  TrainingBatches both(images, kStatistics, {kPad, true, kCutout}, 7, 5);
  std::map<Place, int64_t> places;
  std::map<Square, int64_t> squares;
  for (int64_t t = 0; t < 300; ++t) {
    const Minibatch<T> crops = Filled<T>(images, t, &cropped), cuts = Filled<T>(images, t, &cut),
                       all = Filled<T>(images, t, &both);
    ASSERT_EQ(crops.labels, all.labels);
    ASSERT_EQ(cuts.labels, all.labels);
    for (size_t i = 0; i < all.labels.size(); ++i) {
      const int32_t image = all.labels[i];
      const Place place = FindPlace(images, image, kPad, &crops.pixels[i * kImage]);
      const Square square = FindSquare(images, image, kCutout, &cuts.pixels[i * kImage]);
      ASSERT_TRUE(
          Same(&all.pixels[i * kImage], Naive(images, image, kPad, place, kCutout, square)));
      ++places[place];
      ++squares[square];
    }
  }
  ExpectUniform(places, 5 * 5 * 2);
  ExpectUniform(squares, kSide * kSide);
}

TYPED_TEST(ImageBatchesTest, AtCifarsSize) {
  using T = TypeParam;
  const LabelledImages images = NumberedImages(6, 32);
  TrainingBatches cropped(images, kStatistics, Augmentation(), 6, 1);
  TrainingBatches cut(images, kStatistics, {0, false, 16}, 6, 1);
  const Minibatch<T> crops = Filled<T>(images, 0, &cropped), cuts = Filled<T>(images, 0, &cut);
  for (int64_t i = 0; i < 6; ++i) {
    FindPlace(images, crops.labels[i], 4, &crops.pixels[i * 3072]);
    FindSquare(images, cuts.labels[i], 16, &cuts.pixels[i * 3072]);
  }
}

TYPED_TEST(ImageBatchesTest, EachAugmentationCanBeLeftOut) {
  using T = TypeParam;
  const LabelledImages images = NumberedImages(10, 4);
  const auto places = [&](const Augmentation& augmentation) {
    TrainingBatches batches(images, kStatistics, augmentation, 10, 3);
    std::map<Place, int64_t> found;
    for (int64_t t = 0; t < 60; ++t) {
      const Minibatch<T> minibatch = Filled<T>(images, t, &batches);
      for (int64_t i = 0; i < 10; ++i) {
        ++found[FindPlace(images, minibatch.labels[i], augmentation.pad,
                          &minibatch.pixels[i * 48])];
      }
    }
    return found;
  };
  ExpectUniform(places({0, false, 0}), 1);
  ExpectUniform(places({0, true, 0}), 2);
  ExpectUniform(places({1, false, 0}), 9);
}

TYPED_TEST(ImageBatchesTest, PaddingAndSquaresMayBeLargerThanTheImage) {
  using T = TypeParam;
  const LabelledImages images = NumberedImages(20, 3);
  TrainingBatches padded(images, kStatistics, {7, true, 0}, 20, 3);
  TrainingBatches cut(images, kStatistics, {0, false, 20}, 20, 3);
  for (int64_t t = 0; t < 5; ++t) {
    const Minibatch<T> crops = Filled<T>(images, t, &padded);
    for (int64_t i = 0; i < 20; ++i) {
      int64_t matches = 0;  // many crops are of padding alone
      for (int64_t place = 0; place < 15 * 15 * 2; ++place) {
        matches += Same(&crops.pixels[i * 27], Naive(images, crops.labels[i], 7,
                                                     {place / 30, place / 2 % 15, place % 2 == 1}));
      }
      ASSERT_GE(matches, 1);
    }
    const Minibatch<T> nothing = Filled<T>(images, t, &cut);
    ASSERT_EQ(nothing.pixels, std::vector<T>(20 * 27, T(0)));
  }
}

TYPED_TEST(ImageBatchesTest, AMinibatchDependsOnSeedAndStepAlone) {
  using T = TypeParam;
  const LabelledImages images = NumberedImages(11, 6);
  const Augmentation augmentation = {2, true, 2};
  TrainingBatches ascending(images, kStatistics, augmentation, 4, -7);
  std::vector<Minibatch<T>> expected;
  for (int64_t t = 0; t < 30; ++t) expected.push_back(Filled<T>(images, t, &ascending));
  TrainingBatches descending(images, kStatistics, augmentation, 4, -7);
  for (int64_t t = 29; t >= 0; --t) {
    ASSERT_TRUE(Filled<T>(images, t, &descending) == expected[t]) << t;
    TrainingBatches resumed(images, kStatistics, augmentation, 4, -7);
    ASSERT_TRUE(Filled<T>(images, t, &resumed) == expected[t]) << t;
    ASSERT_TRUE(Filled<T>(images, t, &resumed) == expected[t]) << t;  // and again
  }
  // No two steps and no two seeds are alike, whichever half of the seed differs.
  for (int64_t t = 1; t < 30; ++t) EXPECT_FALSE(expected[t] == expected[t - 1]);
  for (const int64_t seed : {int64_t{7}, int64_t{-8}, int64_t{-7} ^ int64_t{1} << 40}) {
    TrainingBatches other(images, kStatistics, augmentation, 4, seed);
    for (int64_t t = 0; t < 30; ++t) EXPECT_FALSE(Filled<T>(images, t, &other) == expected[t]);
  }
  const int64_t late = int64_t{3} << 40;
  EXPECT_TRUE(Filled<T>(images, late, &ascending) == Filled<T>(images, late, &descending));
  EXPECT_FALSE(Filled<T>(images, late, &ascending) == expected[0]);
}

TEST(TrainingBatchesTest, EpochsArePermutations) {
  const int64_t cases[][2] = {{1, 1}, {1, 5}, {10, 4}, {12, 4}, {13, 4}, {5, 5}, {5, 100}, {9, 1}};
  for (const auto& [count, batch] : cases) {
    SCOPED_TRACE(testing::Message() << count << " " << batch);
    const LabelledImages images = NumberedImages(count, 2);
    TrainingBatches batches(images, kStatistics, Augmentation(), batch, 1);
    const int64_t steps = (count + batch - 1) / batch;
    ASSERT_EQ(batches.steps_per_epoch(), steps);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int32_t> seen;
      for (int64_t t = epoch * steps; t < (epoch + 1) * steps; ++t) {
        const bool last = t + 1 == (epoch + 1) * steps;
        ASSERT_EQ(batches.Size(t), last ? count - (steps - 1) * batch : batch);
        const Minibatch<float> minibatch = Filled<float>(images, t, &batches);
        seen.insert(seen.end(), minibatch.labels.begin(), minibatch.labels.end());
      }
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen, images.labels);
    }
  }
}

TEST(TrainingBatchesTest, AllOrdersOccurEquallyOften) {
  const LabelledImages images = NumberedImages(4, 1);
  TrainingBatches batches(images, kStatistics, Augmentation(), 4, 2);
  std::map<std::vector<int32_t>, int64_t> orders;
  for (int64_t t = 0; t < 4800; ++t) ++orders[Filled<float>(images, t, &batches).labels];
  ExpectUniform(orders, 24);
}

// Worked out from the definitions of seed_seq and mt19937_64: what a seed and a step give must not
// change, so that runs go on, and metrics can be repeated, on other platforms.
TEST(TrainingBatchesTest, RandomNumbersAreTheSameEverywhere) {
  const LabelledImages images = NumberedImages(8, 9);
  TrainingBatches batches(images, kStatistics, Augmentation(), 8, 1);
  const Minibatch<double> minibatch = Filled<double>(images, 3, &batches);
  EXPECT_EQ(minibatch.labels, (std::vector<int32_t>{2, 7, 1, 3, 0, 6, 5, 4}));
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 3; ++i) {
    const Place place = FindPlace(images, minibatch.labels[i], 4, &minibatch.pixels[i * 243]);
    places.insert(places.end(), {place.down, place.right, place.mirrored});
  }
  EXPECT_EQ(places, (std::vector<int64_t>{0, 5, 0, 6, 5, 0, 8, 1, 1}));
}

TYPED_TEST(ImageBatchesTest, FillImagesOnlyNormalises) {
  using T = TypeParam;
  const LabelledImages images = NumberedImages(9, 4);
  for (const auto& [begin, count] : {std::pair(0, 9), std::pair(2, 3), std::pair(8, 1)}) {
    std::vector<T> pixels(count * 48);
    std::vector<int32_t> labels(count);
    FillImages(images, kStatistics, begin, count, pixels.data(), labels.data());
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(labels[i], begin + i);
      EXPECT_TRUE(Same(&pixels[i * 48], Naive(images, begin + i, 0, {0, 0, false})));
    }
  }
}

TEST(StatisticsTest, ComputedByHand) {
  LabelledImages images;
  images.count = 4;
  images.side = 1;
  images.labels = {0, 0, 0, 0};
  images.pixels = {0, 0, 51, 255, 0, 51, 0, 0, 51, 255, 255, 51};
  const ChannelStatistics statistics = ComputeStatistics(images);
  EXPECT_EQ(statistics.mean[0], 0.5);
  EXPECT_EQ(statistics.deviation[0], 0.5);
  EXPECT_EQ(statistics.mean[1], 0.25);
  EXPECT_DOUBLE_EQ(statistics.deviation[1], std::sqrt(3.0) / 4);
  EXPECT_EQ(statistics.mean[2], 0.2);
  EXPECT_EQ(statistics.deviation[2], 0);  // constant: no rounding makes it anything else

  std::vector<double> pixels(12);
  std::vector<int32_t> labels(4);
  FillImages(images, statistics, 0, 4, pixels.data(), labels.data());
  EXPECT_EQ(pixels[0], -1);
  EXPECT_EQ(pixels[3], 1);
  EXPECT_EQ(pixels[2], 0);
}

TEST(StatisticsTest, MakeTheImagesStandard) {
  const LabelledImages images = NumberedImages(50, 8);
  const ChannelStatistics statistics = ComputeStatistics(images);
  std::vector<double> pixels(images.pixels.size());
  std::vector<int32_t> labels(50);
  FillImages(images, statistics, 0, 50, pixels.data(), labels.data());
  for (int c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (size_t i = c; i < pixels.size(); i += 3) {
      sum += pixels[i];
      squares += pixels[i] * pixels[i];
    }
    EXPECT_NEAR(sum / 3200, 0, 1e-14);
    EXPECT_NEAR(squares / 3200, 1, 1e-13);
  }
}

}  // namespace
}  // namespace late_phase

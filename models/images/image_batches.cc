#include "models/images/image_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "optimizers/random_streams.h"

namespace late_phase {
namespace {

// In [0, end), for an end of at most 2^33; probabilities are equal to within 1 in 2^31.
int64_t Below(int64_t end, std::mt19937_64* engine) { return (*engine)() % end; }

// Normalised values of the 256 bytes.
template <typename T>
struct Normalisation {
  explicit Normalisation(const ChannelStatistics& statistics) {
    for (int c = 0; c < 3; ++c) {
      const double deviation = statistics.deviation[c] > 0 ? statistics.deviation[c] : 1;
      for (int byte = 0; byte < 256; ++byte) {
        values[c][byte] = static_cast<T>((byte / 255.0 - statistics.mean[c]) / deviation);
      }
    }
  }

  // from: [count, 3], read in steps of kStep pixels. to: [count, 3], written.
  template <int kStep>
  void Apply(const uint8_t* from, int64_t count, T* to) const {
    for (int64_t x = 0; x < count; ++x, from += kStep * 3, to += 3) {
      to[0] = values[0][from[0]];
      to[1] = values[1][from[1]];
      to[2] = values[2][from[2]];
    }
  }

  T values[3][256];
};

// How one image is augmented.
struct Variation {
  // Every variation takes the same five numbers from the engine.
  Variation(const Augmentation& augmentation, int64_t side, std::mt19937_64* engine) {
    down = Below(2 * augmentation.pad + 1, engine) - augmentation.pad;
    right = Below(2 * augmentation.pad + 1, engine) - augmentation.pad;
    mirrored = Below(2, engine) == 1 && augmentation.flip;
    const int64_t cutout = augmentation.cutout;
    for (auto* range : {&rows, &columns}) {
      const int64_t begin = Below(side, engine) - cutout / 2;
      *range = {std::max<int64_t>(0, begin), std::min(side, begin + cutout)};
    }
  }

  int64_t down, right;                        // where the crop starts in the image without padding
  bool mirrored;                              // the crop
  std::pair<int64_t, int64_t> rows, columns;  // [begin, end) of the cutout, which comes last
};

// from: [side, side, 3]. to: [side, side, 3], written.
template <typename T>
void Vary(const uint8_t* from, int64_t side, const Normalisation<T>& normalisation,
          const Variation& variation, T* to) {
  // Columns [begin, end) of the crop come from the image, the others from the padding.
  const int64_t begin = std::clamp<int64_t>(-variation.right, 0, side);
  const int64_t end = std::clamp<int64_t>(side - variation.right, begin, side);
  const int64_t first = variation.mirrored ? side - end : begin;  // of them in `to`
  for (int64_t y = 0; y < side; ++y, to += side * 3) {
    const int64_t source = y + variation.down;
    if (source < 0 || source >= side || begin == end) {
      std::fill_n(to, side * 3, T(0));
      continue;
    }
    const uint8_t* row = from + source * side * 3;
    std::fill_n(to, first * 3, T(0));
    if (variation.mirrored) {
      normalisation.template Apply<-1>(row + (end - 1 + variation.right) * 3, end - begin,
                                       to + first * 3);
    } else {
      normalisation.template Apply<1>(row + (begin + variation.right) * 3, end - begin,
                                      to + first * 3);
    }
    std::fill(to + (first + end - begin) * 3, to + side * 3, T(0));
    if (y >= variation.rows.first && y < variation.rows.second) {
      std::fill(to + variation.columns.first * 3, to + variation.columns.second * 3, T(0));
    }
  }
}

}  // namespace

ChannelStatistics ComputeStatistics(const ImageView& images) {
  const int64_t pixels = images.count * images.side * images.side;
  int64_t occurrences[3][256] = {};
  const uint8_t* pixel = images.pixels;
  for (int64_t p = 0; p < pixels; ++p, pixel += 3) {
    for (int c = 0; c < 3; ++c) ++occurrences[c][pixel[c]];
  }
  ChannelStatistics statistics;
  for (int c = 0; c < 3; ++c) {
    __int128 sum = 0, squares = 0;
    for (int64_t byte = 0; byte < 256; ++byte) {
      sum += byte * occurrences[c][byte];
      squares += byte * byte * occurrences[c][byte];
    }
    const double scale = 255.0 * pixels;
    statistics.mean[c] = sum / scale;
    statistics.deviation[c] = std::sqrt(static_cast<double>(pixels * squares - sum * sum)) / scale;
  }
  return statistics;
}

template <typename T>
void FillImages(const ImageView& images, const ChannelStatistics& statistics, int64_t begin,
                int64_t count, T* pixels, int32_t* labels) {
  const int64_t plane = images.side * images.side;
  Normalisation<T>(statistics)
      .template Apply<1>(images.pixels + begin * plane * 3, count * plane, pixels);
  std::copy_n(images.labels + begin, count, labels);
}

TrainingBatches::TrainingBatches(const ImageView& images, const ChannelStatistics& statistics,
                                 const Augmentation& augmentation, int64_t batch, int64_t seed)
    : images_(images),
      statistics_(statistics),
      augmentation_(augmentation),
      batch_(batch),
      seed_(seed) {}

int64_t TrainingBatches::Size(int64_t t) const {
  return std::min(batch_, images_.count - t % steps_per_epoch() * batch_);
}

// A Fisher-Yates shuffle.
const std::vector<int64_t>& TrainingBatches::Order(int64_t epoch) {
  if (epoch == epoch_) return order_;
  epoch_ = epoch;
  order_.resize(images_.count);
  std::iota(order_.begin(), order_.end(), 0);
  std::mt19937_64 engine = MakeEngine(Draws::kImageOrder, seed_, epoch);
  for (int64_t left = images_.count; left > 1; --left) {
    std::swap(order_[left - 1], order_[Below(left, &engine)]);
  }
  return order_;
}

std::string TrainingBatches::Check(const Share& share) const {
  std::string complaint = CheckShares(share, "batch", std::min(batch_, images_.count));
  if (!complaint.empty()) return complaint;
  const int64_t last = Size(steps_per_epoch() - 1);
  if (last % share.workers == 0) return "";
  return "an epoch's last minibatch must be a multiple of " + std::to_string(share.workers) +
         " images, the workers, so that all have equal shares; choose `train_images` or `batch` "
         "accordingly. Received: " +
         std::to_string(last) + " of train_images=" + std::to_string(images_.count) +
         " with batch=" + std::to_string(batch_);
}

template <typename T>
void TrainingBatches::Fill(int64_t t, T* pixels, int32_t* labels, const Share& share) {
  const Normalisation<T> normalisation(statistics_);
  const int64_t side = images_.side, image_values = side * side * 3;
  const int64_t* chosen = &Order(t / steps_per_epoch())[t % steps_per_epoch() * batch_];
  std::mt19937_64 engine = MakeEngine(Draws::kAugmentation, seed_, t);
  const int64_t begin = share.Begin(Size(t)), end = begin + share.Size(Size(t));
  for (int64_t i = 0; i < end; ++i) {
    // An image is varied in the same way whoever has it.
    const Variation variation(augmentation_, side, &engine);
    if (i < begin) continue;
    Vary(&images_.pixels[chosen[i] * image_values], side, normalisation, variation, pixels);
    pixels += image_values;
    *labels++ = images_.labels[chosen[i]];
  }
}

template void FillImages(const ImageView&, const ChannelStatistics&, int64_t, int64_t, float*,
                         int32_t*);
template void FillImages(const ImageView&, const ChannelStatistics&, int64_t, int64_t, double*,
                         int32_t*);
template void TrainingBatches::Fill(int64_t, float*, int32_t*, const Share&);
template void TrainingBatches::Fill(int64_t, double*, int32_t*, const Share&);

}  // namespace late_phase

// A text whose characters are bytes, as the enwik8 models read it: the file, its three splits, its
// vocabulary, and the streams that training and evaluation cut it into. No TensorFlow.
//
// A stream is a contiguous piece of text. Streams run side by side, one per row of the batch, in
// chunks of `time` characters, so that a recurrent state can be carried from chunk to chunk.
#ifndef LATE_PHASE_MODELS_TEXT_BYTE_TEXT_H_
#define LATE_PHASE_MODELS_TEXT_BYTE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace late_phase {

// One part of a text; a view.
struct TextSplit {
  const char* name = "";           // "training", "validation", "test"
  const uint8_t* bytes = nullptr;  // [characters]
  int64_t characters = 0;
};

// The distinct bytes of a text in ascending order; a byte's token is its place among them.
class Vocabulary {
 public:
  Vocabulary() : Vocabulary(TextSplit()) {}
  explicit Vocabulary(const TextSplit& text);

  int size() const { return size_; }
  // -1 if the byte is not in the text.
  int32_t Token(uint8_t byte) const { return tokens_[byte]; }
  // REQUIRES: 0 <= token < size().
  uint8_t Byte(int32_t token) const { return bytes_[token]; }

 private:
  int size_ = 0;
  int32_t tokens_[256];
  uint8_t bytes_[256];
};

// How many of a split's first characters are used; 0: all of them.
struct TextLimits {
  int64_t train_characters = 0;
  int64_t validation_characters = 0;
  int64_t test_characters = 0;
};

// A file, mapped into memory: first 90 % training, next 5 % validation, the rest test. Movable;
// the views stay valid as long as some ByteText holds the file. The file must not be shortened
// in the meantime (replacing it with another is harmless).
class ByteText {
 public:
  // Returns an error message, or an empty string; on an error the object is unchanged.
  //
  // The vocabulary is always that of the whole 90 %, even if fewer characters are trained on: a
  // model then has the same size whatever the limit, and its vocabulary covers the other splits. A
  // byte outside it, among the characters that are used, is an error.
  [[nodiscard]] std::string Open(const std::string& path, const TextLimits& limits = {});

  const TextSplit& training() const { return training_; }
  const TextSplit& validation() const { return validation_; }
  const TextSplit& test() const { return test_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Unmap {
    size_t size;
    void operator()(const uint8_t* bytes) const;
  };

  std::unique_ptr<const uint8_t[], Unmap> file_;
  TextSplit training_, validation_, test_;
  Vocabulary vocabulary_;
};

// `batch` streams of equal length L = characters / batch; the remainder at the end is not used.
// The text's file must stay open; the vocabulary is copied.
class TrainingStreams {
 public:
  // Returns an error message, or an empty string.
  [[nodiscard]] std::string Cut(const TextSplit& text, const Vocabulary& vocabulary, int64_t batch,
                                int64_t time);

  // Chunks in an epoch: (L − 1) / time, as every character needs a next one.
  int64_t chunks() const { return chunks_; }

  // tokens: [time, batch], written. labels: [time·batch], written: the next character's token, in
  // the same order. REQUIRES: 0 <= chunk < chunks().
  void Fill(int64_t chunk, int32_t* tokens, int32_t* labels) const {
    Fill(chunk, 0, batch_, tokens, labels);
  }
  // Of streams [begin, begin + count) only. tokens: [time, count]. REQUIRES: they are among the
  // batch.
  void Fill(int64_t chunk, int64_t begin, int64_t count, int32_t* tokens, int32_t* labels) const;

 private:
  TextSplit text_;
  Vocabulary vocabulary_;
  int64_t batch_ = 0, time_ = 0, length_ = 0, chunks_ = 0;
};

// Streams of nearly equal length (the first ones are longer by one) which predict every character
// once, except each stream's first. There are min(batch, characters / (2·time)) of them, at least
// one: each new stream starts without memory, so a small text is cut into fewer.
// The text's file must stay open; the vocabulary is copied.
class EvaluationStreams {
 public:
  // Returns an error message, or an empty string.
  [[nodiscard]] std::string Cut(const TextSplit& text, const Vocabulary& vocabulary, int64_t batch,
                                int64_t time);

  int64_t streams() const { return streams_; }
  int64_t chunks() const { return chunks_; }
  // Characters predicted by all chunks together.
  int64_t predictions() const { return text_.characters - streams_; }
  // Steps of the chunk: `time`, or fewer in the last one. REQUIRES: 0 <= chunk < chunks().
  int64_t Steps(int64_t chunk) const;

  // tokens: [Steps(chunk), streams], written. labels: [Steps(chunk)·streams], written: the next
  // character's token, in the same order. valid: as labels, written: false where a shorter stream
  // has no next character (only in the very last step); its label is then 0, its token
  // still a character. Returns how many are valid. REQUIRES: 0 <= chunk < chunks().
  int64_t Fill(int64_t chunk, int32_t* tokens, int32_t* labels, bool* valid) const;

 private:
  TextSplit text_;
  Vocabulary vocabulary_;
  int64_t time_ = 0, streams_ = 0, chunks_ = 0;
  int64_t shortest_ = 0, longer_ = 0;  // the shortest length; how many streams are longer by one
};

}  // namespace late_phase

#endif  // LATE_PHASE_MODELS_TEXT_BYTE_TEXT_H_

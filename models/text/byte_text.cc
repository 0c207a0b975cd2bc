#include "models/text/byte_text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace late_phase {
namespace {

std::string Received(const std::string& name, int64_t value) {
  return name + "=" + std::to_string(value);
}

// Keeps the first `limit` characters, if that is not 0.
std::string Limit(const std::string& flag, int64_t limit, TextSplit* split) {
  if (limit < 0 || limit > split->characters) {
    return "`" + flag + "` must be in [0, " + std::to_string(split->characters) + "], the " +
           split->name + " part of the text. Received: " + Received(flag, limit);
  }
  if (limit > 0) split->characters = limit;
  return "";
}

std::string CheckTokens(const TextSplit& split, const Vocabulary& vocabulary, const uint8_t* file,
                        const std::string& path) {
  const uint8_t* end = split.bytes + split.characters;
  const uint8_t* stranger =
      std::find_if(split.bytes, end, [&](uint8_t byte) { return vocabulary.Token(byte) < 0; });
  if (stranger == end) return "";
  char byte[8];
  std::snprintf(byte, sizeof(byte), "0x%02x", *stranger);
  return std::string("`data` must have no byte in its ") + split.name +
         " part that its training part lacks. Received: byte " + byte + " at position " +
         std::to_string(stranger - split.bytes) + " of the " + split.name + " part (" +
         std::to_string(stranger - file) + " of the file), data=" + path;
}

std::string CheckBatch(int64_t batch, int64_t time) {
  if (batch >= 1 && time >= 1) return "";
  return "`batch` and `sequence` must be integers >= 1. Received: " + Received("batch", batch) +
         ", " + Received("sequence", time);
}

}  // namespace

Vocabulary::Vocabulary(const TextSplit& text) {
  // Only stores of constants: nothing waits for anything, one byte per cycle.
  bool seen[256] = {};
  for (int64_t i = 0; i < text.characters; ++i) seen[text.bytes[i]] = true;
  for (int byte = 0; byte < 256; ++byte) {
    tokens_[byte] = seen[byte] ? size_ : -1;
    if (seen[byte]) bytes_[size_++] = static_cast<uint8_t>(byte);
  }
}

void ByteText::Unmap::operator()(const uint8_t* bytes) const {
  munmap(const_cast<uint8_t*>(bytes), size);
}

std::string ByteText::Open(const std::string& path, const TextLimits& limits) {
  const auto refuse = [&](const std::string& what) {
    return "`data` must be a file of text that can be read. Received: data=" + path + " (" + what +
           ")";
  };
  // Non-blocking: a named pipe is refused below instead of being waited for.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return refuse(std::strerror(errno));
  struct stat status = {};
  const bool known = fstat(descriptor, &status) == 0;
  const int64_t size = status.st_size;
  void* mapped = MAP_FAILED;
  std::string complaint;
  if (!known) {
    complaint = std::strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    complaint = S_ISDIR(status.st_mode) ? "a folder" : "not a file";
  } else if (size == 0) {
    complaint = "empty";
  } else {
    // All pages at once: they are all read anyway, and training then has no page faults.
    mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, descriptor, 0);
    if (mapped == MAP_FAILED) complaint = std::strerror(errno);
  }
  close(descriptor);
  if (!complaint.empty()) return refuse(complaint);

  ByteText text;
  const uint8_t* bytes = static_cast<const uint8_t*>(mapped);
  text.file_ = std::unique_ptr<const uint8_t[], Unmap>(bytes, Unmap{static_cast<size_t>(size)});
  const int64_t validation = size / 10 * 9 + size % 10 * 9 / 10;  // size · 9/10, rounded down
  const int64_t test = size / 20 * 19 + size % 20 * 19 / 20;
  text.training_ = {"training", bytes, validation};
  text.validation_ = {"validation", bytes + validation, test - validation};
  text.test_ = {"test", bytes + test, size - test};
  text.vocabulary_ = Vocabulary(text.training_);  // before the limit, see the header

  complaint = Limit("train_characters", limits.train_characters, &text.training_);
  if (complaint.empty()) {
    complaint = Limit("validation_characters", limits.validation_characters, &text.validation_);
  }
  if (complaint.empty()) complaint = Limit("test_characters", limits.test_characters, &text.test_);
  for (const TextSplit& split : {text.validation_, text.test_}) {
    if (complaint.empty()) complaint = CheckTokens(split, text.vocabulary_, bytes, path);
  }
  if (complaint.empty()) *this = std::move(text);
  return complaint;
}

std::string TrainingStreams::Cut(const TextSplit& text, const Vocabulary& vocabulary, int64_t batch,
                                 int64_t time) {
  if (std::string complaint = CheckBatch(batch, time); !complaint.empty()) return complaint;
  const int64_t length = text.characters / batch;
  if ((length - 1) / time < 1) {
    return std::string("the ") + text.name +
           " text must give each of `batch` streams at least `sequence` + 1 characters. "
           "Received: " +
           Received("characters", text.characters) + ", " + Received("batch", batch) + ", " +
           Received("sequence", time);
  }
  text_ = text;
  vocabulary_ = vocabulary;
  batch_ = batch;
  time_ = time;
  length_ = length;
  chunks_ = (length - 1) / time;
  return "";
}

void TrainingStreams::Fill(int64_t chunk, int64_t begin, int64_t count, int32_t* tokens,
                           int32_t* labels) const {
  const uint8_t* start = text_.bytes + chunk * time_;
  for (int64_t t = 0; t < time_; ++t) {
    for (int64_t stream = begin; stream < begin + count; ++stream) {
      const uint8_t* character = start + stream * length_ + t;
      *tokens++ = vocabulary_.Token(character[0]);
      *labels++ = vocabulary_.Token(character[1]);
    }
  }
}

std::string EvaluationStreams::Cut(const TextSplit& text, const Vocabulary& vocabulary,
                                   int64_t batch, int64_t time) {
  if (std::string complaint = CheckBatch(batch, time); !complaint.empty()) return complaint;
  if (text.characters < 2) {
    return std::string("the ") + text.name +
           " text must have at least 2 characters, one to predict the other from. Received: " +
           Received("characters", text.characters);
  }
  text_ = text;
  vocabulary_ = vocabulary;
  time_ = time;
  streams_ = std::min(batch, std::max<int64_t>(1, text.characters / 2 / time));
  shortest_ = text.characters / streams_;
  longer_ = text.characters % streams_;
  const int64_t longest = shortest_ + (longer_ > 0);
  chunks_ = (longest - 2) / time + 1;  // longest - 1 predictions, rounded up
  return "";
}

int64_t EvaluationStreams::Steps(int64_t chunk) const {
  const int64_t longest = shortest_ + (longer_ > 0);
  return std::min(time_, longest - 1 - chunk * time_);
}

int64_t EvaluationStreams::Fill(int64_t chunk, int32_t* tokens, int32_t* labels,
                                bool* valid) const {
  const int64_t steps = Steps(chunk);
  int64_t count = 0;
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t place = chunk * time_ + t;  // in the stream
    for (int64_t stream = 0; stream < streams_; ++stream) {
      const uint8_t* character =
          text_.bytes + stream * shortest_ + std::min(stream, longer_) + place;
      const bool has_next = place + 1 < shortest_ + (stream < longer_);
      *tokens++ = vocabulary_.Token(character[0]);
      *labels++ = has_next ? vocabulary_.Token(character[1]) : 0;
      *valid++ = has_next;
      count += has_next;
    }
  }
  return count;
}

}  // namespace late_phase

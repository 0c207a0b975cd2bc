// The text's splits, vocabulary and streams, on generated files. Also run under the sanitizers.
#include "models/text/byte_text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace late_phase {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<ByteText> && std::is_move_assignable_v<ByteText>);

// A file for the time of a test.
class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_(testing::TempDir() + "text-" + std::to_string(getpid())) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TextFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `characters` bytes of which no two neighbours, and hardly two at a short distance, are the same.
std::string Varied(int64_t characters) {
  std::string text(characters, '\0');
  for (int64_t i = 0; i < characters; ++i) {
    text[i] = static_cast<char>((i * 37 + i * i / 3 + i / 256) % 251);
  }
  return text;
}

TextSplit Split(const std::string& text) {
  return {"training", reinterpret_cast<const uint8_t*>(text.data()),
          static_cast<int64_t>(text.size())};
}

// Every byte, so that its token is itself.
Vocabulary AllBytes() {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  return Vocabulary(Split(all));
}

TEST(VocabularyTest, IsTheBytesInAscendingOrder) {
  const std::string text(
      "b\xff"
      "a\0ab",
      6);
  const Vocabulary vocabulary(Split(text));
  ASSERT_EQ(vocabulary.size(), 4);
  const std::vector<uint8_t> bytes = {0, 'a', 'b', 0xff};
  for (int token = 0; token < 4; ++token) {
    EXPECT_EQ(vocabulary.Byte(token), bytes[token]);
    EXPECT_EQ(vocabulary.Token(bytes[token]), token);
  }
  EXPECT_EQ(vocabulary.Token('c'), -1);
  EXPECT_EQ(Vocabulary().size(), 0);
  EXPECT_EQ(Vocabulary().Token(0), -1);
  EXPECT_EQ(AllBytes().size(), 256);
}

TEST(ByteTextTest, SplitsBySize) {
  // A tenth, a twentieth, rounded down: positions at which the next split begins.
  const int64_t cases[][3] = {{1, 0, 0}, {2, 1, 1}, {19, 17, 18}, {39, 35, 37}, {1000, 900, 950}};
  for (const auto& [size, validation, test] : cases) {
    const std::string content(size, 'x');
    const TextFile file(content);
    ByteText text;
    const std::string complaint = text.Open(file.path());
    if (validation == 0) {  // one character, and that in the test split: it has no token
      EXPECT_THAT(complaint, HasSubstr("byte 0x78 at position 0 of the test part"));
      continue;
    }
    ASSERT_EQ(complaint, "") << "size=" << size;
    EXPECT_EQ(text.training().characters, validation);
    EXPECT_EQ(text.validation().characters, test - validation);
    EXPECT_EQ(text.test().characters, size - test);
    EXPECT_EQ(text.validation().bytes, text.training().bytes + validation);
    EXPECT_EQ(text.test().bytes, text.training().bytes + test);
  }
}

TEST(ByteTextTest, SplitsHundredMillionInto90And5And5) {
  const TextFile file("");
  ASSERT_EQ(truncate(file.path().c_str(), 100000000), 0);  // takes no room on the disk
  ByteText text;
  ASSERT_EQ(text.Open(file.path()), "");
  EXPECT_EQ(text.training().characters, 90000000);
  EXPECT_EQ(text.validation().characters, 5000000);
  EXPECT_EQ(text.test().characters, 5000000);
}

TEST(ByteTextTest, HoldsTheFilesBytesAlsoWhenMovedAndReplaced) {
  const std::string content = Varied(10000);
  const TextFile file(content);
  ByteText text;
  ASSERT_EQ(text.Open(file.path()), "");
  ByteText moved = std::move(text);
  unlink(file.path().c_str());
  EXPECT_EQ(std::string(moved.training().bytes, moved.training().bytes + 10000), content);
  EXPECT_STREQ(moved.training().name, "training");
  EXPECT_STREQ(moved.validation().name, "validation");
  EXPECT_STREQ(moved.test().name, "test");
  // A refused file leaves the old one in place.
  EXPECT_NE(moved.Open(file.path()), "");
  EXPECT_EQ(moved.training().bytes[9], static_cast<uint8_t>(content[9]));
}

TEST(ByteTextTest, LimitsKeepTheFirstCharactersAndTheWholeVocabulary) {
  std::string content(1000, 'a');
  content[899] = 'z';  // the last character of the training split
  content[900] = 'z';
  content[950] = 'z';
  const TextFile file(content);
  ByteText text;
  ASSERT_EQ(text.Open(file.path(), {100, 20, 1}), "");
  EXPECT_EQ(text.training().characters, 100);
  EXPECT_EQ(text.validation().characters, 20);
  EXPECT_EQ(text.test().characters, 1);
  EXPECT_EQ(text.validation().bytes, text.training().bytes + 900);
  EXPECT_EQ(text.test().bytes, text.training().bytes + 950);
  EXPECT_EQ(text.vocabulary().size(), 2);
  EXPECT_EQ(text.vocabulary().Token('z'), 1);

  ASSERT_EQ(text.Open(file.path(), {900, 50, 50}), "");
  EXPECT_EQ(text.Open(file.path(), {901, 0, 0}),
            "`train_characters` must be in [0, 900], the training part of the text. Received: "
            "train_characters=901");
  EXPECT_THAT(text.Open(file.path(), {0, 51, 0}), HasSubstr("Received: validation_characters=51"));
  EXPECT_THAT(text.Open(file.path(), {0, 0, 51}), HasSubstr("Received: test_characters=51"));
  EXPECT_THAT(text.Open(file.path(), {-1, 0, 0}), HasSubstr("Received: train_characters=-1"));
}

TEST(ByteTextTest, BytesOutsideTheVocabularyAreRefusedWhereTheyAreUsed) {
  std::string content(1000, 'a');
  content[930] = '\xfe';
  content[999] = 'q';
  const TextFile file(content);
  ByteText text;
  EXPECT_EQ(text.Open(file.path()),
            "`data` must have no byte in its validation part that its training part lacks. "
            "Received: byte 0xfe at position 30 of the validation part (930 of the file), data=" +
                file.path());
  EXPECT_THAT(text.Open(file.path(), {0, 31, 0}), HasSubstr("byte 0xfe at position 30"));
  EXPECT_THAT(text.Open(file.path(), {0, 30, 0}),
              HasSubstr("byte 0x71 at position 49 of the test part (999 of the file)"));
  EXPECT_EQ(text.Open(file.path(), {0, 30, 49}), "");
}

TEST(ByteTextTest, WhatIsNoTextIsRefused) {
  ByteText text;
  EXPECT_EQ(text.Open("/nowhere/text"),
            "`data` must be a file of text that can be read. Received: data=/nowhere/text (No such "
            "file or directory)");
  EXPECT_THAT(text.Open(testing::TempDir()), HasSubstr("(a folder)"));
  EXPECT_THAT(text.Open("/dev/zero"), HasSubstr("(not a file)"));
  const TextFile empty("");
  EXPECT_THAT(text.Open(empty.path()), HasSubstr("data=" + empty.path() + " (empty)"));
  unlink(empty.path().c_str());
  ASSERT_EQ(mkfifo(empty.path().c_str(), 0600), 0);
  EXPECT_THAT(text.Open(empty.path()), HasSubstr("(not a file)"));
}

TEST(TrainingStreamsTest, CutsThePapersEpochInto7031Chunks) {
  TrainingStreams streams;
  ASSERT_EQ(streams.Cut({"training", nullptr, 90000000}, Vocabulary(), 128, 100), "");
  EXPECT_EQ(streams.chunks(), 7031);
}

TEST(TrainingStreamsTest, EachStreamIsContiguousAndLabelsAreTheNextCharacters) {
  const int64_t cases[][3] = {{2, 1, 1}, {1000, 1, 7}, {1000, 7, 5}, {1003, 10, 9}, {101, 1, 100}};
  for (const auto& [characters, batch, time] : cases) {
    SCOPED_TRACE(testing::Message() << characters << " " << batch << " " << time);
    const std::string text = Varied(characters);
    const int64_t length = characters / batch;
    TrainingStreams streams;
    ASSERT_EQ(streams.Cut(Split(text), AllBytes(), batch, time), "");
    ASSERT_EQ(streams.chunks(), (length - 1) / time);
    // Exactly as large as promised: the address sanitizer watches the ends.
    std::vector<int32_t> tokens(time * batch), labels(time * batch);
    for (int64_t chunk = 0; chunk < streams.chunks(); ++chunk) {
      streams.Fill(chunk, tokens.data(), labels.data());
      for (int64_t t = 0; t < time; ++t) {
        for (int64_t n = 0; n < batch; ++n) {
          const int64_t position = n * length + chunk * time + t;
          ASSERT_EQ(tokens[t * batch + n], static_cast<uint8_t>(text[position]));
          ASSERT_EQ(labels[t * batch + n], static_cast<uint8_t>(text[position + 1]));
        }
      }
    }
  }
}

TEST(TrainingStreamsTest, TokensAreTheVocabularys) {
  const std::string text = "zazaz";
  TrainingStreams streams;
  ASSERT_EQ(streams.Cut(Split(text), Vocabulary(Split(text)), 1, 4), "");
  std::vector<int32_t> tokens(4), labels(4);
  streams.Fill(0, tokens.data(), labels.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 0, 1, 0}));
  EXPECT_EQ(labels, (std::vector<int32_t>{0, 1, 0, 1}));
}

TEST(TrainingStreamsTest, TooShortATextIsRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::string text = Varied(1000);
  TrainingStreams streams;
  EXPECT_EQ(
      streams.Cut(Split(text), AllBytes(), 10, 100),
      "the training text must give each of `batch` streams at least `sequence` + 1 characters. "
      "Received: characters=1000, batch=10, sequence=100");
  EXPECT_EQ(streams.Cut(Split(text), AllBytes(), 10, 99), "");
  EXPECT_THAT(streams.Cut(Split(text), AllBytes(), 0, 5),
              HasSubstr("Received: batch=0, sequence=5"));
  EXPECT_THAT(streams.Cut(Split(text), AllBytes(), 5, -1),
              HasSubstr("Received: batch=5, sequence=-1"));
  for (const auto& [batch, time] : {std::pair(kMost, int64_t{1}), std::pair(int64_t{1}, kMost)}) {
    EXPECT_THAT(streams.Cut(Split(text), AllBytes(), batch, time), HasSubstr("Received: "));
  }
}

TEST(EvaluationStreamsTest, PredictsEveryCharacterOnceButEachStreamsFirst) {
  for (int64_t characters : {2, 3, 10, 99, 100, 101, 1000, 1013}) {
    for (int64_t batch : {1, 2, 3, 10, 128}) {
      for (int64_t time : {1, 2, 7, 100, 5000}) {
        SCOPED_TRACE(testing::Message() << characters << " " << batch << " " << time);
        const std::string text = Varied(characters);
        EvaluationStreams streams;
        ASSERT_EQ(streams.Cut(Split(text), AllBytes(), batch, time), "");
        const int64_t S = streams.streams();
        ASSERT_EQ(S, std::min(batch, std::max<int64_t>(1, characters / (2 * time))));
        // Where each stream begins: the first ones are one longer.
        std::vector<int64_t> starts = {0};
        for (int64_t s = 0; s < S; ++s) {
          starts.push_back(starts[s] + characters / S + (s < characters % S));
        }
        ASSERT_EQ(starts[S], characters);

        std::vector<int> predicted(characters);
        int64_t count = 0;
        for (int64_t chunk = 0; chunk < streams.chunks(); ++chunk) {
          const int64_t steps = streams.Steps(chunk);
          ASSERT_GE(steps, 1);
          ASSERT_LE(steps, time);
          if (chunk + 1 < streams.chunks()) {
            ASSERT_EQ(steps, time);
          }
          std::vector<int32_t> tokens(steps * S, -1), labels(steps * S, -1);
          std::vector<uint8_t> room(steps * S, 2);
          bool* valid = reinterpret_cast<bool*>(room.data());
          const int64_t reported = streams.Fill(chunk, tokens.data(), labels.data(), valid);
          int64_t found = 0;
          for (int64_t t = 0; t < steps; ++t) {
            for (int64_t s = 0; s < S; ++s) {
              const int64_t i = t * S + s, position = starts[s] + chunk * time + t;
              ASSERT_LT(position, starts[s + 1]);
              ASSERT_EQ(tokens[i], static_cast<uint8_t>(text[position]));
              ASSERT_EQ(valid[i], position + 1 < starts[s + 1]);
              if (valid[i]) {
                ASSERT_EQ(labels[i], static_cast<uint8_t>(text[position + 1]));
                ++predicted[position + 1];
                ++found;
              } else {
                ASSERT_EQ(labels[i], 0);
                ASSERT_TRUE(chunk + 1 == streams.chunks() && t + 1 == steps);
              }
            }
          }
          ASSERT_EQ(reported, found);
          count += found;
        }
        ASSERT_EQ(count, streams.predictions());
        ASSERT_EQ(count, characters - S);
        for (int64_t s = 0; s < S; ++s) ++predicted[starts[s]];  // from 0
        for (int64_t i = 0; i < characters; ++i) ASSERT_EQ(predicted[i], 1) << i;
      }
    }
  }
}

TEST(EvaluationStreamsTest, BadSizesAreRefused) {
  EvaluationStreams streams;
  const std::string text = "a";
  EXPECT_EQ(streams.Cut({"test", Split(text).bytes, 1}, AllBytes(), 4, 5),
            "the test text must have at least 2 characters, one to predict the other from. "
            "Received: characters=1");
  EXPECT_THAT(streams.Cut({"test", nullptr, 0}, AllBytes(), 4, 5), HasSubstr("characters=0"));
  EXPECT_THAT(streams.Cut(Split(text), AllBytes(), 0, 5),
              HasSubstr("Received: batch=0, sequence=5"));
  const std::string two = "ab";
  EXPECT_EQ(streams.Cut(Split(two), AllBytes(), 1, std::numeric_limits<int64_t>::max()), "");
  EXPECT_EQ(streams.chunks(), 1);
  EXPECT_EQ(streams.Steps(0), 1);
}

}  // namespace
}  // namespace late_phase

// A text to train on: its three parts, and the bytes that occur in it.
#include "models/text/byte_text.h"
#include "tests/campaign/bytes/parser.h"

namespace late_phase {

std::vector<std::string> GoodInputs() {
  std::string all;
  for (int i = 0; i < 400; ++i) all += static_cast<char>(i * 7);
  return {std::string(200, 'a'), all + all, "abcabcabcabcabcabcabcabcabcabcabcabca"};
}

void Parse(const std::string& bytes) {
  const std::string path = WriteFile("text", bytes);
  ByteText text;
  const std::string complaint = text.Open(path);
  if (!complaint.empty()) {
    MustName(complaint, path);
    Must(text.training().characters == 0, "a refusal leaves the text");
    ++outcomes.refused;
    return;
  }
  ++outcomes.accepted;
  const TextSplit parts[] = {text.training(), text.validation(), text.test()};
  std::string joined;
  for (const TextSplit& part : parts) {
    joined.append(reinterpret_cast<const char*>(part.bytes), static_cast<size_t>(part.characters));
    for (int64_t i = 0; i < part.characters; ++i) {
      const int32_t token = text.vocabulary().Token(part.bytes[i]);
      Must(token >= 0 && token < text.vocabulary().size(), "every byte has a token");
      Must(text.vocabulary().Byte(token) == part.bytes[i], "a token is its byte");
    }
  }
  Must(joined == bytes, "the parts are the text");
}

}  // namespace late_phase

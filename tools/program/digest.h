// A short text that differs if data differ, by which workers recognise that they have the same.
#ifndef LATE_PHASE_TOOLS_PROGRAM_DIGEST_H_
#define LATE_PHASE_TOOLS_PROGRAM_DIGEST_H_

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace late_phase {

// FNV-1a, of words of 8 bytes. Finds accidents, not forgeries.
class Digest {
 public:
  void Add(const uint8_t* bytes, int64_t count) {
    AddWord(static_cast<uint64_t>(count));
    for (int64_t i = 0; i < count; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, count - i < 8 ? count - i : 8);
      AddWord(word);
    }
  }

  std::string Text() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  void AddWord(uint64_t word) { state_ = (state_ ^ word) * 0x100000001b3; }

  uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_DIGEST_H_

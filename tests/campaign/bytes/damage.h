// Damage as disks, editors and copies do it.
#ifndef LATE_PHASE_TESTS_CAMPAIGN_BYTES_DAMAGE_H_
#define LATE_PHASE_TESTS_CAMPAIGN_BYTES_DAMAGE_H_

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>

namespace late_phase {

// One to four times: a bit or a byte changed, a number set to an extreme, bytes lost, repeated,
// put in or cut off.
class Damage {
 public:
  explicit Damage(uint64_t seed) : engine_(seed) {}

  std::string To(std::string bytes) {
    for (size_t times = 1 + Below(4); times > 0; --times) Once(&bytes);
    return bytes;
  }

 private:
  size_t Below(size_t limit) { return limit == 0 ? 0 : engine_() % limit; }

  void Once(std::string* bytes) {
    const size_t at = Below(bytes->size()), some = Below(std::min<size_t>(bytes->size() - at, 64));
    if (bytes->empty()) return bytes->assign(1 + Below(8), static_cast<char>(Below(256))), void();
    switch (Below(7)) {
      case 0:
        (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << Below(8)));
        break;
      case 1:
        (*bytes)[at] = static_cast<char>(Below(256));
        break;
      case 2:
        bytes->replace(at, Below(4), kExtremes[Below(std::size(kExtremes))]);
        break;
      case 3:
        bytes->erase(at, some);
        break;
      case 4:
        bytes->insert(at, bytes->substr(Below(bytes->size()), some));
        break;
      case 5:
        bytes->insert(at, some, static_cast<char>(Below(256)));
        break;
      default:
        bytes->resize(at);
    }
  }

  static constexpr const char* kExtremes[] = {"-1",
                                              "0",
                                              "99999999999",
                                              "9223372036854775807",
                                              "18446744073709551615",
                                              "1e999",
                                              "nan",
                                              "[[[",
                                              "}",
                                              "\"",
                                              "\xff\xff\xff\xff",
                                              "\xff\x7f",
                                              "\x80",
                                              "\n"};

  std::mt19937_64 engine_;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TESTS_CAMPAIGN_BYTES_DAMAGE_H_

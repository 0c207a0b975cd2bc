#include "optimizers/number_text.h"

#include <cctype>
#include <charconv>

namespace late_phase {
namespace {

constexpr int kSixDigits = 6, kEveryDigit = 17;

// Like printf's %g, whatever the locale.
std::string WithDigits(double value, int digits) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::general, digits).ptr;
  return std::string(text, end);
}

}  // namespace

std::string NumberText(double value) {
  for (int digits = kSixDigits; digits < kEveryDigit; ++digits) {
    const std::string text = WithDigits(value, digits);
    double read = 0;
    std::from_chars(text.data(), text.data() + text.size(), read);
    if (read == value) return text;
  }
  return WithDigits(value, kEveryDigit);
}

std::string InSixDigits(const std::string& text) {
  std::string rounded;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    double value = 0;
    const char* after = at;
    // A sign belongs to the text before it: %g prints the same digits with and without.
    if (std::isdigit(static_cast<unsigned char>(*at))) {
      after = std::from_chars(at, end, value).ptr;
    }
    rounded += after > at ? WithDigits(value, kSixDigits) : std::string(1, *at);
    at = after > at ? after : at + 1;
  }
  return rounded;
}

}  // namespace late_phase

#include "tools/program/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace late_phase {
namespace {

constexpr double kRewrite = 0.1;  // seconds between two texts on a terminal

// As much of the text as fits into one row: a text that wraps cannot be rewritten in place.
std::string Fitting(const std::string& text, int stream) {
  winsize size{};
  if (ioctl(stream, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text;
  size_t columns = 0, i = 0;
  for (; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;  // a UTF-8 character
    if (begins && ++columns >= size.ws_col) break;
  }
  return text.substr(0, i);
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace

ProgressLine::ProgressLine(double interval, std::FILE* stream)
    : interval_(interval), stream_(stream), terminal_(isatty(fileno(stream))) {}

double ProgressLine::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgressLine::Show(const std::string& text, double done) {
  const double now = Seconds();
  // Fractions are sums that rounding may leave a little short.
  const int tenths = static_cast<int>(done * 10 + 1e-6);
  const bool last = tenths >= 10 && !complete_;
  const bool due = terminal_ ? !open_ || now - shown_at_ >= kRewrite
                             : tenths > tenths_ || now - shown_at_ >= interval_;
  if (!due && !last) return;
  complete_ = complete_ || last;
  shown_at_ = now;
  tenths_ = std::max(tenths_, tenths);
  if (terminal_) {
    std::fprintf(stream_, "\r%s\033[K", Fitting(text, fileno(stream_)).c_str());
  } else {
    std::fprintf(stream_, "%s\n", text.c_str());
  }
  std::fflush(stream_);
  open_ = terminal_;
}

void ProgressLine::Clear() {
  if (!open_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  open_ = false;
}

void ProgressLine::End() {
  if (!open_) return;
  std::fputs("\n", stream_);
  std::fflush(stream_);
  open_ = false;
}

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds)) return "unknown time";
  const double whole = std::max(0.0, std::round(seconds));
  if (whole < 60) return Format("%.0f s", whole);
  const double minutes = std::round(whole / 60);
  if (minutes < 60) return Format("%.0f min", minutes);
  return Format("%.0f h ", std::floor(minutes / 60)) + Format("%.0f min", std::fmod(minutes, 60));
}

std::string CountText(double count) {
  const char* unit = "";
  // 999.5 in three digits is 1.00k.
  for (const char* next : {"k", "M", "G", "T"}) {
    if (std::abs(count) < 999.5) break;
    count /= 1000;
    unit = next;
  }
  const double size = std::abs(count);
  const char* format = *unit == 0 || size >= 99.95 ? "%.0f" : size >= 9.995 ? "%.1f" : "%.2f";
  return Format(format, count) + unit;
}

}  // namespace late_phase

// The progress line in a log and on a terminal, and the texts of durations and counts.
#include "tools/program/progress_line.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace late_phase {
namespace {

std::string Contents(std::FILE* file) {
  if (file == nullptr) return "no file";
  std::string text(static_cast<size_t>(std::ftell(file)), 0);
  EXPECT_EQ(std::fseek(file, 0, SEEK_SET), 0);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  return text;
}

TEST(ProgressLine, LogHasALinePerTenth) {
  std::FILE* file = std::tmpfile();
  {
    ProgressLine line(1e9, file);
    for (int i = 0; i <= 100; ++i) line.Show(std::to_string(i), i / 100.0);
    line.Show("again", 1);
    line.Clear();
  }
  EXPECT_EQ(Contents(file), "10\n20\n30\n40\n50\n60\n70\n80\n90\n100\n");
  std::fclose(file);
}

TEST(ProgressLine, LogHasALinePerInterval) {
  std::FILE* file = std::tmpfile();
  ProgressLine line(0.05, file);
  line.Show("early", 0.01);
  while (line.Seconds() < 0.06) usleep(1000);
  line.Show("late", 0.02);
  line.Show("at once", 0.03);
  EXPECT_EQ(Contents(file), "late\n");
  std::fclose(file);
}

// A terminal of ten columns that remembers what was written.
class Terminal {
 public:
  Terminal() : outside_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_TRUE(grantpt(outside_) == 0 && unlockpt(outside_) == 0);
    inside_ = std::fopen(ptsname(outside_), "w");
    winsize size{};
    size.ws_col = 10;
    EXPECT_EQ(ioctl(fileno(inside_), TIOCSWINSZ, &size), 0);
  }
  ~Terminal() {
    std::fclose(inside_);
    close(outside_);
  }
  std::FILE* stream() const { return inside_; }
  std::string Read() const {
    char buffer[256];
    const ssize_t count = read(outside_, buffer, sizeof(buffer));
    return std::string(buffer, static_cast<size_t>(count < 0 ? 0 : count));
  }

 private:
  const int outside_;
  std::FILE* inside_;
};

TEST(ProgressLine, TerminalRewritesInPlaceAndCutsWhatWouldWrap) {
  const Terminal terminal;
  ProgressLine line(1e9, terminal.stream());
  line.Show("one", 0.1);
  EXPECT_EQ(terminal.Read(), "\rone\033[K");
  line.Show("too soon", 0.5);
  line.Show("0123456\u03b8\u03b8\u03b8", 1);  // the end is shown however soon
  EXPECT_EQ(terminal.Read(), "\r0123456\u03b8\u03b8\033[K");
  line.Clear();
  EXPECT_EQ(terminal.Read(), "\r\033[K");
  line.Show("back", 1);
  EXPECT_EQ(terminal.Read(), "\rback\033[K");
  line.End();
  line.End();
  EXPECT_EQ(terminal.Read(), "\r\n");
}

TEST(ProgressLine, DurationsReadWell) {
  EXPECT_EQ(DurationText(-1), "0 s");
  EXPECT_EQ(DurationText(45.4), "45 s");
  EXPECT_EQ(DurationText(59.6), "1 min");
  EXPECT_EQ(DurationText(12 * 60 + 29), "12 min");
  EXPECT_EQ(DurationText(3599), "1 h 0 min");
  EXPECT_EQ(DurationText(2 * 3600 + 13 * 60), "2 h 13 min");
  EXPECT_EQ(DurationText(200 * 3600), "200 h 0 min");
  EXPECT_EQ(DurationText(HUGE_VAL), "unknown time");
}

TEST(ProgressLine, CountsHaveThreeDigits) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999.4), "999");
  EXPECT_EQ(CountText(999.6), "1.00k");
  EXPECT_EQ(CountText(9996), "10.0k");
  EXPECT_EQ(CountText(45123), "45.1k");
  EXPECT_EQ(CountText(451230), "451k");
  EXPECT_EQ(CountText(1.2e6), "1.20M");
  EXPECT_EQ(CountText(36.5e9), "36.5G");
}

}  // namespace
}  // namespace late_phase

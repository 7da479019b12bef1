#include "support/terminal_line.h"

#include <gtest/gtest.h>

#include <string>

namespace gptc {
namespace {

using std::chrono::milliseconds;

/// What a line writes into a file.
struct TerminalLines : ::testing::Test {
  ~TerminalLines() override { std::fclose(file); }
  /// What was written since the last call.
  std::string take() {
    std::string text(size_t(std::ftell(file) - at), 0);
    std::fseek(file, at, SEEK_SET);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    std::fseek(file, 0, SEEK_END);
    at = std::ftell(file);
    return text;
  }
  std::FILE *const file = std::tmpfile();
  long at = 0;
  const TerminalLine::Clock::time_point start{};
};

TEST_F(TerminalLines, AreWrittenOverFiveTimesASecond) {
  TerminalLine line(file, true);
  line.show("one", start);
  EXPECT_EQ(take(), "\r\033[Kone");
  EXPECT_FALSE(line.isDue(start + milliseconds(199)));
  line.show("two", start + milliseconds(199));
  EXPECT_EQ(take(), "");
  EXPECT_TRUE(line.isDue(start + milliseconds(200)));
  line.show("three", start + milliseconds(200));
  EXPECT_EQ(take(), "\r\033[Kthree");
  line.show("four", start + milliseconds(399));
  EXPECT_EQ(take(), "") << "200 ms after the last that was shown";
  line.end("the end");
  EXPECT_EQ(take(), "\r\033[Kthe end\n") << "due or not";
  line.clear();
  EXPECT_EQ(take(), "") << "what was ended stays";
}

TEST_F(TerminalLines, AreTakenAwayOnce) {
  {
    TerminalLine line(file, true);
    line.clear();
    EXPECT_EQ(take(), "");
    line.show("one", start);
    take();
    line.clear();
    EXPECT_EQ(take(), "\r\033[K");
    line.clear();
    EXPECT_EQ(take(), "");
    line.show("two", start + milliseconds(200));
    take();
  }
  EXPECT_EQ(take(), "\r\033[K") << "at the end, also that of an error";
}

TEST_F(TerminalLines, LeaveTheLastColumnFree) {
  TerminalLine line(file, true);  // a file has no width
  line.show(std::string(200, 'x'), start);
  EXPECT_EQ(take(), "\r\033[K" + std::string(79, 'x'));
  line.end(std::string(200, 'y'));
  EXPECT_EQ(take(), "\r\033[K" + std::string(79, 'y') + "\n");
}

TEST_F(TerminalLines, AreNotThereWithoutATerminal) {
  TerminalLine line(file, false);
  EXPECT_FALSE(line.isDue(start));
  line.show("one", start);
  line.end("two");
  line.clear();
  EXPECT_EQ(take(), "");
}

}  // namespace
}  // namespace gptc

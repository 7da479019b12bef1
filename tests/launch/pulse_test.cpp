#include "runtime/launch/pulse.h"

#include "runtime/launch/rank_log.h"
#include "support/json.h"
#include "tests/support/eventually.h"
#include "tests/support/json_lines.h"
#include "tests/unit/runtime/temp_dir.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace gptc;
using State = PulseView::State;

namespace {

TEST(Pulse, IsReadWhileARankLivesAndAfterItsDeath) {
  PulseReader reader;
  EXPECT_EQ(reader.read().beats, 0u);
  EXPECT_EQ(reader.read().step, -1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("GPTC_PULSE", std::to_string(::dup(reader.fd())).c_str(), 1);
    Pulse &p = Pulse::get();
    Pulse::get().step(7);
    {
      Pulse::Busy saving("saving a checkpoint");
      Pulse::Collective inside(std::string(300, 'x'));
    }
    p.step(8);
    Pulse::Collective waiting("all_reduce of 1024 f32");
    p.waits(2);
    p.moved();
    p.waits(3);
    for (;;)
      ::pause();
  }
  ASSERT_TRUE(test::eventually([&] { return reader.read().waitsFor == 3; }));
  PulseView v = reader.read();
  EXPECT_EQ(v.state, State::collective);
  EXPECT_EQ(v.step, 8);
  // The start, step 7 and its word, four words within it, step 8, a word and a message.
  EXPECT_EQ(v.progress, 10u);
  EXPECT_EQ(v.place, (uint64_t(2) << 32) + 1) << "a message within the second collective";
  EXPECT_EQ(v.doing, "all_reduce of 1024 f32");
  ASSERT_TRUE(test::eventually([&] { return reader.read().beats > v.beats + 1; })) << "beats while the rank waits";
  EXPECT_EQ(reader.read().progress, v.progress) << "but does not get anywhere";
  ::kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  v = reader.read();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(reader.read().beats, v.beats) << "a stopped rank must not beat";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(reader.read().step, 8);
  EXPECT_EQ(reader.read().doing, "all_reduce of 1024 f32");
}

TEST(Pulse, PiecesCountWhereTheyAreAllThereIs) {
  PulseReader reader;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("GPTC_PULSE", std::to_string(::dup(reader.fd())).c_str(), 1);
    Pulse &p = Pulse::get();
    p.step(7);
    p.goesOn();  // of a thread beside the step: says nothing of the step
    {
      Pulse::Paced saving("saving a checkpoint");
      p.goesOn();
      p.goesOn();
    }
    p.step(8);
    for (volatile bool forever = true; forever;)
      ;
  }
  ASSERT_TRUE(test::eventually([&] { return reader.read().step == 8; }));
  // The start, step 7 and its word, saving's word, two pieces, the word after it, step 8.
  EXPECT_EQ(reader.read().progress, 8u);
  EXPECT_TRUE(test::eventually([&] { return reader.read().cpuMs > 300; })) << "it computes";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Pulse, GoesNowhereWithoutAReader) {
  for (const char *value : {"", "x", "2", "99999", "-1"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("GPTC_PULSE", value, 1);
      Pulse::get().step(1);
      Pulse::Busy b("x");
      ::_exit(0);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << value;
  }
}

TEST(RankLog, LinesWithTimeAndRankAndTheErrorKept) {
  TempDir dir;
  const std::string file = dir / "rank.log";
  {
    RankLines lines(3, file);
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_EQ(lines.take("one\ntw"), "one\n");
    EXPECT_EQ(lines.take("o \"q\" \xff\n\n"), "two \"q\" \xff\n\n");
    EXPECT_EQ(lines.take("error[GPTC0406]: training diverged\n   = help: x\n\nerror[GPTC0101]"), "");
    EXPECT_EQ(lines.finish(), "");
    EXPECT_EQ(lines.error(), "error[GPTC0406]: training diverged\n   = help: x\n\nerror[GPTC0101]\n");
  }
  std::vector<std::string> found;
  for (const nlohmann::json &j : test::jsonLines(readFile(file))) {
    EXPECT_EQ(j["rank"], 3);
    const std::string time = j["time"];
    EXPECT_EQ(time.size(), 24u) << time;
    EXPECT_EQ(time.back(), 'Z');
    found.push_back(j["line"]);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"one", "two \"q\" \xef\xbf\xbd", "", "error[GPTC0406]: training diverged",
                                             "   = help: x", "", "error[GPTC0101]"}));
  RankLines again(3, file);
  again.take("more\n" + std::string(100000, 'y'));
  const std::string text = readFile(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9) << "goes on in the same file, cutting what is too long";
  EXPECT_EQ(rankLogName(3), "ranks/rank-0003.log");
}

TEST(RankLog, OutputOfAProcessUntilItsEnd) {
  TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    divertOutput(12, dir / "out");
    fmt::print("to stdout\n");
    std::fflush(stdout);
    fmt::print(stderr, "to stderr");
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  const std::string file = dir / "out/ranks/rank-0012.log";
  EXPECT_TRUE(test::eventually([&] { return readFile(file).find("to stderr") != std::string::npos; }));
  EXPECT_NE(readFile(file).find("\"line\": \"to stdout\""), std::string::npos) << readFile(file);
}

}  // namespace

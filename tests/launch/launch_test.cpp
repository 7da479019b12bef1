// The launcher with ranks that do as they are told (fake/fake_gptrun.cpp): they die, hang, spin, are slow.
#include "support/json.h"
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tests/support/json_lines.h"
#include "tests/unit/runtime/temp_dir.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

const std::string kProgram = std::string(GPTC_BIN_DIR) + "/fake_gptrun";

struct LaunchTest : ::testing::Test {
  TempDir dir;
  std::string out = dir / "out";
  std::map<std::string, std::string> env;

  LaunchTest() { fs::create_directories(out); }
  ~LaunchTest() override {
    // Whatever a test has started and lost.
    for (int pid : processes())
      ADD_FAILURE() << "process " << pid << " is left", ::kill(pid, SIGKILL);
  }

  std::vector<std::string> arguments(const std::string &options, const std::string &instructions) {
    std::vector<std::string> args = {kProgram, "launch", "out=" + out, "silence=600", "grace=400", "settle=100"};
    std::string word;
    for (std::istringstream in(options); in >> word;)
      args.push_back(word);
    args.push_back("--");
    for (std::istringstream in(instructions); in >> word;)
      args.push_back(word);
    return args;
  }
  std::unique_ptr<e2e::Process> start(const std::string &options, const std::string &instructions) {
    fs::remove(dir / "output");  // what waits for words waits for those to come
    return std::make_unique<e2e::Process>(arguments(options, instructions), env, dir / "output");
  }
  e2e::Result run(const std::string &options, const std::string &instructions) {
    e2e::Result r = start(options, instructions)->wait();
    EXPECT_EQ(processes(), std::vector<int>{}) << r.output;
    return r;
  }
  /// Processes that know this test's folder.
  std::vector<int> processes() const {
    std::vector<int> found;
    for (auto &entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos)
        continue;
      const std::string line = readFile(entry.path() / "cmdline"), status = readFile(entry.path() / "stat");
      if (line.find(dir.path) != std::string::npos && status.find(") Z ") == std::string::npos)
        found.push_back(std::stoi(name));
    }
    return found;
  }
  /// What a rank wrote when it began: pid, resume at most, rendezvous, CPUs, restarts.
  std::vector<std::string> begun(int rank, int attempt = 1) const {
    std::istringstream in(readFile(out + "/attempt-" + std::to_string(rank) + "-" + std::to_string(attempt)));
    return {std::istream_iterator<std::string>(in), {}};
  }
  bool waitFor(const std::string &text) const {
    return gptc::test::eventually([&] { return readFile(dir / "output").find(text) != std::string::npos; });
  }
  bool waitForFile(const std::string &name) const {
    return gptc::test::eventually([&] { return fs::exists(out + "/" + name); });
  }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
#define EXPECT_HAS_NOT(text, part) EXPECT_EQ((text).find(part), std::string::npos) << (text)

size_t count(const std::string &text, const std::string &part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++n;
  return n;
}

TEST_F(LaunchTest, OneVoiceAndALogForEveryOtherRank) {
  const e2e::Result r = run("nodes=2 ranks=2", "0:1:print 1:1:print 3:1:print");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.rfind("4 ranks on this machine\n", 0), 0u) << r.output;
  EXPECT_HAS(r.output, "rank 0 begins at step 0\n");
  EXPECT_HAS(r.output, "out of rank 0\n");
  EXPECT_HAS(r.output, "err of rank 0\n");
  EXPECT_HAS(r.output, "rank 0 ends at step 20\n");
  for (const char *other : {"rank 1 ", "rank 2 ", "rank 3", "of rank 3"})
    EXPECT_HAS_NOT(r.output, other);
  std::vector<std::string> lines;
  for (const nlohmann::json &j : gptc::test::jsonLines(readFile(out + "/ranks/rank-0003.log"))) {
    EXPECT_EQ(j["rank"], 3);
    lines.push_back(j["line"]);
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"rank 3 begins at step 0", "out of rank 3", "err of rank 3",
                                             "rank 3 ends at step 20"}));
  EXPECT_FALSE(fs::exists(out + "/ranks/rank-0000.log"));
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  if (const int cpus = CPU_COUNT(&set); cpus < 4) {
    EXPECT_HAS(r.output, "note: 4 ranks share " + std::to_string(cpus) + " CPU");
  }
}

TEST_F(LaunchTest, AKilledRankIsNamedAndTheRunGoesOnFromTheNewestCheckpoint) {
  const auto begin = Clock::now();
  const e2e::Result r = run("ranks=3", "ms:5 1:7:kill=9:1");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  const std::string pid = begun(1).at(0);
  EXPECT_HAS(r.output, "(pid " + pid + ") was killed by SIGKILL after step 7");
  EXPECT_HAS(r.output, "warning: rank 1 on ");
  EXPECT_HAS(r.output, "restart 1 of 3, from the newest checkpoint");
  EXPECT_HAS_NOT(r.output, "restart 2");
  EXPECT_EQ(count(r.output, "rank 0 begins"), 2u) << r.output;
  EXPECT_HAS(r.output, "rank 0 ends at step 20\n");
  EXPECT_EQ(begun(1, 2).at(1), "-1") << "from the newest";
}

TEST_F(LaunchTest, NoProgressFallsBackToTheCheckpointBefore) {
  // Attempt 1 dies at 12 (saved: 5, 10), attempt 2 where it begins, so that attempt 3 is given the checkpoint before;
  // it passes 10 and dies again.
  const e2e::Result r = run("ranks=2", "0:12:kill=9:1 1:10:kill=9:2 1:15:kill=9:3");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(begun(0, 2).at(1), "-1");
  EXPECT_EQ(begun(0, 3).at(1), "5") << r.output;
  EXPECT_HAS(r.output, "restart 2 of 3, from the checkpoint of step 5: nothing was done beyond step 10");
  EXPECT_EQ(begun(0, 4).at(1), "-1") << "it got on, so the newest is good";
  EXPECT_HAS(r.output, "rank 0 ends at step 20\n");
}

// With --resume never the first start to train begins anew. Until one has, an earlier run's checkpoints are still
// there.
TEST_F(LaunchTest, RestartsCountFromTheFirstThatTrains) {
  const e2e::Result r = run("ranks=2", "1:-1:kill=9:1 0:-1:kill=9:2 1:3:kill=9:3");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_HAS(r.output, "restart 1 of 3, as it began the first time");
  EXPECT_HAS(r.output, "restart 2 of 3, as it began the first time");
  EXPECT_HAS(r.output, "restart 3 of 3, from the beginning: there is no checkpoint yet");
  for (const auto &[attempt, restarts] : {std::pair(1, "0"), {3, "0"}, {4, "3"}})
    EXPECT_EQ(begun(1, attempt).at(4), restarts) << attempt;
}

TEST_F(LaunchTest, GivesUpWithASummary) {
  const e2e::Result r = run("ranks=2 restarts=2", "1:3:kill=11");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: the run failed 3 times, 2 of them after a restart");
  EXPECT_EQ(count(r.output, "= note: rank 1 on "), 3u) << r.output;
  EXPECT_EQ(count(r.output, "was killed by SIGSEGV after step 3"), 5u) << r.output;
  EXPECT_HAS(r.output, "what the ranks wrote is in " + out + "/ranks");
}

TEST_F(LaunchTest, WhatNoRestartMendsIsSaidOnceInTheRanksWords) {
  for (const int who : {0, 2}) {
    const e2e::Result r = run("ranks=3", std::to_string(who) + ":4:error=4");
    EXPECT_EQ(r.code, 4) << r.output;
    EXPECT_EQ(count(r.output, "error["), 1u) << r.output;
    EXPECT_HAS(r.output, "error[GPTC0406]: rank " + std::to_string(who) + " says what is wrong\n  = help: so and so\n");
    EXPECT_HAS(r.output, "  = note: rank " + std::to_string(who) + " on ");
    EXPECT_HAS_NOT(r.output, "restart 1");
  }
}

TEST_F(LaunchTest, TheFirstCauseIsSaidNotItsFollowers) {
  // Ranks 0 and 1 complain of others a moment before rank 2's own error is seen.
  const e2e::Result r = run("ranks=3 settle=400", "0:4:error=6 1:4:error=6 2:4:busy=150 2:4:error=4");
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_EQ(count(r.output, "error["), 1u) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0406]: rank 2 says what is wrong");
  // Where all complain of others, and none is silent, the first one's words.
  const e2e::Result again = run("ranks=2 restarts=0", "0:4:error=6 1:8:error=6");
  EXPECT_EQ(again.code, 6) << again.output;
  EXPECT_EQ(count(again.output, "error["), 1u) << again.output;
  EXPECT_HAS(again.output, "error[GPTC0602]: rank 0 says what is wrong");
  // Also where its process ends last.
  const e2e::Result late = run("ranks=2 restarts=0 settle=5000", "0:4:lingers=200 0:4:error=6");
  EXPECT_EQ(late.code, 6) << late.output;
  EXPECT_HAS(late.output, "error[GPTC0602]: rank 0 says what is wrong");
}

TEST_F(LaunchTest, AStoppedRankIsFoundByItsHeartbeat) {
  const auto begin = Clock::now();
  const e2e::Result r = run("ranks=3 restarts=0", "steps:400 2:6:stop");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
  EXPECT_HAS(r.output, "error[GPTC0601]: rank 2 on ");
  EXPECT_HAS(r.output, "has given no heartbeat for 0.");
  EXPECT_HAS(r.output, "after step 6");
}

TEST_F(LaunchTest, ASpinningRankIsFoundThoughItBeats) {
  const e2e::Result r = run("ranks=2 restarts=0", "steps:400 1:26:spin");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: rank 1 on ");
  EXPECT_HAS(r.output, "runs but gets nowhere for 0.");
}

TEST_F(LaunchTest, WhoWaitsOrIsBusyIsNotStuck) {
  const e2e::Result r = run("ranks=2 restarts=0 silence=700", "ms:5 0:6:busy=1500 1:6:busy=300");
  EXPECT_EQ(r.code, 0) << r.output;
  // The one that waits in a collective is not blamed, but the one that spins.
  const e2e::Result other = run("ranks=2 restarts=0", "steps:400 1:26:spin");
  EXPECT_HAS(other.output, "error[GPTC0601]: rank 1 on ");
}

TEST_F(LaunchTest, ASlowRankIsReportedAndLives) {
  const e2e::Result r = run("ranks=3 restarts=0 window=1500", "steps:50 ms:5 1:2:slow=50");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(count(r.output, "note: rank 1 on "), 1u) << r.output;
  EXPECT_HAS(r.output, "is slow: the others wait ");
}

TEST_F(LaunchTest, OneSignalSavesAndEndsAll) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    auto p = start("ranks=3", "steps:5000");
    ASSERT_TRUE(waitFor("rank 0 begins"));
    ASSERT_TRUE(waitForFile("attempt-2-1"));
    std::this_thread::sleep_for(milliseconds(150));
    ::kill(p->pid(), number);
    const e2e::Result r = p->wait();
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_HAS(r.output, "stopping: ranks finish their step and save");
    EXPECT_HAS(r.output, "rank 0 ends at step ");
    EXPECT_EQ(processes(), std::vector<int>{});
    fs::remove_all(out);
    fs::create_directories(out);
  }
}

// A rank that is told of the other's end before it has heard of the stop fails, and is no cause of anything.
TEST_F(LaunchTest, AStopWhileARankStartsIsNoFailure) {
  auto p = start("ranks=2 restarts=0", "steps:5000 1:1:starting");
  ASSERT_TRUE(waitForFile("saved-5"));
  ::kill(p->pid(), SIGINT);
  const e2e::Result r = p->wait();
  EXPECT_EQ(r.code, 130) << r.output;
  EXPECT_EQ(r.output.find("error[GPTC0601]"), std::string::npos) << r.output;
  EXPECT_EQ(processes(), std::vector<int>{});
}

TEST_F(LaunchTest, ASecondSignalEndsAllAtOnce) {
  auto p = start("ranks=3 silence=60000", "steps:5000 0:3:deaf 1:3:deaf 2:3:deaf");
  ASSERT_TRUE(waitForFile("saved-5"));
  ::kill(p->pid(), SIGINT);
  ASSERT_TRUE(waitFor("stopping"));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // else it is the same wish
  const auto begin = Clock::now();
  ::kill(p->pid(), SIGINT);
  EXPECT_EQ(p->wait().code, 130);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(processes(), std::vector<int>{});
}

TEST_F(LaunchTest, RanksDeafToSigtermAreKilledAfterTheGrace) {
  // The long grace is for a rank that saves, and this one does not.
  const auto begin = Clock::now();
  const e2e::Result r = run("ranks=2 restarts=0 grace=60000 silence=60000", "steps:5000 0:3:deaf 0:9:spin 1:9:kill=9");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(40));
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "rank 1 on ");
}

TEST_F(LaunchTest, NothingOutlivesAKilledLauncher) {
  // Not even what hears of nothing, and so would not end by itself.
  auto p = start("ranks=3 silence=60000", "steps:5000 1:5:deaf 1:5:spin");
  ASSERT_TRUE(waitForFile("saved-5"));
  EXPECT_EQ(processes().size(), 4u);
  ::kill(p->pid(), SIGKILL);
  EXPECT_EQ(p->wait().signal, SIGKILL);
  // Less than the silence after which a rank would be ended.
  EXPECT_TRUE(gptc::test::eventually([&] { return processes().empty(); }, std::chrono::seconds(30)));
}

TEST_F(LaunchTest, WhatARankLeavesBehindIsEndedToo) {
  const e2e::Result r = run("ranks=2 restarts=0", "1:3:child");
  EXPECT_EQ(r.code, 6) << r.output;
}

// Its words would go nowhere: it has no log.
TEST_F(LaunchTest, WhatAFailedRankSaidLastIsShown) {
  const e2e::Result r = run("ranks=2 texts=1", "0:1:print 1:2:print 1:3:kill=9");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "\nrank 1: rank 1 begins at step 0\nrank 1: out of rank 1\nrank 1: err of rank 1\n");
  EXPECT_LT(r.output.find("rank 1: err of"), r.output.find("error[GPTC0601]: rank 1 on ")) << r.output;
  EXPECT_EQ(count(r.output, "err of rank 0"), 1u) << r.output;
  fs::remove_all(out);
  fs::create_directories(out);
  EXPECT_HAS_NOT(run("ranks=2 texts=1", "1:2:print").output, "of rank 1");
}

// As the only process of a pipeline's stage ends.
TEST_F(LaunchTest, RanksThatNobodyReadsEndBySigpipe) {
  const e2e::Result r = run("ranks=2 texts=1", "0:3:kill=13 1:3:kill=13");
  EXPECT_EQ(r.signal, SIGPIPE) << r.output;
  EXPECT_HAS_NOT(r.output, "error[");
  fs::remove_all(out);
  fs::create_directories(out);
  const e2e::Result logged = run("ranks=2 restarts=0", "0:3:kill=13 1:3:kill=13");
  EXPECT_EQ(logged.code, 6) << "only those whose output it is\n" << logged.output;
}

TEST_F(LaunchTest, AnErrorThatARankSurvivesIsNoError) {
  const e2e::Result r = run("ranks=2 restarts=0", "1:3:rogue=4");
  EXPECT_EQ(r.code, 0) << r.output;
}

/// gptrun itself as the one rank: its heartbeats, and what it resumes from.
TEST_F(LaunchTest, TrainingGoesOnAfterAKillAndAStopWithTheSameBits) {
  e2e::Workplace w;
  const std::string plan = w.compile("plan", {"train.steps=1000", "checkpoint.every=20", "checkpoint.keep=60"});
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("whole")}).code, 0);
  env["GPTC_CACHE"] = e2e::cacheDir();
  auto launched = [&] {
    return start("silence=2000 program=" GPTC_BIN_DIR "/gptrun", plan + " --resume never --out-dir " + out);
  };
  auto rankOf = [&](int launcher) {
    for (int pid : processes())
      if (pid != launcher)
        return pid;
    return 0;
  };
  auto p = launched();
  int before = 0;
  int64_t saved = 0;
  for (const int number : {SIGKILL, SIGSTOP}) {
    // In every attempt a rank that has saved twice, and so beats.
    auto newest = [&] {
      const std::vector<std::string> all = w.checkpoints(out);
      return all.empty() || all.back().rfind("step-", 0) != 0 ? 0 : std::stoll(all.back().substr(5));
    };
    int pid = 0;
    for (int i = 0; i < 4000 && (pid == 0 || pid == before || newest() < saved + 40); ++i) {
      std::this_thread::sleep_for(milliseconds(5));
      pid = rankOf(p->pid());
    }
    ASSERT_TRUE(pid > 0 && pid != before) << readFile(dir / "output");
    before = pid;
    ::kill(before, number);
    saved = newest();
  }
  const e2e::Result r = p->wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_HAS(r.output, "was killed by SIGKILL after step ");
  EXPECT_HAS(r.output, "has given no heartbeat for 2.");
  EXPECT_EQ(count(r.output, "resumed from " + out + "/checkpoints/step-"), 2u) << "only the first attempt starts over\n"
                                                                               << r.output;
  EXPECT_TRUE(w.finalState(out) == w.finalState(w.path("whole"))) << r.output;

  // And from no checkpoint beyond a step.
  const e2e::Result back = w.gptrun({plan, "--out-dir", out, "--steps", "30"},
                                    {{"GPTC_RANK", "0"}, {"GPTC_WORLD", "1"}, {"GPTC_RESUME_AT_MOST", "39"}});
  EXPECT_EQ(back.code, 0) << back.output;
  EXPECT_HAS(back.output, "resumed from " + out + "/checkpoints/step-00000020\n");
}

// ---- other machines -------------------------------------------------------------------------------------------------

/// Reads a FIFO, if it does not pause.
class Reader {
public:
  explicit Reader(const std::string &fifo) : fifo(fifo) {
    ::unlink(fifo.c_str());
    EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    fd = ::open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(fd, 0);
  }
  ~Reader() { ::close(fd); }
  Reader(const Reader &) = delete;

  /// Whoever writes from now on waits, because the pipe is full.
  void pause() const {
    const std::string page(1 << 12, '.');
    while (::write(fd, page.data(), page.size()) > 0) {
    }
  }
  /// Reads until the text has come, or the writer has ended without it.
  bool readTo(const std::string &text, const e2e::Process &writer) {
    for (bool ended = false;; ended = writer.hasEnded()) {
      std::string bytes(1 << 12, '.');
      for (ssize_t n; (n = ::read(fd, bytes.data(), bytes.size())) > 0;)
        seen.append(bytes, 0, size_t(n));
      if (ended || seen.find(text) != std::string::npos)
        return seen.find(text) != std::string::npos;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  const std::string fifo;

private:
  int fd;
  std::string seen;
};

/// A folder in PATH whose `ssh` runs the command here, and notes its command line. It becomes the command itself; with
/// SSH_APART the command has a process of its own, which the end of this `ssh` does not end, as on another machine.
struct RemoteTest : LaunchTest {
  RemoteTest() {
    fs::create_directories(dir / "bin");
    writeFile(dir / "bin/ssh", R"(#!/bin/bash
echo "$$ $*" >> )" + dir / "ssh-log" +
                                   R"(
while [ "$1" != -- ]; do shift; done
[ "$2" = nowhere ] && { echo 'ssh: connect to host nowhere port 22: No route to host' >&2; exit 255; }
cd /
if [ "$SSH_APART" ]; then eval "${@:3}" <&0 & wait; else eval "${@:3}"; fi
)");
    fs::permissions(dir / "bin/ssh", fs::perms::owner_all);
    env["PATH"] = dir / "bin" + ":" + std::getenv("PATH");
  }
  /// The launcher as a command of a shell, which it replaces.
  std::string inShell(const std::string &options, const std::string &instructions) {
    std::string command = "exec";
    for (const std::string &word : arguments(options, instructions))
      command += " '" + word + "'";
    return command;
  }
  /// The process by which the launcher hears of machine b; 0 if there is none.
  int agentOfB() const {
    std::istringstream log(readFile(dir / "ssh-log"));
    int pid = 0;
    for (std::string line; std::getline(log, line);)
      if (line.find(" b ") != std::string::npos)
        pid = std::stoi(line);
    return pid;
  }
};

TEST_F(RemoteTest, RanksOfSeveralMachines) {
  const e2e::Result r = run("hosts=a,b ranks=2", "0:1:print 3:1:print");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.rfind("4 ranks, 2 on each of a, b\n", 0), 0u) << r.output;
  EXPECT_HAS(r.output, "out of rank 0\n");
  EXPECT_HAS(r.output, "err of rank 0\n");
  EXPECT_HAS(r.output, "rank 0 ends at step 20\n");
  EXPECT_HAS_NOT(r.output, "rank 3");
  EXPECT_HAS(readFile(out + "/ranks/rank-0003.log"), "out of rank 3");
  const std::string log = readFile(dir / "ssh-log");
  EXPECT_EQ(count(log, "BatchMode=yes"), 2u) << log;
  EXPECT_HAS_NOT(log, "TOKEN");
  EXPECT_HAS_NOT(log, "token");
}

TEST_F(RemoteTest, DeathsAndErrorsOnOtherMachines) {
  const e2e::Result r = run("hosts=a,b ranks=1", "1:7:kill=9:1");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_HAS(r.output, "warning: rank 1 on b (pid " + begun(1).at(0) + ") was killed by SIGKILL after step 7");
  EXPECT_HAS(r.output, "rank 0 ends at step 20");
}

TEST_F(RemoteTest, AnErrorThereIsSaidHere) {
  const e2e::Result r = run("hosts=a,b ranks=1", "1:4:error=4");
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0406]: rank 1 says what is wrong\n  = help: so and so\n  = note: rank 1 on b (pid ");
}

TEST_F(RemoteTest, WhatAFailedRankSaidLastIsShown) {
  const e2e::Result r = run("hosts=a,b ranks=1 texts=1", "1:2:print 1:3:kill=9");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "\nrank 1: rank 1 begins at step 0\nrank 1: out of rank 1\nrank 1: err of rank 1\n");
}

TEST_F(RemoteTest, RanksThatNobodyReadsEndBySigpipe) {
  const std::string gone = "exec 3> >(:); wait $!; ";  // a pipe whose reader has gone
  const std::string command = inShell("hosts=a,b ranks=1 texts=1", "steps:5000 0:3:print");
  const e2e::Result r = e2e::Process({"/bin/bash", "-c", gone + command + " >&3"}, env, dir / "output").wait();
  EXPECT_EQ(r.signal, SIGPIPE) << r.output;
  EXPECT_HAS(r.output, "note: 2 ranks, 1 on each of a, b\n");
  EXPECT_HAS_NOT(r.output, "error[");
  EXPECT_HAS_NOT(r.output, "stopping");
  EXPECT_EQ(processes(), std::vector<int>{});
}

// Twice for longer than a silent machine would be waited for, and ranks go on after both.
TEST_F(RemoteTest, AReaderThatPausesEndsNothing) {
  Reader reader(dir / "fifo");
  reader.pause();
  const std::string command = inShell("hosts=a,b ranks=1 texts=1 hostSilence=3000", "steps:1000 0:500:print");
  e2e::Process p({"/bin/sh", "-c", command + " > " + reader.fifo}, env, dir / "output");
  ASSERT_TRUE(waitForFile("attempt-0-1"));
  auto goOnTo = [&](const std::string &step) {
    while (!fs::exists(out + "/saved-" + step) && processes().size() > 1)
      std::this_thread::sleep_for(milliseconds(50));
    return fs::exists(out + "/saved-" + step);
  };
  EXPECT_TRUE(goOnTo("400"));
  EXPECT_TRUE(reader.readTo("rank 0 begins at step 0\n", p));
  reader.pause();
  EXPECT_TRUE(goOnTo("900"));
  EXPECT_TRUE(reader.readTo("out of rank 0\n", p));
  EXPECT_TRUE(reader.readTo("rank 0 ends at step 1000\n", p));
  const e2e::Result r = p.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_HAS(readFile(out + "/saved-1000"), "1000") << r.output;
  EXPECT_EQ(processes(), std::vector<int>{});
}

// Only standard output is not read, or both. Ranks print long after their first step is known.
TEST_F(RemoteTest, AStopDoesNotWaitForAReaderThatPauses) {
  for (const std::string &both : {std::string(), std::string(" 2>&1")}) {
    Reader reader(dir / "fifo");
    const std::string command = inShell("hosts=a,b ranks=1 patience=500", "steps:100000 0:390:print");
    e2e::Process p({"/bin/sh", "-c", command + " > " + reader.fifo + both}, env, dir / "output");
    ASSERT_TRUE(reader.readTo("rank 0 begins at step 0\n", p));
    reader.pause();
    while (!fs::exists(out + "/saved-400") && !p.hasEnded())
      std::this_thread::sleep_for(milliseconds(10));
    ::kill(p.pid(), SIGTERM);
    ASSERT_TRUE(gptc::test::eventually([&] { return p.hasEnded(); }, std::chrono::seconds(30)));
    const e2e::Result r = p.wait();
    EXPECT_EQ(r.code, 0) << r.output;
    if (both.empty()) {
      EXPECT_HAS(r.output, "stopping: ranks finish their step and save; once more to end at once\n");
    }
    EXPECT_EQ(processes(), std::vector<int>{});
    fs::remove_all(out);
    fs::create_directories(out);
  }
}

TEST_F(RemoteTest, AStoppedRankThere) {
  const e2e::Result r = run("hosts=a,b ranks=1 restarts=0 silence=900", "steps:400 1:6:stop");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: rank 1 on b ");
  EXPECT_HAS(r.output, "has given no heartbeat");
}

TEST_F(RemoteTest, AMachineThatCannotBeReached) {
  const e2e::Result r = run("hosts=a,nowhere ranks=1", "");
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: cannot start ranks: the connection to nowhere has ended: ssh: connect to host "
                       "nowhere port 22: No route to host");
  EXPECT_HAS(r.output, "`ssh HOST true` must work");
}

TEST_F(RemoteTest, AConnectionThatBreaks) {
  auto p = start("hosts=a,b ranks=1 restarts=0", "steps:5000");
  ASSERT_TRUE(waitForFile("saved-5"));
  ASSERT_TRUE(waitForFile("attempt-1-1"));
  const int agent = agentOfB();
  ASSERT_GT(agent, 0);
  ::kill(agent, SIGKILL);
  const e2e::Result r = p->wait();
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: the connection to b has ended");
  EXPECT_EQ(processes(), std::vector<int>{});
}

TEST_F(RemoteTest, AMachineOfWhichNothingIsHeard) {
  auto p = start("hosts=a,b ranks=1 restarts=0 hostSilence=1200 silence=60000", "steps:5000");
  ASSERT_TRUE(waitForFile("saved-5"));
  ASSERT_TRUE(waitForFile("attempt-1-1"));
  const int agent = agentOfB();
  ASSERT_GT(agent, 0);
  ::kill(agent, SIGSTOP);
  const e2e::Result r = p->wait();
  EXPECT_EQ(r.code, 6) << r.output;
  EXPECT_HAS(r.output, "error[GPTC0601]: nothing was heard from b for 1.2 s");
  EXPECT_EQ(processes(), std::vector<int>{});
}

TEST_F(RemoteTest, SignalsReachOtherMachines) {
  auto p = start("hosts=a,b ranks=1", "steps:5000");
  ASSERT_TRUE(waitForFile("attempt-1-1"));
  ASSERT_TRUE(waitForFile("saved-5"));
  ::kill(p->pid(), SIGINT);
  const e2e::Result r = p->wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_HAS(r.output, "rank 0 ends at step ");
  EXPECT_EQ(processes(), std::vector<int>{});
}

TEST_F(RemoteTest, NothingOutlivesAKilledLauncher) {
  // Not even what hears of nothing, and so would not end by itself.
  env["SSH_APART"] = "1";
  auto p = start("hosts=a,b ranks=1 silence=60000", "steps:5000 1:5:deaf 1:5:spin");
  ASSERT_TRUE(waitForFile("saved-5"));
  ::kill(p->pid(), SIGKILL);
  p->wait();
  // Less than the silence after which a rank would be ended.
  EXPECT_TRUE(gptc::test::eventually([&] { return processes().empty(); }, std::chrono::seconds(30)));
}

}  // namespace

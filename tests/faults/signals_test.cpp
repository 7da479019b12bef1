// Ctrl-C, SIGTERM, SIGHUP and the death of gptrun itself, at any moment of a run with several ranks: nothing is left
// but checkpoints, from which the run goes on to the same bits.
#include "supervised.h"

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

using namespace faults;
namespace fs = std::filesystem;

namespace {

struct Signals : testing::Test {
  Place w;
  std::string plan, expected;

  void SetUp() override {
    const std::vector<std::string> settings = {"train.micro_batch=1", "parallel.logical_shards=2", "train.steps=1000",
                                               "eval.every=40",       "checkpoint.every=20",       "parallel.data=2"};
    plan = w.compile("plan", settings);
    const e2e::Result r = w.gptrun({plan, "--out-dir", w.path("quiet")});
    ASSERT_EQ(r.code, 0) << r.output;
    expected = w.finalState(w.path("quiet"));
  }
  /// A run that has compiled nothing yet, or that has.
  Supervised start(bool cold) {
    fs::remove_all(w.path("out"));
    fs::remove_all(w.path("cache"));
    return Supervised(w, {plan, "--out-dir", w.path("out")},
                      cold ? std::map<std::string, std::string>{{"GPTC_CACHE", w.path("cache")}}
                           : std::map<std::string, std::string>{});
  }
  /// Moments of a run, each with what comes before it.
  struct Moment {
    const char *name;
    bool cold;
    std::function<void(Supervised &)> reach;
  };
  std::vector<Moment> moments() {
    auto after = [](milliseconds time) { return [time](Supervised &) { std::this_thread::sleep_for(time); }; };
    auto step = [](long n, milliseconds more) {
      return [=](Supervised &run) {
        run.waitForStep(n, 0);
        std::this_thread::sleep_for(more);
      };
    };
    return {{"before anything", true, after(milliseconds(3))},
            {"while ranks start", true,
             [](Supervised &run) {
               run.waitFor("2 ranks on this machine", 0);
               std::this_thread::sleep_for(milliseconds(30));
             }},
            {"while ranks meet", true,
             [](Supervised &run) {
               run.waitFor("2 ranks on this machine", 0);
               std::this_thread::sleep_for(milliseconds(150));
             }},
            {"while they compile", true,
             [](Supervised &run) {
               run.waitFor("share each batch", 0);
               std::this_thread::sleep_for(milliseconds(100));
             }},
            {"in the first step", true, [](Supervised &run) { run.waitFor("step 1/", 0); }},
            {"between steps", false, step(30, milliseconds(2))},
            {"near a checkpoint", false, step(19, milliseconds(5))},
            {"in a checkpoint", false,
             [this](Supervised &run) {
               run.waitForStep(25, 0);
               auto saving = [&] {
                 std::error_code e;
                 for (auto &entry : fs::directory_iterator(w.path("out/checkpoints"), e))
                   if (entry.path().filename().string().rfind(".step-", 0) == 0)
                     return true;
                 return false;
               };
               while (!saving() && !run.ended())
                 std::this_thread::sleep_for(std::chrono::microseconds(100));
             }},
            {"in an evaluation", false, step(40, milliseconds(2))},
            {"in a restart", false, [](Supervised &run) {
               run.waitForStep(30, 0);
               run.signal(1, SIGKILL);
               run.waitFor("restart 1 of 3", 0);
             }}};
  }
  /// To the end, to the same bits.
  void expectResumes(const std::string &when) {
    const e2e::Result r = w.gptrun({plan, "--out-dir", w.path("out")});
    EXPECT_EQ(r.code, 0) << when << "\n" << r.output;
    EXPECT_EQ(r.output.find("damaged"), std::string::npos) << when << "\n" << r.output;
    EXPECT_TRUE(w.finalState(w.path("out")) == expected) << when << ": other bits";
    EXPECT_EQ(e2e::logLines(w.path("out")), e2e::logLines(w.path("quiet"))) << when;
  }
  long newestCheckpoint() const {
    const std::vector<std::string> all = w.checkpoints(w.path("out"));
    return all.empty() ? -1 : std::atol(all.back().c_str() + 5);
  }
};

// Half of the moments here, the other half in the test of SIGKILL below.
TEST_F(Signals, OneSavesAndEndsAllRanks) {
  int i = 0;
  for (const Moment &m : moments()) {
    const int number = std::array{SIGINT, SIGTERM, SIGHUP}[size_t(i++ % 3)];
    if (i % 2 && !gptc::test::everything())
      continue;
    const std::string when = std::string(m.name) + ", " + strsignal(number);
    Supervised run = start(m.cold);
    m.reach(run);
    const long before = run.lastStep(0);
    const Stalls stalls;
    const auto at = Clock::now();
    ::kill(run.pid(), number);
    const e2e::Result r = run.wait();
    EXPECT_LT(secondsSince(at), 8 + stalls.seconds()) << when;
    w.expectNothingLeft(when);
    // Nothing was there to save before the first step; a run that is about to restart has saved.
    const bool steps = r.output.find("stopped at step ") != std::string::npos;
    if (std::string(m.name) == "before anything") {
      EXPECT_TRUE(r.signal == number || r.code == 130 || r.code == 0) << when << ": " << r.code << "\n" << r.output;
    } else {
      EXPECT_EQ(r.code, steps ? 0 : 130) << when << "\n" << r.output;
    }
    EXPECT_EQ(r.output.find("error["), std::string::npos) << when << "\n" << r.output;
    if (!steps) {
      EXPECT_EQ(r.output.find("finish their step and save"), std::string::npos) << when << "\n" << r.output;
    }
    if (before >= 0 && std::string(m.name) != "in a restart") {
      EXPECT_TRUE(steps) << when << "\n" << r.output;
      EXPECT_GE(newestCheckpoint(), before) << when << ": what was done is saved";
    }
    expectResumes(when);
  }
}

// As Slurm sends SIGTERM at its time limit, and `timeout` any signal, to its child and to the child's group.
TEST_F(Signals, TwoForOneWishAreOne) {
  for (auto [number, apart] : {std::pair(SIGTERM, 0), std::pair(SIGTERM, 100), std::pair(SIGINT, 20)}) {
    Supervised run = start(false);
    ASSERT_TRUE(run.waitForStep(30, 0)) << run.output();
    ::kill(run.pid(), number);
    std::this_thread::sleep_for(std::chrono::milliseconds(apart));
    ::kill(run.pid(), number);
    const e2e::Result r = run.wait();
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("stopped at step "), std::string::npos) << r.output;
    EXPECT_GE(newestCheckpoint(), 30);
    w.expectNothingLeft("after two signals");
  }
}

TEST_F(Signals, OneWishLastsTillTheEnd) {
  Supervised run = start(false);
  ASSERT_TRUE(run.waitForStep(30, 0)) << run.output();
  while (!run.ended()) {
    ::kill(run.pid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const e2e::Result r = run.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("stopped at step "), std::string::npos) << r.output;
}

TEST_F(Signals, ASecondOneEndsAllAtOnce) {
  // Rank 1 is stopped, so that the first signal alone has to wait for it.
  Supervised run = start(false);
  ASSERT_TRUE(run.waitForStep(30, 0)) << run.output();
  run.signal(1, SIGSTOP);
  ::kill(run.pid(), SIGINT);
  ASSERT_NE(run.waitFor("once more to end at once", 0), std::string::npos);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const Stalls stalls;
  const auto at = Clock::now();
  ::kill(run.pid(), SIGINT);
  const e2e::Result r = run.wait();
  EXPECT_EQ(r.code, 130) << r.output;
  EXPECT_LT(secondsSince(at), 1 + stalls.seconds());
  EXPECT_EQ(r.output.find("error["), std::string::npos) << r.output;
  w.expectNothingLeft("after a second signal");
  expectResumes("after a second signal");
}

TEST_F(Signals, NothingOutlivesAGptrunThatIsKilled) {
  int i = 0;
  for (const Moment &m : moments()) {
    if (i++ % 2 && !gptc::test::everything())
      continue;
    Supervised run = start(m.cold);
    m.reach(run);
    ::kill(run.pid(), SIGKILL);
    run.wait();
    w.expectNothingLeft(m.name);
    expectResumes(m.name);
  }
}

}  // namespace

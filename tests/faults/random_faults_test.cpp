// gptrun trains while faults of all kinds hit its ranks, and ends with the bits of a run that nobody disturbed.
//   GPTC_FAULTS=5        how many per engine (else 2, with tools/test --all 50)
//   GPTC_FAULTS_SEED=7   which ones
// With GPTC_FAULTS the times of each kind are printed: docs/lab/ranks.md has them.
#include "supervised.h"
#include "support/median.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

using namespace faults;

namespace {

const std::string kShim = std::string(GPTC_BIN_DIR) + "/../lib/libfault_shim.so";

constexpr int kRanks = 4;

/// What happens to a rank, and how long it may take to be noticed.
struct Kind {
  const char *name;
  int signal;          // to the rank's first thread
  bool hang, ofLinks;  // no process ends by itself; needs TCP
};
std::vector<Kind> kinds(bool tcp) {
  std::vector<Kind> all = {{"killed", SIGKILL, false, false},
                           {"stopped", SIGSTOP, true, false},
                           {"spins", SIGRTMIN + 1, true, false},
                           {"exits", SIGRTMIN + 2, false, false}};
  if (tcp) {
    all.push_back({"links reset", SIGRTMIN + 3, false, true});
    all.push_back({"a link cut", SIGRTMIN + 4, true, true});
    all.push_back({"cable pulled", SIGRTMIN + 5, true, true});
  }
  return all;
}

/// Seconds that faults of one kind took.
struct Times {
  std::vector<double> seen, restarted;
  long mostLost = 0;
  static std::string of(std::vector<double> v) {
    if (v.empty())
      return "-";
    char text[64];
    std::snprintf(text, sizeof text, "%.2f / %.2f", gptc::medianOf(v), *std::max_element(v.begin(), v.end()));
    return text;
  }
};

struct Faults : testing::Test {
  Place w;
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the preloaded shim and the address sanitizer exclude each other";
#endif
  }
};

struct RandomFaults : Faults, testing::WithParamInterface<bool> {
  const bool tcp = GetParam();
  const long every = tcp ? 6 : 20;  // steps between checkpoints; over TCP they take long, with more ranks than cores
  int faults = gptc::test::sized(2, 50);
  unsigned seed = 1;

  void SetUp() override {
    Faults::SetUp();
    if (tcp && !std::ifstream(std::string(GPTC_BIN_DIR) + "/libgptc_gloo.so"))
      GTEST_SKIP() << "built without Gloo";
    if (const char *n = std::getenv("GPTC_FAULTS"))
      faults = std::atoi(n);
    if (const char *n = std::getenv("GPTC_FAULTS_SEED"))
      seed = unsigned(std::atoi(n));
    random.seed(seed);
  }

  std::mt19937 random;
  long below(long n) { return long(random() % unsigned(n)); }

  /// Waits until some time within a step of the attempt whose words begin at `from`, at most 1.5 intervals behind its
  /// first. If `within`, not within a step that is next to an evaluation or a checkpoint. Returns the seconds of a
  /// step, 0 if the run ends before.
  double waitInARun(Supervised &run, size_t from, bool within) {
    if (!run.waitForStep(0, from))
      return 0;
    const long first = run.lastStep(from);
    const auto begin = Clock::now();
    long at = first + 2 + below(every * 3 / 2 - 2);
    while (within && (at % every > every - 3 || at % every < 2 || at % 70 > 67 || at % 70 < 2))
      ++at;
    if (!run.waitForStep(at, from))
      return 0;
    const double seconds = secondsSince(begin) / double(std::max(1L, at - first));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds * double(below(1000)) / 1000));
    return seconds;
  }
  std::map<std::string, std::string> env() const {
    std::map<std::string, std::string> e = {{"LD_PRELOAD", kShim}};
    if (tcp)
      e["GPTC_INTERFACE"] = "lo";
    return e;
  }
};
INSTANTIATE_TEST_SUITE_P(Faults, RandomFaults, testing::Bool(),
                         [](auto &info) { return info.param ? "Gloo" : "Shared"; });

TEST_P(RandomFaults, EndWithTheBitsOfAQuietRun) {
  // Each fault comes at most 1.5 intervals behind the checkpoint that the attempt before it has left, and on a fast
  // machine steps go on while it is sent: as many again.
  const long steps = (faults + 1) * every * 3;
  const std::vector<std::string> settings = {"train.micro_batch=1", "parallel.logical_shards=4",
                                             "train.steps=" + std::to_string(steps),
                                             "checkpoint.every=" + std::to_string(every), "eval.every=70",
                                             // Written beside steps, a checkpoint is there some of these tiny steps
                                             // later, and a fault until then takes them too (checkpoint_test.cpp).
                                             "checkpoint.async=false"};
  std::vector<std::string> forRanks = settings;
  forRanks.push_back("parallel.data=4");
  const std::string quiet = w.compile("quiet-plan", settings), plan = w.compile("plan", forRanks);
  ASSERT_EQ(w.gptrun({quiet, "--out-dir", w.path("quiet")}).code, 0);
  const std::string expected = w.finalState(w.path("quiet"));

  Supervised run(w, {plan, "--out-dir", w.path("out"), "--restarts", "1000"}, env());
  const Stalls stalls;
  std::map<std::string, Times> times;
  std::vector<Kind> all;  // in turn, each round in another order
  size_t from = 0;        // of the attempt's words
  bool early = false;     // the next fault comes before the first step
  for (int i = 0; i < faults; ++i) {
    auto next = [&] {
      if (all.empty()) {
        all = kinds(tcp);
        std::shuffle(all.begin(), all.end(), random);
      }
      return all.back();
    };
    const Kind kind = next();
    all.pop_back();
    const int rank = int(below(kRanks));
    const std::string what = std::string(kind.name) + ", rank " + std::to_string(rank) + ", fault " +
                             std::to_string(i) + " of seed " + std::to_string(seed);
    // Some deaths come while ranks start; else anywhere in a step, in a checkpoint or between. What spins, or waits for
    // a link, does so within a step: saving and evaluating take what they take.
    const bool within = kind.hang && kind.signal != SIGSTOP;
    double stepSeconds = 0.01;
    if (early) {
      std::this_thread::sleep_for(milliseconds(below(3000)));
    } else {
      stepSeconds = waitInARun(run, from, within);
      ASSERT_GT(stepSeconds, 0) << what << "\n" << run.output();
    }
    // A rank that starts may not be there yet.
    std::map<int, int> ranks;
    while (!ranks.count(rank) && !run.ended())
      ranks = run.ranks();
    ASSERT_TRUE(ranks.count(rank)) << what << "\n" << run.output();
    const double stalled = stalls.seconds();
    const auto hit = Clock::now();
    ASSERT_EQ(::syscall(SYS_tgkill, ranks[rank], ranks[rank], kind.signal), 0) << what;
    const std::string restart = "restart " + std::to_string(i + 1) + " of 1000";
    const size_t seenAt = run.waitFor(restart, from);
    const double seen = secondsSince(hit);
    ASSERT_NE(seenAt, std::string::npos) << what << "\n" << run.output();
    const size_t warned = run.output().rfind("warning: ", seenAt);
    const std::string words = run.output().substr(warned, seenAt - warned);
    if (!kind.ofLinks) {
      EXPECT_NE(words.find("rank " + std::to_string(rank) + " on "), std::string::npos) << what << ": " << words;
    }
    EXPECT_LE(seen, (kind.hang ? std::max(5.0, 5 * stepSeconds) : 2.0) + stalls.seconds() - stalled)
        << what << ": " << words;
    Times &t = times[kind.name + std::string(early ? ", starting" : "")];
    t.seen.push_back(seen);
    // What was done when it was seen, and where it goes on.
    const long done = std::max(run.lastStep(from), 0L);
    const bool wasRunning = run.lastStep(from) >= 0;
    from = seenAt;
    early = !next().hang && !next().ofLinks && below(5) == 0;
    if (early)
      continue;
    ASSERT_TRUE(run.waitForStep(0, from)) << what << "\n" << run.output();
    const double restarted = secondsSince(hit) - seen;
    EXPECT_LE(restarted, 10 + stalls.seconds() - stalled) << what;
    long resumed = 0;
    if (const size_t at = run.output().find("checkpoints/step-", from); at != std::string::npos)
      resumed = std::atol(run.output().c_str() + at + 17);
    if (wasRunning) {
      EXPECT_LE(done - resumed, every) << what << ": one checkpoint interval at most is lost";
    }
    t.restarted.push_back(restarted);
    t.mostLost = std::max(t.mostLost, wasRunning ? done - resumed : 0);
  }
  const e2e::Result r = run.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(w.finalState(w.path("out")) == expected) << "other bits";
  EXPECT_EQ(e2e::logLines(w.path("out")), e2e::logLines(w.path("quiet")));
  w.expectNothingLeft("at the end");
  if (std::getenv("GPTC_FAULTS"))
    for (auto &[name, t] : times)
      std::printf("| %s | %s | %zu | %s | %s | %ld |\n", tcp ? "Gloo" : "shared memory", name.c_str(), t.seen.size(),
                  Times::of(t.seen).c_str(), Times::of(t.restarted).c_str(), t.mostLost);
}

/// Where a rank spins while it evaluates or saves, that is seen as soon as in a step.
TEST_F(Faults, SpinsWhileItEvaluatesOrSaves) {
  std::string tokens;
  for (int i = 0; i < 20000; ++i)
    tokens += e2e::readFile(w.path("val.bin")).substr(0, 32);
  e2e::writeFile(w.path("val.bin"), tokens);  // seconds of evaluation
  const std::vector<std::string> settings = {"train.micro_batch=1",  "parallel.logical_shards=2", "parallel.data=2",
                                             "train.steps=100000",   "checkpoint.async=false",    "model.n_embd=512",
                                             "parallel.zero_stage=1"};
  const Stalls stalls;
  for (const bool saves : {false, true}) {
    std::vector<std::string> all = settings;
    all.push_back(saves ? "checkpoint.every=8" : "checkpoint.every=0");
    all.push_back(saves ? "eval.every=0" : "eval.every=8");
    const std::string what = saves ? "saving a checkpoint" : "evaluating";
    Supervised run(w, {w.compile(saves ? "saves" : "evaluates", all), "--out-dir", w.path(what), "--restarts", "1"},
                   {{"LD_PRELOAD", kShim}});
    ASSERT_TRUE(run.waitForStep(saves ? 15 : 8, 0)) << run.output();
    auto saving = [&] {
      std::error_code e;
      for (auto &entry : std::filesystem::directory_iterator(w.path(what) + "/checkpoints", e))
        if (entry.path().filename().string().rfind(".step-", 0) == 0)
          return true;
      return false;
    };
    while (saves && !saving() && !run.ended())
      ;
    std::this_thread::sleep_for(milliseconds(saves ? 10 : 100));
    const double stalled = stalls.seconds();
    const auto hit = Clock::now();
    const int rank = run.ranks()[1];
    ASSERT_EQ(::syscall(SYS_tgkill, rank, rank, SIGRTMIN + 1), 0);
    ASSERT_NE(run.waitFor("restart 1 of 1", 0), std::string::npos) << run.output();
    EXPECT_LE(secondsSince(hit), 6 + stalls.seconds() - stalled) << run.output();
    EXPECT_NE(run.output().find("rank 1 on "), std::string::npos) << run.output();
    // What a rank evaluates is added up with the others': it may be in there just then, waiting for one of them or not.
    const bool between = run.output().find("runs but gets nowhere for 4.") != std::string::npos;
    EXPECT_NE(run.output().find(between ? ", in " + what : "s within a collective"), std::string::npos) << run.output();
    ::kill(run.pid(), SIGKILL);
    run.wait();
    w.expectNothingLeft(what);
  }
}

/// A rank that gets a tenth of its time is a nuisance, not a failure.
TEST_F(Faults, ASlowRankIsReportedAndLives) {
  // Large enough that a step is computing rather than waiting.
  const std::string plan =
      w.compile("plan", {"train.micro_batch=1", "parallel.logical_shards=4", "parallel.data=4", "model.n_embd=256",
                         "model.block_size=128", "train.global_batch_tokens=512", "train.steps=100000", "eval.every=0",
                         "checkpoint.every=0"});
  Supervised run(w, {plan, "--out-dir", w.path("out"), "--restarts", "0"}, {});
  ASSERT_TRUE(run.waitForStep(3, 0)) << run.output();
  const int rank = 2, pid = run.ranks()[rank];
  ASSERT_GT(pid, 0);
  size_t noted = std::string::npos;
  while (noted == std::string::npos && !run.ended()) {
    ::kill(pid, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(90));
    ::kill(pid, SIGCONT);
    std::this_thread::sleep_for(milliseconds(10));
    noted = run.output().find("note: rank " + std::to_string(rank) + " on ");
  }
  ASSERT_NE(noted, std::string::npos) << run.output().substr(run.output().size() > 2000 ? run.output().size() - 2000
                                                                                        : 0);
  EXPECT_NE(run.output().find("is slow: the others wait for it ", noted), std::string::npos);
  EXPECT_EQ(run.output().find("error["), std::string::npos);
  EXPECT_EQ(run.ranks().size(), size_t(kRanks));
  ::kill(run.pid(), SIGTERM);
  const e2e::Result r = run.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("rank 2 was the slowest"), std::string::npos) << r.output.substr(r.output.size() - 2000);
  w.expectNothingLeft("at the end");
}

}  // namespace

// Killed at any moment and resumed, a run ends with the same bits; a failed save loses nothing.
#include "tests/support/harness.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

const std::string kShim = std::string(GPTC_BIN_DIR) + "/../lib/libkill_shim.so";

struct KillTest : ::testing::Test {
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the preloaded shim and the address sanitizer exclude each other";
#endif
    plan = w.compile("plan", {steps});
    ASSERT_EQ(run("first").code, 0);  // compiles the kernels
    auto start = std::chrono::steady_clock::now();
    Result r = run("whole", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_COUNTS", w.path("counts")}});
    wholeSeconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ASSERT_EQ(r.code, 0) << r.output;
    whole = w.finalState(w.path("whole"));
    ASSERT_EQ(w.checkpoints(w.path("whole")), (std::vector<std::string>{"step-00000012", "step-00000015"}));
    std::istringstream counts(readFile(w.path("counts")));
    counts >> writes >> fsyncs >> renames;
  }
  Result run(const std::string &out, const std::map<std::string, std::string> &env = {}) {
    return w.gptrun({plan, "--out-dir", w.path(out)}, env);
  }

  /// Resumes and compares with the run that nobody disturbed.
  void finish(const std::string &out, const std::string &when) {
    Result r = run(out);
    EXPECT_EQ(r.code, 0) << when << "\n" << r.output;
    EXPECT_EQ(r.output.find("damaged"), std::string::npos) << when << ": a kill must not leave a damaged checkpoint\n"
                                                           << r.output;
    EXPECT_TRUE(w.finalState(w.path(out)) == whole) << when << ": other bits";
    EXPECT_EQ(logLines(w.path(out)), logLines(w.path("whole"))) << when;
    EXPECT_EQ(w.checkpoints(w.path(out)), w.checkpoints(w.path("whole"))) << when << ": leftovers";
    for (const char *link : {"/checkpoints/latest", "/checkpoints/best"})
      EXPECT_EQ(fs::read_symlink(w.path(out) + link), fs::read_symlink(w.path("whole") + link)) << when << link;
    fs::remove_all(w.path(out));
  }

  Workplace w;
  const std::string steps = "train.steps=15";  // five checkpoints
  std::string plan, whole;
  double wholeSeconds = 0;
  int writes = 0, fsyncs = 0, renames = 0;
};

TEST_F(KillTest, FortyMoments) {
  // Five checkpoints of 5 files, and at least five moments of each kind inside them, spread over the run.
  ASSERT_GE(writes, 5 * 20);
  ASSERT_EQ(fsyncs, 5 * 8);  // five files, state/, the folder, the one above
  ASSERT_EQ(renames,
            2 * 5 + 3 + 3);  // each checkpoint and the link to it, to each that is better, each that is removed
  std::vector<std::string> moments;
  for (int i = 0; i < 8; ++i)
    moments.push_back("write:" + std::to_string(1 + i * (writes - 1) / 7));
  for (int i = 0; i < 10; ++i)
    moments.push_back("fsync:" + std::to_string(1 + i * (fsyncs - 1) / 9));
  for (int i = 1; i <= renames; ++i)
    moments.push_back("rename:" + std::to_string(i));
  gptc::test::OneIn some(5);
  for (const std::string &at : moments) {
    if (some.skips())
      continue;
    Result r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", at}});
    EXPECT_EQ(r.signal, SIGKILL) << at << "\n" << r.output;
    finish("out", at);
  }
  // And anywhere: while starting, compiling, computing, evaluating.
  for (int i = 0; moments.size() + i < 40; ++i) {
    if (some.skips())
      continue;
    double seconds = wholeSeconds * (i + 0.5) / (40 - moments.size());
    Result r;
    for (int tries = 0; tries < 10 && r.signal != SIGKILL; ++tries, seconds *= 0.8) {
      fs::remove_all(w.path("out"));
      Process p = w.start("gptrun", {plan, "--out-dir", w.path("out")});
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      ::kill(p.pid(), SIGKILL);
      r = p.wait();  // it may have been done before: then again, sooner
    }
    EXPECT_EQ(r.signal, SIGKILL) << "moment " << i << "\n" << r.output;
    finish("out", "moment " + std::to_string(i));
  }
}

TEST_F(KillTest, KilledAgainAndAgain) {
  for (const char *at : {"write:30", "fsync:4", "write:2", "rename:1", "fsync:5", "write:40"}) {
    Result r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", at}});
    EXPECT_EQ(r.signal, SIGKILL) << at << "\n" << r.output;
  }
  finish("out", "six kills in one run");
}

TEST_F(KillTest, AFullDiskStopsTrainingAndLosesNothing) {
  // Each in the second checkpoint or later: the first must stay.
  for (auto [at, what] : {std::pair("write:" + std::to_string(writes / 5 + 30), "enospc"),
                          {std::string("fsync:12"), "edquot"},
                          {std::string("rename:3"), "enospc"}}) {
    Result r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", at}, {"GPTC_TEST_DO", what}});
    EXPECT_EQ(r.code, 4) << at << "\n" << r.output;
    EXPECT_NE(r.output.find("error[GPTC0402]"), std::string::npos) << r.output;
    std::vector<std::string> left = w.checkpoints(w.path("out"));
    EXPECT_FALSE(left.empty());
    for (const std::string &name : left)
      EXPECT_EQ(name.rfind("step-", 0), 0u) << "half a checkpoint stayed: " << name;
    finish("out", at);
  }
}

// A run needs no links.
TEST_F(KillTest, AFullDiskMayCostALink) {
  for (const char *at : {"rename:2", "rename:5"}) {
    const Result r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", at}, {"GPTC_TEST_DO", "enospc"}});
    EXPECT_EQ(r.code, 0) << at << "\n" << r.output;
    EXPECT_NE(r.output.find("note: without links to the newest and the best checkpoint: "), std::string::npos)
        << r.output;
    EXPECT_TRUE(w.finalState(w.path("out")) == whole) << at;
    EXPECT_EQ(fs::read_symlink(w.path("out/checkpoints/latest")), "step-00000015");
    EXPECT_EQ(fs::read_symlink(w.path("out/checkpoints/best")), "step-00000015");
    EXPECT_EQ(std::distance(fs::directory_iterator(w.path("out/checkpoints")), fs::directory_iterator()), 4);
    fs::remove_all(w.path("out"));
  }
}

TEST_F(KillTest, TheOnlyGoodCheckpointIsNeverRemoved) {
  // With keep = 1, killed between a save and the removal of the one before; then the newer one is damaged.
  plan = w.compile("keep1", {"checkpoint.keep=1", steps});
  Result r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", "rename:6"}});
  EXPECT_EQ(r.signal, SIGKILL);
  ASSERT_EQ(w.checkpoints(w.path("out")), (std::vector<std::string>{"step-00000003", "step-00000006"}));
  writeFile(w.path("out/checkpoints/step-00000006/model.safetensors"), "gone");
  r = run("out", {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", "write:1"}});  // killed before it saves again
  EXPECT_EQ(r.signal, SIGKILL);
  r = run("out");
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("resumed from " + w.path("out/checkpoints/step-00000003")), std::string::npos) << r.output;
  EXPECT_TRUE(w.finalState(w.path("out")) == whole);
}

TEST_F(KillTest, DamagedNewestCheckpointFallsBack) {
  for (const char *name : {"model.safetensors", "state/optimizer.safetensors", "manifest.json"}) {
    ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("out"), "--steps", "9"}).code, 0);
    std::string file = w.path("out/checkpoints/step-00000009/") + name, text = readFile(file);
    text[text.size() / 2] ^= 4;
    writeFile(file, text);
    Result r = run("out");
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("step-00000009"), std::string::npos) << r.output;
    EXPECT_NE(r.output.find("resumed from " + w.path("out/checkpoints/step-00000006")), std::string::npos) << r.output;
    EXPECT_TRUE(fs::exists(w.path("out/checkpoints/damaged-step-00000009")))
        << "kept for inspection, but out of the way";
    fs::remove_all(w.path("out/checkpoints/damaged-step-00000009"));
    EXPECT_TRUE(w.finalState(w.path("out")) == whole);
    EXPECT_EQ(logLines(w.path("out")), logLines(w.path("whole")));
    fs::remove_all(w.path("out"));
  }
}

/// The last step that stands in a run's log.
int stepsLogged(const std::string &out) {
  int last = 0;
  for (const std::string &line : logLines(out))
    last = std::max(last, std::atoi(line.c_str() + std::strlen("step=")));
  return last;
}

// A disk that takes two seconds for the first checkpoint.
TEST_F(KillTest, StepsGoOnWhileACheckpointIsWritten) {
  for (const bool async : {true, false}) {
    const std::string name = async ? "async" : "waiting";
    plan = w.compile(name, {steps, "checkpoint.async=" + std::string(async ? "true" : "false")});
    Process p = w.start("gptrun", {plan, "--out-dir", w.path("out-" + name)},
                        {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", "fsync:1"}, {"GPTC_TEST_DO", "sleep"}});
    int reached = 0;  // with the first checkpoint under way
    auto steps = [&] { return w.checkpoints(w.path("out-" + name)); };
    while (!p.hasEnded()) {
      const int now = stepsLogged(w.path("out-" + name));
      const std::vector<std::string> saved = steps();
      if (!saved.empty() && saved.back().rfind("step-", 0) == 0)
        break;
      reached = std::max(reached, now);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const Result r = p.wait();
    EXPECT_EQ(r.code, 0) << r.output;
    // The next one, of step 6, waits for it.
    EXPECT_EQ(reached, async ? 6 : 3) << name;
    EXPECT_TRUE(w.finalState(w.path("out-" + name)) == whole) << name;
    EXPECT_EQ(w.checkpoints(w.path("out-" + name)), w.checkpoints(w.path("whole")));
  }
}

TEST_F(KillTest, WhatIsUnderWayAtTheEndIsComplete) {
  // Stopped while the checkpoint of step 3 is slow.
  Process p = w.start("gptrun", {plan, "--out-dir", w.path("out")},
                      {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", "fsync:1"}, {"GPTC_TEST_DO", "sleep"}});
  while (!p.hasEnded() && stepsLogged(w.path("out")) < 4)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(p.pid(), SIGTERM);
  const Result r = p.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  const std::vector<std::string> left = w.checkpoints(w.path("out"));
  ASSERT_EQ(left.size(), 2u) << r.output;
  EXPECT_EQ(left[0].rfind("step-", 0), 0u) << "half a checkpoint is left: " << left[0];
  finish("out", "stopped while saving");
}

/// Several ranks, one of which has bad luck: the others learn of it, and the checkpoint before is there.
TEST_F(KillTest, AnyOfSeveralRanks) {
  const std::vector<std::string> settings = {steps, "train.micro_batch=1", "parallel.logical_shards=4"};
  whole.clear();
  gptc::test::OneIn some(5);
  for (const char *async : {"true", "false"}) {
    std::vector<std::string> all = settings;
    for (const char *more : {"parallel.data=4", "parallel.zero_stage=1"})
      all.push_back(more);
    all.push_back(std::string("checkpoint.async=") + async);
    plan = w.compile(std::string("ranks-") + async, all);
    const std::string quiet = std::string("quiet-") + async;
    Result q = run(quiet);
    ASSERT_EQ(q.code, 0) << q.output;
    const std::string state = w.finalState(w.path(quiet));
    EXPECT_TRUE(whole.empty() || state == whole);
    whole = state;
    fs::remove_all(w.path("whole"));
    fs::rename(w.path(quiet), w.path("whole"));
    // But for the write, in the second checkpoint. Rank 0 fsyncs its two files, the index, the two that describe the
    // model, state/, the manifest and two folders; others their two files. It renames a checkpoint, then the link to
    // it.
    for (const auto &[rank, at] : {std::pair{"2", "write:7"},
                                   {"2", "fsync:3"},
                                   {"3", "fsync:4"},
                                   {"0", "fsync:10"},
                                   {"0", "fsync:12"},
                                   {"0", "fsync:15"},
                                   {"0", "fsync:16"},
                                   {"0", "rename:3"}})
      for (const char *what : {"kill", "enospc"}) {
        if ((*async == 'f' && !gptc::test::everything()) || some.skips())
          continue;
        const std::string when = fmt::format("{} of rank {}, {}, async {}", at, rank, what, async);
        Result r =
            w.gptrun({plan, "--out-dir", w.path("out"), "--restarts", "0"},
                     {{"LD_PRELOAD", kShim}, {"GPTC_TEST_AT", at}, {"GPTC_TEST_RANK", rank}, {"GPTC_TEST_DO", what}});
        EXPECT_EQ(r.code, *what == 'k' ? 6 : 4) << when << "\n" << r.output;
        EXPECT_NE(r.output.find(*what == 'k' ? "error[GPTC0601]" : "error[GPTC0402]"), std::string::npos)
            << when << "\n"
            << r.output;
        EXPECT_TRUE(*at == 'w' || fs::exists(w.path("out/checkpoints/step-00000003"))) << when;
        finish("out", when);
      }
    // Rank 0 gives up, and removes the folder, before another has begun to write: what went wrong is still what is
    // said.
    const std::string when = fmt::format("rank 0 fails before rank 1 writes, async {}", async);
    Result r = w.gptrun({plan, "--out-dir", w.path("out"), "--restarts", "0"}, {{"LD_PRELOAD", kShim},
                                                                                {"GPTC_TEST_AT", "fsync:10"},
                                                                                {"GPTC_TEST_RANK", "0"},
                                                                                {"GPTC_TEST_DO", "enospc"},
                                                                                {"GPTC_TEST_LATE", "1"}});
    EXPECT_EQ(r.code, 4) << when << "\n" << r.output;
    EXPECT_NE(r.output.find("error[GPTC0402]"), std::string::npos) << when << "\n" << r.output;
    EXPECT_EQ(r.output.find("No such file"), std::string::npos) << when << "\n" << r.output;
    finish("out", when);
  }
}

}  // namespace

// Same plan, same bits: whatever the number of threads, the cut of the global batch, or interruptions.
#include "tests/support/eventually.h"
#include "tests/support/harness.h"

#include <csignal>
#include <filesystem>
#include <regex>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

struct SameBits : ::testing::Test {
  Workplace w;
};

TEST_F(SameBits, TwoRunsAndAnyNumberOfThreads) {
  std::string plan = w.compile("plan");
  std::string first = w.train(plan, "a", {"--threads", "1"});
  EXPECT_TRUE(first == w.train(plan, "b", {"--threads", "1"})) << "two runs differ";
  EXPECT_TRUE(first == w.train(plan, "c", {"--threads", "2"})) << "1 and 2 threads differ";
  EXPECT_TRUE(first == w.train(plan, "d", {"--threads", "3"})) << "1 and 3 threads differ";
  EXPECT_TRUE(first == w.train(plan, "e", {"--threads", "64"})) << "1 and 64 threads differ";
  EXPECT_EQ(logLines(w.path("a")), logLines(w.path("c")));
  EXPECT_EQ(logLines(w.path("a")).size(), 12u + 2u);
}

TEST_F(SameBits, TheSeedMatters) {
  std::string one = w.train(w.compile("plan", {"train.seed=1"}), "a"),
              two = w.train(w.compile("plan", {"train.seed=2"}), "b");
  EXPECT_FALSE(one == two);
}

TEST_F(SameBits, AnyMicroBatch) {
  // Evaluation of the whole split (19 windows: no whole number of batches), then of some.
  for (const char *steps : {"eval.steps=0", "eval.steps=3"}) {
    std::string whole = w.train(w.compile("plan4", {"train.micro_batch=4", steps}), std::string("out4") + steps);
    for (const char *micro : {"1", "2"}) {
      std::string name = std::string("out") + micro + steps;
      std::string cut =
          w.train(w.compile(std::string("plan") + micro, {std::string("train.micro_batch=") + micro, steps}), name);
      EXPECT_TRUE(whole == cut) << "micro-batch " << micro << " differs from 4";
      // Losses and norms too, of training and validation, not only what they lead to.
      EXPECT_EQ(logLines(w.path(std::string("out4") + steps)), logLines(w.path(name)));
    }
  }
}

// Masked tokens are counted over the step and drawn by the sequence's number.
TEST_F(SameBits, AnyMicroBatchOfAnEncoder) {
  const std::vector<std::string> encoder = {"model.causal=false", "model.vocab_size=65", "eval.steps=0"};
  auto with = [&](const char *micro) {
    std::vector<std::string> s = encoder;
    s.push_back(std::string("train.micro_batch=") + micro);
    return s;
  };
  std::string whole = w.train(w.compile("plan4", with("4")), "out4"),
              cut = w.train(w.compile("plan1", with("1")), "out1");
  EXPECT_TRUE(whole == cut);
  EXPECT_EQ(logLines(w.path("out4")), logLines(w.path("out1")));
  EXPECT_EQ(w.gptrun({w.path("plan4"), "--out-dir", w.path("out4")}).code, 0);
}

TEST_F(SameBits, StoppingAndGoingOn) {
  std::string plan = w.compile("plan");
  std::string whole = w.train(plan, "whole");
  w.train(plan, "parts", {"--steps", "2"});
  w.train(plan, "parts", {"--steps", "7", "--resume", "must"});
  EXPECT_TRUE(whole == w.train(plan, "parts"));
  EXPECT_EQ(logLines(w.path("whole")), logLines(w.path("parts")));
  // Once more: nothing is left to do.
  Result again = w.gptrun({plan, "--out-dir", w.path("parts")});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("complete"), std::string::npos) << again.output;
}

TEST_F(SameBits, SignalsSaveAndExit) {
  std::string plan = w.compile("plan", {"train.steps=100000", "checkpoint.every=0", "eval.every=0", "log.every=1"});
  for (int signal : {SIGTERM, SIGINT}) {
    std::string out = w.path(std::string("out") + std::to_string(signal));
    Process p = w.start("gptrun", {plan, "--out-dir", out});
    ASSERT_TRUE(gptc::test::eventually([&] { return logLines(out).size() >= 3; }));
    ::kill(p.pid(), signal);
    Result r = p.wait();
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_TRUE(std::regex_search(r.output, std::regex("(finishing|stopping after) step [0-9]+, saving; once more")))
        << r.output;
    std::vector<std::string> saved = w.checkpoints(out);
    ASSERT_EQ(saved.size(), 1u) << r.output;
    // Going on for three steps equals a run without the interruption.
    int64_t step = std::stoll(saved[0].substr(5));
    std::string steps = std::to_string(step + 3), other = out + "-whole";
    ASSERT_EQ(w.gptrun({plan, "--out-dir", out, "--steps", steps}).code, 0);
    ASSERT_EQ(w.gptrun({plan, "--out-dir", other, "--steps", steps}).code, 0);
    EXPECT_TRUE(w.finalState(out) == w.finalState(other));
  }
}

TEST_F(SameBits, OneRunPerFolder) {
  std::string plan = w.compile("plan", {"train.steps=100000", "checkpoint.every=0", "eval.every=0"});
  Process p = w.start("gptrun", {plan});
  ASSERT_TRUE(gptc::test::eventually([&] { return !logLines(w.path("out")).empty(); }));
  Result second = w.gptrun({plan});
  EXPECT_EQ(second.code, 4);
  EXPECT_NE(second.output.find("another run"), std::string::npos) << second.output;
  ::kill(p.pid(), SIGTERM);
  EXPECT_EQ(p.wait().code, 0);
}

}  // namespace

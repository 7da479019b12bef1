// gptrun with several ranks: processes that meet, and whose run cannot be told from that of one.
#include "harness.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <unistd.h>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

struct RanksTest : ::testing::Test {
  Result run(const std::string &plan, const std::string &out, int ranks, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {plan, "--out-dir", w.path(out), "--ranks-per-node", std::to_string(ranks)};
    args.insert(args.end(), more.begin(), more.end());
    return w.gptrun(args);
  }
  std::string stateAfter(const std::string &plan, const std::string &out, int ranks) {
    Result r = run(plan, out, ranks);
    EXPECT_EQ(r.code, 0) << out << "\n" << r.output;
    return w.finalState(w.path(out));
  }
  std::string compile(const std::string &name, std::vector<std::string> more = {}) {
    std::vector<std::string> settings = {"train.micro_batch=1", "parallel.logical_shards=4"};
    settings.insert(settings.end(), more.begin(), more.end());
    return w.compile(name, settings);
  }
  Workplace w;
};

TEST_F(RanksTest, OneTwoAndFourGiveTheSameBitsInEveryStage) {
  const std::string one = compile("one");
  const std::string expected = stateAfter(one, "alone", 1);
  ASSERT_FALSE(expected.empty());
  const std::vector<std::string> lines = logLines(w.path("alone"));
  for (int stage : {0, 1, 2, 3})
    for (int ranks : {2, 4}) {
      const std::string name = "zero" + std::to_string(stage) + "-" + std::to_string(ranks);
      const std::string plan =
          compile(name, {"parallel.zero_stage=" + std::to_string(stage), "parallel.data=" + std::to_string(ranks)});
      EXPECT_TRUE(stateAfter(plan, "out-" + name, ranks) == expected) << name;
      EXPECT_EQ(logLines(w.path("out-" + name)), lines) << name;
    }
}

// Over TCP collectives go on beside computation: a plan without accumulation has some to compute meanwhile.
TEST_F(RanksTest, OverANetworkToo) {
  const std::string one = compile("one");
  const std::string expected = stateAfter(one, "alone", 1);
  for (int stage : {0, 1, 3}) {
    const std::string name = "zero" + std::to_string(stage);
    const std::string plan = compile(name, {"parallel.data=4", "parallel.zero_stage=" + std::to_string(stage)});
    const Result r =
        w.gptrun({plan, "--out-dir", w.path("out-" + name), "--ranks-per-node", "4"}, {{"GPTC_INTERFACE", "lo"}});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_TRUE(w.finalState(w.path("out-" + name)) == expected) << name;
  }
}

TEST_F(RanksTest, APlanForOneIsMadeAnewForMoreAndBack) {
  const std::string one = compile("one", {"precision.compute=bf16"});
  const std::string expected = stateAfter(one, "alone", 1);
  Result r = run(one, "two", 2);
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("the plan is for 1 rank: making one for 2"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("2 ranks share each batch: ZeRO stage 1"), std::string::npos) << r.output;
  EXPECT_TRUE(w.finalState(w.path("two")) == expected);
  const std::string four = compile("four", {"precision.compute=bf16", "parallel.data=4"});
  EXPECT_TRUE(stateAfter(four, "back", 1) == expected);
}

TEST_F(RanksTest, ACheckpointGoesOnOnAnyNumberOfRanks) {
  const std::string one = compile("one");
  const std::string expected = stateAfter(one, "alone", 1);
  for (int ranks : {4, 2, 1}) {
    const std::string out = "resumed-" + std::to_string(ranks);
    Result r = run(one, out, 4, {"--steps", "5"});
    ASSERT_EQ(r.code, 0) << r.output;
    ASSERT_FALSE(w.finalState(w.path(out)) == expected);
    EXPECT_TRUE(stateAfter(one, out, ranks) == expected) << ranks;
  }
}

/// Where others have started the ranks, rank 0 must let the rest in. (tests/faults has a real Slurm.)
TEST_F(RanksTest, UnderTorchrunAndMpirun) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  const std::string expected = stateAfter(plan, "launched", 2);
  const std::string port = std::to_string(20000 + ::getpid() % 10000);
  for (const bool torch : {true, false}) {
    auto env = [&](const char *rank) {
      return torch ? std::map<std::string, std::string>{{"RANK", rank},
                                                        {"WORLD_SIZE", "2"},
                                                        {"LOCAL_RANK", rank},
                                                        {"LOCAL_WORLD_SIZE", "2"},
                                                        {"MASTER_ADDR", "127.0.0.1"},
                                                        {"MASTER_PORT", port}}
                   : std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", rank},
                                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                                        {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                        {"PMIX_NAMESPACE", "test-" + port}};
    };
    const std::string out = torch ? "torchrun" : "mpirun";
    const std::vector<std::string> args = {plan, "--out-dir", w.path(out)};
    Process other = w.start("gptrun", args, env("1"));
    const Result r = w.gptrun(args, env("0"));
    EXPECT_EQ(r.code, 0) << out << "\n" << r.output;
    EXPECT_NE(r.output.find("2 ranks share each batch"), std::string::npos) << r.output;
    const Result rest = other.wait();
    EXPECT_EQ(rest.code, 0) << out << "\n" << rest.output << readFile(w.path(out) + "/ranks/rank-0001.log");
    EXPECT_EQ(rest.output, "") << "one voice";
    EXPECT_TRUE(w.finalState(w.path(out)) == expected) << out;
  }
}

/// loss, norm and val_loss of all lines of a log.
std::vector<double> numbersOf(const std::string &out) {
  std::vector<double> all;
  for (const std::string &line : logLines(out))
    for (const char *key : {" loss=", "grad_norm=", "val_loss="})
      if (const size_t at = line.find(key); at != std::string::npos)
        all.push_back(std::strtod(line.c_str() + at + std::strlen(key), nullptr));
  return all;
}

// Ranks that share heads and features add in other orders than one does. How far the order moves results is seen on one
// rank, where the batch is one shard or four.
TEST_F(RanksTest, TensorParallelIsAsNearToOneRankAsAnotherOrderOfSums) {
  const std::vector<std::string> smooth = {"optimizer.eps=0.01"};  // AdamW magnifies no rounding
  stateAfter(compile("one", smooth), "alone", 1);
  stateAfter(w.compile("other", {"train.micro_batch=1", "optimizer.eps=0.01"}), "other", 1);
  const std::vector<double> one = numbersOf(w.path("alone")), other = numbersOf(w.path("other"));
  ASSERT_EQ(one.size(), other.size());
  ASSERT_GT(one.size(), 20u);
  double apart = 0x1p-22;  // a unit of the last place of what is logged, in f32
  for (size_t i = 0; i < one.size(); ++i)
    apart = std::max(apart, std::fabs(one[i] - other[i]) / one[i]);
  ASSERT_LT(apart, 1e-4);
  const std::string two = compile("two", {"optimizer.eps=0.01", "parallel.tensor=2"});
  const std::string expected = stateAfter(two, "out-two", 2);
  auto near = [&](const std::string &out) {
    const std::vector<double> got = numbersOf(w.path(out));
    ASSERT_EQ(got.size(), one.size()) << out;
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_LE(std::fabs(got[i] - one[i]) / one[i], 16 * apart) << out << ", number " << i;
  };
  near("out-two");
  // Ranks along data change no bit of it.
  for (int stage : {1, 3}) {
    const std::string name = "four" + std::to_string(stage);
    const std::string four = compile(name, {"optimizer.eps=0.01", "parallel.tensor=2", "parallel.data=2",
                                            "parallel.zero_stage=" + std::to_string(stage)});
    EXPECT_TRUE(stateAfter(four, "out-" + name, 4) == expected) << stage;
    EXPECT_EQ(logLines(w.path("out-" + name)), logLines(w.path("out-two"))) << stage;
  }
  // A checkpoint is of no mesh. From tensor to data x tensor not even a bit changes.
  for (const auto &[first, ranks] : {std::pair<std::string, int>{two, 2}, {two, 4}}) {
    const std::string out = "resumed-" + std::to_string(ranks);
    Result r = run(first, out, 2, {"--steps", "5"});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_TRUE(stateAfter(first, out, ranks) == expected) << ranks;
  }
  for (const auto &[name, begin, beginRanks, end, endRanks] :
       {std::tuple<std::string, std::string, int, std::string, int>{"narrow", two, 2, w.path("one"), 1},
        {"widen", w.path("one"), 1, two, 2}}) {
    Result r = run(begin, name, beginRanks, {"--steps", "5"});
    ASSERT_EQ(r.code, 0) << r.output;
    stateAfter(end, name, endRanks);
    near(name);
  }
}

TEST_F(RanksTest, RanksThatDoNotFormGroupsAreOneError) {
  const std::string two = compile("two", {"parallel.tensor=2"});
  Result r = run(two, "three", 3);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("3 ranks do not divide into groups of parallel.tensor = 2"), std::string::npos) << r.output;
}

TEST_F(RanksTest, WhatDoesNotDivideIsOneError) {
  const std::string one = w.compile("one", {"train.micro_batch=1"});
  Result r = run(one, "eight", 8);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("does not divide by 8 ranks"), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
}

}  // namespace

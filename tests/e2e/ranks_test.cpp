// gptrun with several ranks: processes that meet, and whose run cannot be told from that of one.
#include "harness.h"

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

TEST_F(RanksTest, WhatDoesNotDivideIsOneError) {
  const std::string one = w.compile("one", {"train.micro_batch=1"});
  Result r = run(one, "eight", 8);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("does not divide by 8 ranks"), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
}

}  // namespace

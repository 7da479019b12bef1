// gptrun with several GPUs: a process for each, which meet, train, save and go on as one.
#include "standins.h"
#include "tests/support/harness.h"
#include "tests/support/port.h"
#include "tests/support/whole_run.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace gptc::test {
namespace {

using e2e::Process;
using e2e::Result;
namespace fs = std::filesystem;

class GptrunRanksTest : public testing::Test {
protected:
  static void SetUpTestSuite() { useStandins(); }

  std::string compile(const std::string &name, std::vector<std::string> more = {}) {
    std::vector<std::string> settings = {"compile.target=cuda:sm_90a", "compile.library_calls=off",
                                         "train.micro_batch=1", "parallel.logical_shards=4",
                                         sized("train.steps=4", "train.steps=6")};
    settings.insert(settings.end(), more.begin(), more.end());
    return w.compile(name, settings);
  }
  Result run(const std::string &plan, const std::string &out, int ranks, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {plan, "--out-dir", w.path(out), "--ranks-per-node", std::to_string(ranks)};
    args.insert(args.end(), more.begin(), more.end());
    return w.gptrun(args);
  }
  std::string stateAfter(const std::string &plan, const std::string &out, int ranks) {
    const Result r = run(plan, out, ranks);
    EXPECT_EQ(r.code, 0) << out << "\n" << r.output;
    return w.finalState(w.path(out));
  }
  e2e::Workplace w;
};

TEST_F(GptrunRanksTest, TwoAndFourGiveTheBitsOfOne) {
  const std::string one = compile("one", {"parallel.zero_stage=1"});
  const std::string expected = stateAfter(one, "alone", 1);
  ASSERT_FALSE(expected.empty());
  const std::vector<std::string> lines = e2e::logLines(w.path("alone"));
  for (int ranks : everything() ? std::vector{2, 4} : std::vector{2}) {
    const std::string out = fmt::format("out-{}", ranks);
    const Result r = run(one, out, ranks);
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(fmt::format("the plan is for 1 rank: making one for {}", ranks)), std::string::npos);
    EXPECT_NE(r.output.find(fmt::format("{} ranks share each batch: ZeRO stage 1", ranks)), std::string::npos)
        << r.output;
    EXPECT_TRUE(w.finalState(w.path(out)) == expected) << ranks;
    EXPECT_EQ(e2e::logLines(w.path(out)), lines);
  }
  const std::string three = compile("three", {"parallel.zero_stage=3", "parallel.data=2"});
  EXPECT_TRUE(stateAfter(three, "out-three", 2) == expected) << "stage 3";
  // A checkpoint belongs to no number of ranks.
  ASSERT_EQ(run(one, "resumed", 4, {"--steps", "3"}).code, 0);
  EXPECT_TRUE(stateAfter(one, "resumed", 2) == expected) << "resumed";
}

// Without matmul and attention no sum has another order than on the CPU.
TEST_F(GptrunRanksTest, WithoutMatmulTheyHaveTheBitsOfCpus) {
  std::string module = e2e::readFile(GPTC_SOURCE_DIR "/tests/simt/standin/bigram.gir");
  module.insert(module.find('{') + 1, "mesh_data=2, zero_stage=1, shards=2, reduce_order=\"tree\", ");
  e2e::writeFile(w.path("two.gir"), module);
  // The module knows 32 tokens.
  std::string tokens = e2e::readFile(w.path("train.bin"));
  for (size_t i = 0; i < tokens.size(); i += 2)
    tokens[i] = char(tokens[i] & 31);
  e2e::writeFile(w.path("small.bin"), tokens);
  std::string states[2];
  for (const char *target : {"cpu", "cuda:sm_90a"}) {
    const std::string name = target == std::string("cpu") ? "on-cpus" : "on-gpus";
    Result r = w.gptc({"compile", w.path("two.gir"), "--target", target, "--set", "data.train=" + w.path("small.bin"),
                       "-o", w.path(name + ".plan")});
    ASSERT_EQ(r.code, 0) << r.output;
    r = run(w.path(name + ".plan"), name, 2);
    ASSERT_EQ(r.code, 0) << r.output;
    states[name == "on-gpus"] = w.finalState(w.path(name));
  }
  ASSERT_FALSE(states[0].empty());
  EXPECT_TRUE(states[0] == states[1]);
}

TEST_F(GptrunRanksTest, ShareLayers) {
  const std::string plan = compile("plan", {"parallel.data=2", "parallel.tensor=2", "parallel.logical_shards=2"});
  const Result r = run(plan, "four", 4);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("2 groups of 2 share each batch"), std::string::npos) << r.output;
  EXPECT_FALSE(w.finalState(w.path("four")).empty());
}

// A launcher may show each rank a GPU of its own, which then has number 0; or all of them to all.
TEST_F(GptrunRanksTest, RanksOfOtherLaunchersFindTheirGpus) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  const std::string expected = stateAfter(plan, "launched", 2);
  for (const bool own : everything() ? std::vector{true, false} : std::vector{true}) {
    const Port held;
    const std::string port = std::to_string(held.number()), out = own ? "own" : "shared";
    auto env = [&](const char *rank) {
      std::map<std::string, std::string> e = {{"RANK", rank},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", rank},
                                              {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", port}};
      if (own)
        e["CUDA_VISIBLE_DEVICES"] = rank;
      return e;
    };
    const std::vector<std::string> args = {plan, "--out-dir", w.path(out)};
    Process other = w.start("gptrun", args, env("1"));
    const Result r = w.gptrun(args, env("0"));
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(other.wait().code, 0) << e2e::readFile(w.path(out) + "/ranks/rank-0001.log");
    EXPECT_TRUE(w.finalState(w.path(out)) == expected) << out;
  }
}

/// Processes that this one has started.
std::vector<int> childrenOf(int pid) {
  std::vector<int> all;
  std::ifstream in(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (int child; in >> child;)
    all.push_back(child);
  return all;
}

// Within a machine NCCL may not notice a rank that is gone: whoever started it does.
TEST_F(GptrunRanksTest, ARankThatDiesIsStartedAgain) {
  const std::string plan =
      compile("plan", {"parallel.data=2", "parallel.logical_shards=2", "train.micro_batch=2", "train.steps=9"});
  const std::string expected = stateAfter(plan, "whole", 2);
  setenv("GPTC_STANDIN_SILENT", "1", 1);
  for (const int signal : everything() ? std::vector{SIGKILL, SIGSTOP} : std::vector{SIGKILL}) {
    const std::string out = signal == SIGKILL ? "killed" : "stopped";
    Process run = w.start("gptrun", {plan, "--out-dir", w.path(out), "--ranks-per-node", "2"});
    auto saved = [&] {
      const std::vector<std::string> all = w.checkpoints(w.path(out));
      return std::any_of(all.begin(), all.end(), [](const std::string &name) { return name.rfind("step-", 0) == 0; });
    };
    while (!saved() && !run.hasEnded())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::vector<int> ranks = childrenOf(run.pid());
    ASSERT_EQ(ranks.size(), 2u);
    ::kill(ranks[1], signal);
    const Result r = run.wait();
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("resumed from"), std::string::npos) << r.output;
    EXPECT_TRUE(w.finalState(w.path(out)) == expected) << out << "\n" << r.output;
  }
  unsetenv("GPTC_STANDIN_SILENT");
}

}  // namespace
}  // namespace gptc::test

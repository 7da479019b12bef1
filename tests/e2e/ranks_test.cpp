// gptrun with several ranks: processes that meet, and whose run cannot be told from that of one.
#include "harness.h"

#include <cmath>
#include <cstdlib>
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

/// One, two and four ranks in every stage, with one and with four micro-batches in each of four logical shards: the
/// same weights, moments and losses. GPTC_STEPS=50 asks for more steps, and that checkpoints of all of these go on
/// elsewhere.
struct Identity : RanksTest, ::testing::WithParamInterface<int> {
  const char *const asked = std::getenv("GPTC_STEPS");
  const int steps = asked ? std::atoi(asked) : 6, stage = GetParam();

  std::string compileFor(int ranks, int microBatch) {
    return compile("zero" + std::to_string(stage) + "-" + std::to_string(ranks) + "-" + std::to_string(microBatch),
                   {"train.global_batch_tokens=256", "train.micro_batch=" + std::to_string(microBatch),
                    "train.steps=" + std::to_string(steps),
                    "checkpoint.every=" + std::to_string(std::max(3, steps / 5)),
                    "parallel.data=" + std::to_string(ranks), "parallel.zero_stage=" + std::to_string(stage)});
  }
};
INSTANTIATE_TEST_SUITE_P(RanksTest, Identity, ::testing::Range(0, 4),
                         [](auto &info) { return "Zero" + std::to_string(info.param); });

TEST_P(Identity, OneTwoAndFourRanks) {
  const std::string expected = stateAfter(compileFor(1, 4), "alone", 1);
  ASSERT_FALSE(expected.empty());
  const std::vector<std::string> lines = logLines(w.path("alone"));
  ASSERT_GE(lines.size(), size_t(steps));
  for (const int microBatch : {4, 1})
    for (const int ranks : {1, 2, 4}) {
      const std::string out = "out-" + std::to_string(ranks) + "-" + std::to_string(microBatch);
      EXPECT_TRUE(stateAfter(compileFor(ranks, microBatch), out, ranks) == expected) << out;
      EXPECT_EQ(logLines(w.path(out)), lines) << out;
    }
  for (const int microBatch : {4, 1})
    for (const auto &[from, to] : {std::pair{4, 2}, {4, 1}, {1, 4}}) {
      if (microBatch == 1 && !asked)
        continue;
      const std::string out = "resumed-" + std::to_string(from) + std::to_string(to) + std::to_string(microBatch);
      Result r = run(compileFor(from, microBatch), out, from, {"--steps", std::to_string(steps / 2)});
      ASSERT_EQ(r.code, 0) << r.output;
      EXPECT_TRUE(stateAfter(compileFor(to, microBatch), out, to) == expected) << out;
      EXPECT_EQ(logLines(w.path(out)), lines) << out;
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

// What ranks write in several files, other programs read by its index, and so do we.
TEST_F(RanksTest, WeightsOfSeveralFilesAreReadByTheirIndex) {
  const std::string four = compile("four", {"parallel.data=4", "parallel.zero_stage=3"});
  ASSERT_EQ(run(four, "four-out", 4).code, 0);
  const std::string one = compile("one");
  ASSERT_EQ(run(one, "one-out", 1).code, 0);
  const std::string from = w.path("four-out/checkpoints/step-00000012"), weights = w.path("weights");
  fs::create_directories(weights);
  int files = 0;
  for (const auto &entry : fs::directory_iterator(from))
    if (const std::string name = entry.path().filename(); name.rfind("model", 0) == 0)
      fs::copy(entry.path(), weights + "/" + name), ++files;
  EXPECT_EQ(files, 5) << "of each rank, and the index";
  auto evaluated = [&](const Result &r) {
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output.substr(0, r.output.find('('));
  };
  const std::string expected = evaluated(w.gptrun({"eval", one, "--out-dir", w.path("one-out")}));
  EXPECT_EQ(evaluated(w.gptrun({"eval", one, "--out-dir", w.path("four-out")})), expected);
  const std::string hf = w.compile("hf", {"model.init_from=hf:" + weights});
  EXPECT_EQ(evaluated(w.gptrun({"eval", hf, "--out-dir", w.path("nothing")})), expected);
  fs::remove(weights + "/model-00003-of-00004.safetensors");
  EXPECT_EQ(w.gptrun({"eval", hf, "--out-dir", w.path("nothing")}).code, 3);
}

TEST_F(RanksTest, DivergenceIsExplainedByTheRankThatHasItFirst) {
  const std::string plan =
      compile("wild", {"parallel.data=2", "optimizer.lr=900", "train.grad_clip=0", "train.steps=100", "eval.every=0"});
  Result r = run(plan, "out", 2);
  EXPECT_EQ(r.code, 4) << r.output;
  const size_t at = r.output.find("the first value that is not finite: ");
  ASSERT_NE(at, std::string::npos) << r.output;
  EXPECT_NE(r.output.find(", on rank ", at), std::string::npos) << r.output;
  EXPECT_FALSE(w.finalState(w.path("out")).empty()) << "the last good state is kept";
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

// Two machines whose out_dir is a disk of their own: said before the first step.
TEST_F(RanksTest, RanksThatSeeOtherFilesSaySo) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  const std::string port = std::to_string(20000 + (::getpid() + 1) % 10000);
  auto env = [&](const char *rank) {
    return std::map<std::string, std::string>{{"RANK", rank},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", rank},
                                              {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", port}};
  };
  Process other = w.start("gptrun", {plan, "--out-dir", w.path("there")}, env("1"));
  const Result r = w.gptrun({plan, "--out-dir", w.path("here")}, env("0"));
  const Result rest = other.wait();
  EXPECT_EQ(rest.code, 3) << rest.output;
  EXPECT_NE(r.code, 0) << r.output;
  const std::string words = r.output + rest.output + readFile(w.path("there/ranks/rank-0001.log"));
  EXPECT_NE(words.find("rank 1 does not see the files that rank 0 writes in " + w.path("there")), std::string::npos)
      << words;
  EXPECT_TRUE(w.checkpoints(w.path("here")).empty());
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
    const Result r = run(four, "out-" + name, 4);
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find(" was the slowest: the others waited for it "), std::string::npos) << r.output;
    EXPECT_TRUE(w.finalState(w.path("out-" + name)) == expected) << stage;
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

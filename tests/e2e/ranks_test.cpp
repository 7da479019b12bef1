// gptrun with several ranks: processes that meet, and whose run cannot be told from that of one.
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tests/support/port.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sched.h>
#include <unistd.h>

using namespace e2e;
using gptc::test::Port;
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
      r = run(compileFor(to, microBatch), out, to);
      EXPECT_EQ(r.code, 0) << r.output;
      EXPECT_EQ(r.output.find("bits may differ"), std::string::npos) << r.output;
      EXPECT_TRUE(w.finalState(w.path(out)) == expected) << out;
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

// Between outer steps nothing goes between ranks. A run in parts is one run, over TCP too; its checkpoints have moments
// of each rank, and go on with as many.
TEST_F(RanksTest, MeetInOuterStepsAlone) {
  const std::vector<std::string> settings = {"train.steps=14", "train.micro_batch=1", "parallel.sync_every=3",
                                             "checkpoint.every=6"};
  std::vector<std::string> two = settings;
  two.push_back("parallel.data=2");
  const std::string plan = w.compile("outer", two), expected = stateAfter(plan, "whole", 2);
  EXPECT_NE(expected.find("outer.wte.weight"), std::string::npos);
  EXPECT_EQ(expected.find("anchor."), std::string::npos) << "what the weights are is kept twice";
  const std::vector<std::string> lines = logLines(w.path("whole"));
  Result r = run(plan, "parts", 2, {"--steps", "9"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("what 3 steps have moved added"), std::string::npos) << r.output;
  EXPECT_TRUE(stateAfter(plan, "parts", 2) == expected);
  EXPECT_EQ(logLines(w.path("parts")), lines);
  r = w.gptrun({plan, "--out-dir", w.path("tcp"), "--ranks-per-node", "2"}, {{"GPTC_INTERFACE", "lo"}});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(w.finalState(w.path("tcp")) == expected);
  r = run(plan, "odd", 2, {"--steps", "4"});
  EXPECT_EQ(r.code, 2) << r.output;
  EXPECT_NE(r.output.find("--steps 6 works"), std::string::npos) << r.output;
  r = run(plan, "parts", 1);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("2 ranks with moments of their own"), std::string::npos) << r.output;
  r = w.gptrun({"eval", plan, "--out-dir", w.path("parts")});
  EXPECT_EQ(r.code, 0) << r.output;
  // One rank, whose parameters an outer step moves, too; a plan for it is made anew for two.
  const std::string one = w.compile("one", settings);
  EXPECT_FALSE(stateAfter(one, "alone", 1) == expected);
  EXPECT_TRUE(stateAfter(one, "made-for-two", 2) == expected);
}

// What a rank leaves out of gradients is its own, and in its checkpoints. A run in parts is one run, whether it stops
// among the steps that send whole gradients or behind them, over TCP too.
TEST_F(RanksTest, SendFactorsOfGradients) {
  const std::vector<std::string> settings = {"train.steps=12",           "train.micro_batch=2",
                                             "checkpoint.every=6",       "parallel.compression=powersgd",
                                             "parallel.gradient_rank=1", "parallel.compress_from=4"};
  std::vector<std::string> two = settings;
  two.push_back("parallel.data=2");
  const std::string plan = w.compile("factors", two), expected = stateAfter(plan, "whole", 2);
  EXPECT_NE(expected.find("error.wte.weight"), std::string::npos);
  EXPECT_NE(expected.find("factor.wte.weight"), std::string::npos);
  const std::vector<std::string> lines = logLines(w.path("whole"));
  const std::vector<std::string> whole = {"train.steps=12", "train.micro_batch=2", "checkpoint.every=6",
                                          "parallel.data=2", "parallel.zero_stage=0"};
  stateAfter(w.compile("no-factors", whole), "none", 2);
  const std::vector<std::string> others = logLines(w.path("none"));
  ASSERT_GT(std::min(lines.size(), others.size()), 5u);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(lines[i], others[i]) << "steps that send whole gradients";
  EXPECT_NE(lines[4], others[4]) << "the norm is that of what factors are of";
  for (const char *steps : {"3", "7"}) {
    const Result r = run(plan, "parts", 2, {"--steps", steps});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("gradients of rank 1 added"), std::string::npos) << r.output;
  }
  EXPECT_TRUE(stateAfter(plan, "parts", 2) == expected);
  EXPECT_EQ(logLines(w.path("parts")), lines);
  Result r = w.gptrun({plan, "--out-dir", w.path("tcp"), "--ranks-per-node", "2"}, {{"GPTC_INTERFACE", "lo"}});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(w.finalState(w.path("tcp")) == expected);
  r = run(plan, "parts", 1);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("2 ranks with moments of their own"), std::string::npos) << r.output;
  r = run(plan, "certified", 2, {"--certify", "5"});
  EXPECT_NE(r.code, 0) << r.output;
  r = w.gptrun({"eval", plan, "--out-dir", w.path("parts")});
  EXPECT_EQ(r.code, 0) << r.output;
  // One rank sends nothing; a plan for it is made anew for two.
  const std::string one = w.compile("one", settings);
  EXPECT_EQ(stateAfter(one, "alone", 1).find("error."), std::string::npos);
  EXPECT_TRUE(stateAfter(one, "made-for-two", 2) == expected);
  // With micro-batches the step ends in another function.
  two.push_back("train.global_batch_tokens=256");
  EXPECT_NE(stateAfter(w.compile("accumulated", two), "micro", 2).find("error.wte.weight"), std::string::npos);
}

// The step that is taken back has changed what ranks keep of gradients: no checkpoint has that.
TEST_F(RanksTest, ADivergedStepOfFactorsIsNotSaved) {
  for (const bool compressed : {false, true}) {
    std::vector<std::string> settings = {"train.steps=40",        "train.micro_batch=2", "parallel.data=2",
                                         "parallel.zero_stage=0", "optimizer.lr=900",    "train.grad_clip=0",
                                         "eval.every=0",          "checkpoint.every=0"};
    if (compressed)
      for (const char *s : {"parallel.compression=powersgd", "parallel.gradient_rank=1", "parallel.compress_from=0"})
        settings.push_back(s);
    const std::string name = compressed ? "factors" : "gradients";
    const Result r = run(w.compile(name + ".plan", settings), name, 2);
    EXPECT_NE(r.output.find("not finite"), std::string::npos) << r.output;
    EXPECT_EQ(w.checkpoints(w.path(name)).empty(), compressed) << r.output;
  }
}

// Between outer steps only a rank itself sees that it skips a step; who reads rank 0 is told behind the next one.
TEST_F(RanksTest, RankZeroTellsOfStepsThatOthersSkip) {
  const std::string plan =
      w.compile("wild", {"train.steps=12", "train.micro_batch=1", "parallel.data=2", "parallel.sync_every=3",
                         "optimizer.lr=900", "train.grad_clip=0", "train.on_nonfinite=skip", "eval.every=0"});
  const Result r = run(plan, "out", 2);
  ASSERT_EQ(r.code, 0) << r.output;
  const std::string own = readFile(w.path("out/ranks/rank-0001.log"));
  auto skips = [&](int step) {
    const size_t at = own.find("\"step " + std::to_string(step) + ": loss ");
    return at != std::string::npos && own.substr(at, own.find('\n', at) - at).find("; skipped") != std::string::npos;
  };
  int total = 0;
  for (int step = 3; step <= 12; step += 3) {
    const int count = skips(step - 2) + skips(step - 1) + skips(step);
    const std::string said = "step " + std::to_string(step) + ": rank 1 has skipped " + std::to_string(count) + " step";
    EXPECT_EQ(r.output.find(said) != std::string::npos, count > 0) << said << "\n" << r.output << own;
    const std::string any = "step " + std::to_string(step) + ": rank 1 has skipped ";
    EXPECT_EQ(r.output.find(any) != std::string::npos, count > 0) << any;
    total += count;
  }
  EXPECT_GT(total, 0) << own;
  EXPECT_EQ(own.find("rank 1 has skipped"), std::string::npos) << own;
}

// The largest magnitudes behind factors are those of the global batch, whoever has seen them.
TEST_F(RanksTest, EightBitsOnOneTwoAndFourRanks) {
  const std::vector<std::string> fp8 = {"precision.compute=bf16", "precision.fp8=all"};
  const std::string one = compile("one", fp8), expected = stateAfter(one, "alone", 1);
  EXPECT_NE(expected.find("amax."), std::string::npos);
  EXPECT_TRUE(stateAfter(one, "two", 2) == expected);
  EXPECT_TRUE(stateAfter(compile("four", {fp8[0], fp8[1], "parallel.data=4", "parallel.zero_stage=3"}), "four", 4) ==
              expected);
}

// The plan that a restart needs is there already, but not for another plan in its place.
TEST_F(RanksTest, APlanMadeAnewIsKept) {
  const std::string plan = compile("plan"), dir = w.path("out/plan-2-ranks");
  auto said = [&](const char *steps) {
    const Result r = run(plan, "out", 2, {"--steps", steps});
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("bits may differ") == std::string::npos, std::string(steps) != "8") << r.output;
    const size_t at = r.output.find("the plan is for 1 rank: "), to = r.output.find('\n', at);
    return at == std::string::npos ? r.output : r.output.substr(at + 24, to - at - 24);
  };
  const std::string made = "making one for 2 in " + dir, taken = "taking the one for 2 in " + dir;
  EXPECT_EQ(said("2"), made);
  EXPECT_EQ(said("4"), taken);
  compile("plan", {"eval.every=3"});
  EXPECT_EQ(said("6"), made) << "another run of the same model";
  compile("plan", {"eval.every=3", "optimizer.lr=0.002"});
  EXPECT_EQ(said("8"), made) << "another plan";
  writeFile(dir + "/joint.gir", "");
  EXPECT_EQ(said("10"), made) << "damaged";
}

// Who evaluates has one rank, whatever the plan was made for, and who samples has one if no ranks share layers.
TEST_F(RanksTest, APlanForSeveralIsEvaluatedAndSampledOnOne) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the cat sat on the mats. ";
  w.prepare(text, "char");
  ASSERT_FALSE(HasFailure());
  const std::vector<std::string> data = w.prepared();
  auto plan = [&](const std::string &name, std::vector<std::string> more) {
    more.insert(more.end(), data.begin(), data.end());
    return compile(name, more);
  };
  const std::string one = plan("one", {}), two = plan("two", {"parallel.data=2"}),
                    four = plan("four", {"parallel.data=2", "parallel.tensor=2"});
  ASSERT_EQ(run(two, "out", 2, {"--steps", "4"}).code, 0);
  const std::string out = w.path("out");
  auto evaluated = [&](const std::string &plan) {
    const Result r = w.gptrun({"eval", plan, "--out-dir", out});
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output.substr(0, r.output.find('('));
  };
  auto sampled = [&](const std::string &plan) {
    const Result r = Process({"/bin/sh", "-c",
                              GPTC_BIN_DIR "/gptrun sample " + plan + " --out-dir " + out +
                                  " --prompt 'the cat' --max-tokens 20 2> " + w.path("err")},
                             {{"GPTC_CACHE", cacheDir()}}, w.path("text"))
                         .wait();
    EXPECT_EQ(r.code, 0) << r.output << readFile(w.path("err"));
    return r.output;
  };
  const std::string loss = evaluated(one);
  EXPECT_EQ(evaluated(two), loss);
  EXPECT_EQ(sampled(two), sampled(one));
  EXPECT_EQ(evaluated(four), loss);
  EXPECT_FALSE(fs::exists(out + "/plan-1-ranks")) << "nothing is written";
  EXPECT_EQ(w.gptrun({"eval", two, "--out-dir", w.path("mistyped")}).code, 3);
  EXPECT_FALSE(fs::exists(w.path("mistyped")));
}

// What decides the bits is another number of shards or, where the order is the engine's, of ranks.
TEST_F(RanksTest, OtherBitsAreSaid) {
  auto warns = [&](const std::string &out, const std::string &first, int ranks, const std::string &second, int more) {
    EXPECT_EQ(run(first, out, ranks, {"--steps", "3"}).code, 0);
    const Result r = run(second, out, more, {"--steps", "6"});
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output.find("from here on the bits may differ") != std::string::npos;
  };
  const std::string plan = compile("plan");
  EXPECT_TRUE(warns("shards", plan, 1, compile("two", {"parallel.logical_shards=2"}), 1));
  EXPECT_TRUE(warns("betas", plan, 1, compile("b", {"optimizer.betas=[0.9, 0.9]"}), 1));
  const std::string fast = w.compile("fast", {"train.micro_batch=1", "parallel.reduce_order=fast"});
  EXPECT_TRUE(warns("fast", fast, 2, fast, 4));
  EXPECT_FALSE(warns("micro", plan, 1, compile("micro", {"parallel.zero_stage=3", "compile.remat=full"}), 4));
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
  const Port held;
  const std::string port = std::to_string(held.number());
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

/// As torchrun says it.
std::map<std::string, std::string> torchrun(const char *rank, const Port &port) {
  return {{"RANK", rank},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", rank},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port.number())}};
}

// Where others have started the ranks, whether it is worth another try must not depend on whose code they look at.
TEST_F(RanksTest, AllEndWithTheCodeOfTheFirstThatFails) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  for (const bool first : {true, false}) {
    const Port port;
    const std::string missing = w.path("no.plan");
    Process other = w.start("gptrun", {first ? plan : missing, "--out-dir", w.path("out")}, torchrun("1", port));
    const Result r = w.gptrun({first ? missing : plan, "--out-dir", w.path("out")}, torchrun("0", port));
    const Result rest = other.wait();
    EXPECT_EQ(r.code, 3) << r.output;
    EXPECT_EQ(rest.code, 3) << rest.output << readFile(w.path("out/ranks/rank-0001.log"));
    EXPECT_NE(r.output.find("there is no plan " + missing), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
  }
}

// What differs is said where it is read, and what mends it.
TEST_F(RanksTest, RankZeroRepeatsWhatMendsTheFailureOfAnother) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  const std::string wrong = compile("wrong", {"parallel.data=2", "optimizer.lr=0.002"});
  const Port port;
  Process other = w.start("gptrun", {wrong, "--out-dir", w.path("out")}, torchrun("1", port));
  const Result r = w.gptrun({plan, "--out-dir", w.path("out")}, torchrun("0", port));
  EXPECT_EQ(other.wait().code, 3);
  EXPECT_EQ(r.code, 3) << r.output;
  EXPECT_NE(r.output.find("has another plan in " + wrong), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("help: compile once, and copy that plan to all machines"), std::string::npos) << r.output;
  EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << r.output;
}

// Nobody else sees that rank 0 hangs: it is where the others meet.
TEST_F(RanksTest, ADeadOrStoppedRankZeroIsSeenUnderOtherLaunchersToo) {
  const std::string plan = compile("plan", {"parallel.data=2", "train.steps=1000000"});
  const std::pair<int, std::string> cases[] = {{SIGKILL, "is gone: "},
                                               {SIGSTOP, "is gone: nothing was heard of it for 10.0 s"}};
  for (const auto &[signal, words] : cases) {
    const std::string out = w.path("out" + std::to_string(signal));
    const Port port;
    Process first = w.start("gptrun", {plan, "--out-dir", out}, torchrun("0", port));
    Process other = w.start("gptrun", {plan, "--out-dir", out}, torchrun("1", port));
    while (!other.hasEnded() && logLines(out).size() < 3)
      ::usleep(10000);
    ::kill(first.pid(), signal);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(other.wait().code, 6) << words;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << words;
    // Who writes a rank's log ends a moment after it.
    const std::string log = out + "/ranks/rank-0001.log";
    EXPECT_TRUE(gptc::test::eventually([&] { return readFile(log).find(words) != std::string::npos; }))
        << readFile(log);
  }
}

// Two pools of threads pinned to the same CPUs would take turns.
TEST_F(RanksTest, RanksOfOtherLaunchersShareTheCpusOfTheirMachine) {
  const std::string plan = compile("plan", {"parallel.data=2", "train.steps=1000000"});
  const Port port;
  Process first = w.start("gptrun", {plan, "--out-dir", w.path("out")}, torchrun("0", port));
  Process other = w.start("gptrun", {plan, "--out-dir", w.path("out")}, torchrun("1", port));
  while (!other.hasEnded() && logLines(w.path("out")).empty())
    ::usleep(10000);
  cpu_set_t here, ofFirst, ofOther, both;
  ASSERT_EQ(::sched_getaffinity(0, sizeof here, &here), 0);
  ASSERT_EQ(::sched_getaffinity(first.pid(), sizeof ofFirst, &ofFirst), 0);
  ASSERT_EQ(::sched_getaffinity(other.pid(), sizeof ofOther, &ofOther), 0);
  CPU_AND(&both, &ofFirst, &ofOther);
  EXPECT_EQ(CPU_COUNT(&both), CPU_COUNT(&here) > 1 ? 0 : 1);
  CPU_OR(&both, &ofFirst, &ofOther);
  EXPECT_TRUE(CPU_EQUAL(&both, &here)) << "no CPU is left out";
  ::kill(first.pid(), SIGTERM);
  ::kill(other.pid(), SIGTERM);
  EXPECT_EQ(first.wait().code, 0);
  EXPECT_EQ(other.wait().code, 0);
}

// Whoever starts a run again says so, and `never` is about the first start only.
TEST_F(RanksTest, ARestartDoesNotStartOver) {
  const std::string plan = compile("plan");
  for (const int ranks : {1, 2}) {
    const std::string out = "out-" + std::to_string(ranks);
    auto go = [&](const char *restarts, const char *steps) {
      return w
          .gptrun({plan, "--out-dir", w.path(out), "--ranks-per-node", std::to_string(ranks), "--resume", "never",
                   "--steps", steps},
                  {{"GPTC_RESTARTS", restarts}})
          .output;
    };
    go("0", "3");
    const std::string text = go("1", "6");
    EXPECT_NE(text.find("resumed from "), std::string::npos) << text;
    EXPECT_FALSE(fs::exists(w.path(out + "/old-1")));
    go("0", "3");
    EXPECT_TRUE(fs::exists(w.path(out + "/old-1")));
  }
}

// `gptrun PLAN | head`: as much as a closed terminal.
TEST_F(RanksTest, AClosedPipeSavesAndEnds) {
  // More steps than are done before the reader is gone, whatever else the machine does.
  const std::string plan = compile("plan", {"train.steps=100000", "log.every=1", "checkpoint.every=0"});
  for (const int ranks : {1, 2}) {
    const std::string out = w.path("piped-" + std::to_string(ranks)), whole = "whole-" + std::to_string(ranks);
    const std::string command = "exec 2>" + w.path("err") + "; GPTC_CACHE=" + cacheDir() + " " GPTC_BIN_DIR "/gptrun " +
                                plan + " --out-dir " + out + " --ranks-per-node " + std::to_string(ranks) +
                                " | (read line; while read word rest; do case $word in step) exit;; "
                                "esac; done) ; exit ${PIPESTATUS[0]}";
    const Result r = Process({"/bin/bash", "-c", command}, {}, w.path("shell")).wait();
    const std::string words = readFile(w.path("err"));
    EXPECT_EQ(r.code, 0) << r.output << words;
    EXPECT_EQ(words.find("restart"), std::string::npos) << words;
    EXPECT_NE(words.find("nobody reads standard output any more: stopped at step "), std::string::npos) << words;
    ASSERT_FALSE(w.checkpoints(out).empty()) << words;
    const std::string last = w.checkpoints(out).back();
    EXPECT_LT(last, "step-00100000");
    const Result other = run(plan, whole, 1, {"--steps", std::to_string(std::stoi(last.substr(5)))});
    EXPECT_EQ(other.code, 0) << other.output;
    EXPECT_TRUE(w.finalState(out) == w.finalState(w.path(whole)));
  }
}

// Other than of a closed pipe: the run is worth more than its log, and ends with what went wrong.
TEST_F(RanksTest, AnOutputThatCannotBeWrittenIsSaidAtTheEnd) {
  const std::string plan = compile("plan", {"log.every=1"});
  const std::string expected = stateAfter(plan, "whole", 1);
  const struct {
    const char *name, *to, *says;
  } cases[] = {{"full", "> /dev/full", "error[GPTC0402]: cannot write to standard output: No space left on device"},
               {"closed", ">&-", "error[GPTC0401]: cannot write to standard output: Bad file descriptor"}};
  for (const auto &c : cases)
    for (const char *ranks : {"1", "2"}) {
      const std::string out = c.name + std::string(ranks);
      const Result r = Process({"/bin/sh", "-c",
                                GPTC_BIN_DIR "/gptrun " + plan + " --out-dir " + w.path(out) + " --ranks-per-node " +
                                    ranks + " " + c.to},
                               {{"GPTC_CACHE", cacheDir()}}, w.path("shell"))
                           .wait();
      EXPECT_EQ(r.code, 4) << out << r.output;
      EXPECT_NE(r.output.find(c.says), std::string::npos) << out << r.output;
      EXPECT_EQ(r.output.find("error[", r.output.find("error[") + 1), std::string::npos) << out << r.output;
      EXPECT_TRUE(w.finalState(w.path(out)) == expected) << out;
      EXPECT_EQ(logLines(w.path(out)), logLines(w.path("whole"))) << out;
    }
}

// Two machines whose out_dir is a disk of their own: said before the first step.
TEST_F(RanksTest, RanksThatSeeOtherFilesSaySo) {
  const std::string plan = compile("plan", {"parallel.data=2"});
  const Port port;
  Process other = w.start("gptrun", {plan, "--out-dir", w.path("there")}, torchrun("1", port));
  const Result r = w.gptrun({plan, "--out-dir", w.path("here")}, torchrun("0", port));
  const Result rest = other.wait();
  EXPECT_EQ(rest.code, 3) << rest.output;
  EXPECT_EQ(r.code, 3) << r.output;
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

// With logical parts they add in one order. Without, the same plans differ.
TEST_F(RanksTest, LogicalPartsGiveTheBitsOfOneRank) {
  const std::vector<std::string> llama = {"model.norm=rmsnorm",     "model.activation=swiglu", "model.position=rope",
                                          "model.bias=false",       "model.n_head=8",          "model.n_kv_head=4",
                                          "precision.compute=bf16", "model.ffn_dim=96"},
                                 gpt = {"model.n_head=4"};
  for (const auto &[form, model] : {std::pair{"gpt", gpt}, {"llama", llama}}) {
    auto plan = [&](const std::string &name, std::vector<std::string> more) {
      more.insert(more.end(), model.begin(), model.end());
      return compile(form + name, more);
    };
    const std::string alone = plan("-1", {"parallel.logical_tensor=4"}), out = form;
    const std::string expected = stateAfter(alone, out + "-out-1", 1);
    ASSERT_FALSE(expected.empty());
    const std::vector<std::string> lines = logLines(w.path(out + "-out-1"));
    auto same = [&](const std::string &other, const char *what) {
      EXPECT_TRUE(w.finalState(w.path(other)) == expected) << form << ", " << what;
      EXPECT_EQ(logLines(w.path(other)), lines) << form << ", " << what;
    };
    const std::string two = plan("-2", {"parallel.logical_tensor=4", "parallel.tensor=2"});
    stateAfter(two, out + "-out-2", 2);
    same(out + "-out-2", "two ranks");
    stateAfter(plan("-4", {"parallel.logical_tensor=4", "parallel.tensor=4"}), out + "-out-4", 4);
    same(out + "-out-4", "four ranks");
    stateAfter(
        plan("-2x2", {"parallel.logical_tensor=4", "parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=3"}),
        out + "-out-2x2", 4);
    same(out + "-out-2x2", "two by two ranks");
    Result r = run(two, out + "-resumed", 2, {"--steps", "5"});
    ASSERT_EQ(r.code, 0) << r.output;
    r = run(alone, out + "-resumed", 1);
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("bits may differ"), std::string::npos) << r.output;
    same(out + "-resumed", "from two ranks to one");
    EXPECT_FALSE(stateAfter(plan("-plain", {"parallel.tensor=2"}), out + "-out-plain", 2) == expected) << form;
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

// Training with each optimizer: it learns, goes on where it stopped to the same bits, however the batch is cut and on
// any number of ranks; what a plan prints of it; and groups of parameters.
#include "tests/support/harness.h"

#include <cstdlib>
#include <filesystem>

using namespace e2e;

namespace {

struct Recipe {
  const char *name;
  std::vector<std::string> settings;
};

struct Optimizers : ::testing::TestWithParam<Recipe> {
  std::string compile(const std::string &name, std::vector<std::string> more = {}) {
    std::vector<std::string> settings = GetParam().settings;
    settings.insert(settings.end(), {"train.steps=12", "train.micro_batch=1", "parallel.logical_shards=4"});
    settings.insert(settings.end(), more.begin(), more.end());
    return w.compile(name, settings);
  }
  double lossOf(const std::string &line) const {
    const size_t at = line.find("loss=");
    return at == std::string::npos ? 0 : std::atof(line.c_str() + at + 5);
  }
  Workplace w;
};

TEST_P(Optimizers, LearnsAndGoesOnToTheSameBits) {
  const std::string plan = compile("plan");
  const std::string whole = w.train(plan, "whole");
  ASSERT_FALSE(whole.empty());
  const std::vector<std::string> lines = logLines(w.path("whole"));
  std::vector<double> losses;
  for (const std::string &line : lines)
    if (line.find("grad_norm=") != std::string::npos)
      losses.push_back(lossOf(line));
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), losses.front() - 0.05);
  w.train(plan, "parts", {"--steps", "5"});
  EXPECT_TRUE(w.train(plan, "parts", {"--resume", "must"}) == whole);
  EXPECT_TRUE(w.train(plan, "threads", {"--threads", "2"}) == whole);
}

TEST_P(Optimizers, AnyNumberOfRanksGivesTheSameBits) {
  const std::string expected = w.train(compile("one"), "one-out");
  for (const char *stage : {"1", "3"}) {
    const std::string plan =
        compile(std::string("zero") + stage, {"parallel.data=2", std::string("parallel.zero_stage=") + stage});
    EXPECT_TRUE(w.train(plan, std::string("out") + stage, {"--ranks-per-node", "2"}) == expected) << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Optimizers,
    ::testing::Values(
        Recipe{"sgd", {"optimizer.name=sgd", "optimizer.lr=0.2"}},
        Recipe{"plain_sgd_bf16",
               {"optimizer.name=sgd", "optimizer.lr=0.5", "optimizer.momentum=0", "precision.compute=bf16"}},
        Recipe{"adafactor", {"optimizer.name=adafactor", "optimizer.lr=0.2"}},
        Recipe{
            "adafactor_bf16",
            {"optimizer.name=adafactor", "optimizer.lr=0.2", "optimizer.first_moment=0.9", "precision.compute=bf16"}},
        Recipe{"groups", {"optimizer.group=[{match='*.bias', lr_scale=2.0}, {match='h.0.*', frozen=true}]"}}),
    [](const auto &info) { return info.param.name; });

TEST(OptimizerPlans, SayWhatMomentsTake) {
  Workplace w;
  auto account = [&](const std::vector<std::string> &settings) {
    std::vector<std::string> args = {"compile", w.modelFile(), "-o", w.path("plan")};
    for (const std::string &s : settings)
      args.insert(args.end(), {"--set", s});
    Result r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  };
  auto says = [](const std::string &text, const char *what) { return text.find(what) != std::string::npos; };
  EXPECT_TRUE(says(account({"optimizer.name=sgd", "optimizer.momentum=0"}), "optimizer   sgd, 0 B of moments"));
  const std::string grouped = account({"optimizer.group=[{match='*.bias', weight_decay=0.5}]"});
  EXPECT_TRUE(says(grouped, "groups      *.bias: weight_decay 0.5; ")) << grouped;
  EXPECT_TRUE(says(grouped, "all others; ")) << grouped;
  EXPECT_TRUE(
      says(account({"parallel.offload=optimizer"}), "changes nothing: on a CPU moments are in the host's memory"));
}

// A momentum of bf16 is rounded stochastically; a run with it is a run.
TEST(OptimizerPlans, SgdHoldsItsMomentInBf16) {
  Workplace w;
  const std::string plan = w.compile(
      "plan", {"optimizer.name=sgd", "optimizer.lr=0.2", "precision.compute=bf16", "precision.optimizer_state=bf16"});
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("a")}).code, 0);
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("b"), "--steps", "5"}).code, 0);
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("b"), "--resume", "must"}).code, 0);
  EXPECT_TRUE(w.finalState(w.path("a")) == w.finalState(w.path("b")));
}

}  // namespace

// Forecasts of plans: memory to the byte, time and traffic from the module itself.
#include "ir/mesh.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tools/compiler/compile.h"
#include "tools/estimate/forecast.h"
#include "tools/planner/cache_dir.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace gptc;

namespace {

class PlannedForecast : public testing::Test {
protected:
  static void SetUpTestSuite() {
    std::string name = testing::TempDir() + "/gptc-planned-XXXXXX";
    dir = mkdtemp(name.data());
    setenv("GPTC_CACHE", test::sharedFolder("kernels-of-forecasts").c_str(), 1);
    write("tiny.toml", R"(name = "tiny"
[model]
n_layer = 2
n_head = 4
n_embd = 64
block_size = 32
vocab_size = 96
[train]
steps = 10
micro_batch = 2
global_batch_tokens = 512
[data]
train = "train.bin"
)");
    write("here.toml", R"(name = "here"
[device]
kind = "cpu"
peak_fp32 = "500 GFLOP/s"
peak_bf16 = "1000 GFLOP/s"
memory = "64 GiB"
memory_bandwidth = "50 GB/s"
cache = "16 MiB"
[node]
devices = 4
bandwidth = "10 GB/s"
latency = "0 s"
[network]
nominal = "1 GB/s"
latency = "0 s"
)");
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir); }

  static void write(const std::string &name, const std::string &text) { std::ofstream(dir + "/" + name) << text; }
  static std::string file() { return dir + "/tiny.toml"; }
  static ClusterConfig cluster() { return loadCluster(dir + "/here.toml"); }

  static Estimate forecastOf(const std::vector<std::string> &settings, int64_t ranks, const ClusterConfig &c) {
    Forecaster f(readForForecast(file(), settings, ranks, c), c);
    return f.forecast(f.strategyFor(ranks));
  }
  /// The plan itself.
  static CompileReport compiled(std::vector<std::string> settings, int64_t ranks, Plan &plan) {
    CompileRequest r;
    r.modelFile = file();
    const int64_t tensor = readConfig(file(), settings).parallel.tensor;
    settings.push_back(fmt::format("parallel.data={}", ranks / tensor));
    r.settings = settings;
    r.planDir = dir + "/tiny.plan";
    r.cacheDir = defaultCacheDir();
    Config config;
    return compilePlan(r, config, plan);
  }

  static inline std::string dir;
};

TEST_F(PlannedForecast, MemoryIsTheArenaToTheByte) {
  struct Case {
    std::vector<std::string> settings;
    int64_t ranks = 1;
  };
  const Case cases[] = {{{}},
                        {{"precision.compute=bf16"}},
                        {{"compile.remat=full"}},
                        {{"compile.remat=none", "train.global_batch_tokens=64"}},  // one pass a step
                        {{"model.n_layer=3", "model.n_embd=96", "model.preset=llama", "precision.compute=fp16"}},
                        {{"optimizer.name=adafactor"}},
                        {{"parallel.zero_stage=0"}, 2},
                        {{"parallel.zero_stage=1"}, 2},
                        {{"parallel.zero_stage=2", "precision.compute=bf16"}, 2},
                        {{"parallel.zero_stage=3", "compile.remat=full"}, 2},
                        {{"parallel.logical_shards=4"}, 2},
                        {{"parallel.tensor=2"}, 4},
                        {{"parallel.logical_tensor=4"}, 1},
                        {{"parallel.logical_tensor=4", "parallel.tensor=2"}, 4}};
  for (const Case &c : cases) {
    Plan plan;
    const CompileReport report = compiled(c.settings, c.ranks, plan);
    const Estimate e = forecastOf(c.settings, c.ranks, cluster());
    ASSERT_EQ(e.problem, "");
    EXPECT_EQ(int64_t(e.bytesPeak()), report.arenaBytes)
        << (c.settings.empty() ? "plain" : c.settings[0]) << " on " << c.ranks;
    EXPECT_GT(e.activations, 0);
    EXPECT_EQ(Mesh::of(*plan.planned).ranks(), c.ranks);
  }
}

TEST_F(PlannedForecast, TimeIsTheCostOfThePlan) {
  const ClusterConfig c = cluster();
  Plan plan;
  compiled({}, 1, plan);
  const Estimate e = forecastOf({}, 1, c);
  const double seconds = costOfStep(*plan.planned, ratesOf(c.device, 64)).seconds;
  EXPECT_NEAR(e.compute + e.optimizer, seconds, 1e-12);
  EXPECT_EQ(e.step, e.compute + e.optimizer);
  EXPECT_EQ(e.recompute, 0);
  EXPECT_EQ(e.reduce + e.gather + e.exchange, 0);
  const Estimate again = forecastOf({"compile.remat=full"}, 1, c);
  EXPECT_GT(again.recompute, 0);
  EXPECT_GT(again.hfu, e.hfu * e.step / again.step * 1.05);  // more FLOPs in all
  // The slowdown is of kernels, the overhead of steps.
  ClusterConfig slow = c;
  slow.software.slowdown = Fitted(2);
  slow.software.stepOverhead = Fitted(0.5);
  EXPECT_NEAR(forecastOf({}, 1, slow).step, 2 * e.step + 0.5, 1e-12);
}

TEST_F(PlannedForecast, RanksOfANodeShareIt) {
  ClusterConfig c = cluster();
  c.node.bandwidth = 1e30;
  c.device.launch = 0;
  // Half the cores for half the batch: twice as many tokens in the same time, as one rank for twice the time.
  const Estimate one = forecastOf({"compile.remat=none", "train.global_batch_tokens=1024"}, 1, c),
                 two = forecastOf({"compile.remat=none", "train.global_batch_tokens=1024"}, 2, c);
  EXPECT_NEAR(two.compute, one.compute, 0.01 * one.compute);  // a few small kernels stand around collectives
  EXPECT_DOUBLE_EQ(two.tokensPerStep, one.tokensPerStep);
  EXPECT_NEAR(two.mfu * two.step, one.mfu * one.step, 1e-12);  // of the same peak
}

TEST_F(PlannedForecast, CollectivesAreThoseOfThePlan) {
  ClusterConfig c = cluster();
  Plan plan;
  compiled({"parallel.zero_stage=0"}, 2, plan);
  double parameters = 0;
  for (const auto &s : plan.planned->states)
    if (s->attrs.getString("kind") == "param")
      parameters += double(s->type.bytes());
  // Every gradient once there and back, (P-1)/P of it each way; the losses beside it are a few bytes.
  const double link = c.node.bandwidth;
  const Estimate ddp = forecastOf({"parallel.zero_stage=0"}, 2, c);
  EXPECT_GE(ddp.reduce * link, parameters);
  EXPECT_LE(ddp.reduce * link, parameters + 1024);
  EXPECT_EQ(ddp.gather, 0);
  // ZeRO-1 sums half and gathers what the other rank has updated; stage 3 gathers parameters twice with every pass.
  const Estimate one = forecastOf({"parallel.zero_stage=1"}, 2, c), three = forecastOf({"parallel.zero_stage=3"}, 2, c);
  EXPECT_LT(one.reduce, 0.6 * ddp.reduce);
  EXPECT_LE(one.gather * link, 0.5 * parameters);
  EXPECT_GT(one.gather * link, 0.4 * parameters);
  EXPECT_GT(three.gather, 4 * one.gather);
  EXPECT_GT(forecastOf({"parallel.tensor=2"}, 2, c).exchange, 0);
  c.node.bandwidth /= 2;
  EXPECT_NEAR(forecastOf({"parallel.zero_stage=1"}, 2, c).gather, 2 * one.gather, 1e-9 * one.gather);
}

// A rank adds up its logical parts, and does for all tokens what stands between blocks. The formula counts that as the
// plan does.
TEST_F(PlannedForecast, LogicalPartsCostWhatThePlanSays) {
  ClusterConfig c = cluster();
  c.device.launch = 0;  // which ranks of a node do not divide
  struct Both {
    Estimate formula, plan;
  };
  for (int64_t tensor : {1, 2, 4}) {
    auto with = [&](int64_t parts) {
      const std::vector<std::string> settings = {"compile.remat=none", fmt::format("parallel.tensor={}", tensor),
                                                 fmt::format("parallel.logical_tensor={}", parts)};
      Forecaster f(readForForecast(file(), settings, tensor, c), c);
      EXPECT_EQ(f.config().parallel.logicalTensor, parts);
      const Strategy s = f.strategyFor(tensor);
      return Both{f.estimate(s), f.forecast(s)};
    };
    const Both whole = with(1), parts = with(4);
    ASSERT_EQ(parts.formula.problem + parts.plan.problem, "") << tensor;
    EXPECT_GT(parts.plan.compute, 1.01 * whole.plan.compute) << tensor;
    EXPECT_GT(parts.formula.compute, 1.01 * whole.formula.compute) << tensor;
    EXPECT_NEAR(parts.formula.compute / parts.plan.compute, 1, 0.05) << tensor;
    EXPECT_GT(parts.formula.flops, whole.formula.flops) << tensor;
    if (tensor > 1) {
      EXPECT_GT(parts.formula.activations, 1.1 * whole.formula.activations) << tensor;
    }
  }
}

TEST_F(PlannedForecast, LogicalPartsAreThoseThatCompile) {
  const ClusterConfig c = cluster();
  for (const char *wrong : {"parallel.logical_tensor=3", "parallel.logical_tensor=8"})  // no tree; 4 heads
    EXPECT_THROW(readForForecast(file(), {wrong}, 1, c), UserError) << wrong;
  Forecaster f(readForForecast(file(), {"parallel.logical_tensor=2"}, 4, c), c);
  Strategy s = f.strategyFor(4);
  EXPECT_EQ(f.estimate(s).problem, "");
  s.tensor = 4;
  EXPECT_EQ(f.estimate(s).problem, "tensor = 4 does not divide 2 logical parts");
}

// Factors of rank 2 and vectors, in a message each; errors take as much memory as the gradients of matrices.
TEST_F(PlannedForecast, FactorsAreSentInPlaceOfGradients) {
  ClusterConfig c = cluster();
  c.node.latency = 1e-3;
  const std::vector<std::string> settings = {"parallel.compression=powersgd", "parallel.gradient_rank=2"};
  Plan plan;
  compiled(settings, 2, plan);
  double factors = 0, errors = 0, others = 0;
  for (const auto &s : plan.planned->states) {
    if (s->attrs.getString("kind") != "param")
      continue;
    const bool small = !plan.planned->state("error." + s->name);
    (small ? others : errors) += double(s->type.bytes());
    if (!small)
      factors += 4.0 * 2 * double(s->type.dim(0) + s->type.dim(1));
  }
  ASSERT_GT(errors, 10 * factors);
  const Estimate whole = forecastOf({"parallel.zero_stage=0"}, 2, c), e = forecastOf(settings, 2, c);
  EXPECT_FALSE(e.predictedOnly);
  EXPECT_GE(e.bytesReduced, 0.95 * (factors + others));
  EXPECT_LE(e.bytesReduced, 1.05 * (factors + others) + 1024);
  EXPECT_LT(e.bytesReduced, 0.2 * whole.bytesReduced);
  EXPECT_NEAR(e.reduce - e.bytesReduced / c.node.bandwidth, 2 * (whole.reduce - whole.bytesReduced / c.node.bandwidth),
              1e-9)
      << "two messages in place of one";
  EXPECT_GT(e.moments, whole.moments + 0.9 * errors);
  EXPECT_TRUE(forecastOf({"parallel.compression=powersgd", "parallel.tensor=2"}, 2, c).predictedOnly);
}

TEST_F(PlannedForecast, WhatNoPlanCanBeIsSaid) {
  const ClusterConfig c = cluster();
  EXPECT_NE(forecastOf({"train.global_batch_tokens=192"}, 3, c).problem.find("binary tree"), std::string::npos);
  EXPECT_EQ(forecastOf({"train.global_batch_tokens=192", "parallel.reduce_order=fast"}, 3, c).problem, "");
  EXPECT_TRUE(forecastOf({"parallel.compression=onebit", "parallel.zero_stage=0"}, 2, c).predictedOnly);
}

}  // namespace

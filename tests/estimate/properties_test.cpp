// What must hold of every forecast, whatever the figures.
#include "tools/estimate/search.h"

#include "support.h"
#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::estimate_test {
namespace {

/// Strategies of every kind, those that cannot be among them.
std::vector<Strategy> strategies() {
  std::vector<Strategy> all;
  for (int64_t gpus : {1, 4, 8, 16, 64})
    for (int64_t tensor : {1, 2, 16})
      for (int64_t pipeline : {1, 2})
        for (int64_t stage : {0, 1, 2, 3})
          for (bool remat : {false, true})
            for (bool offload : {false, true})
              for (const char *compression : {"none", "powersgd", "onebit"}) {
                Strategy s;
                s.gpus = gpus;
                s.tensor = tensor;
                s.pipeline = pipeline;
                s.zeroStage = stage;
                s.accumulate = 4;
                s.remat = remat;
                s.offload = offload;
                s.compression = compression;
                all.push_back(s);
              }
  return all;
}

std::vector<ClusterConfig> softwares() {
  ClusterConfig ours = jeanZayWithGptc(), hiding = jeanZay();
  ours.software.overlap = 0.8;
  hiding.software.overlap = 0.5;
  return {jeanZay(), hiding, ours};
}

TEST(Forecast, DaysNeverRiseWithBandwidth) {
  struct Knob {
    const char *name;
    void (*scale)(ClusterConfig &, double);
  };
  const Knob knobs[] = {
      {"network", [](ClusterConfig &c, double f) { c.network.effective = Fitted(1e8 * f); }},
      {"links of a node", [](ClusterConfig &c, double f) { c.node.bandwidth = 1e8 * f; }},
      {"memory", [](ClusterConfig &c, double f) { c.device.bandwidth = c.device.cacheBandwidth = 1e10 * f; }},
      {"host link", [](ClusterConfig &c, double f) { c.node.hostLink = 1e8 * f; }},
      {"memory of the host", [](ClusterConfig &c, double f) { c.node.hostBandwidth = 1e9 * f; }},
  };
  int compared = 0;
  for (const ClusterConfig &software : softwares())
    for (const Knob &knob : knobs) {
      const std::vector<Strategy> all = strategies();
      std::vector<double> before(all.size(), 1e300);
      bool helped = false;
      for (double f = 1; f <= 1e5; f *= 8) {
        ClusterConfig c = software;
        knob.scale(c, f);
        Forecaster forecaster(bloom(c, 1, {"train.micro_batch=1"}), c);
        for (size_t i = 0; i < all.size(); ++i) {
          const Estimate e = forecaster.estimate(all[i]);
          if (!e.problem.empty())
            continue;
          const double days = e.days(1e11);
          ASSERT_TRUE(std::isfinite(days) && days > 0) << all[i].name();
          EXPECT_LE(days, before[i] * (1 + 1e-12)) << all[i].name() << " on " << all[i].gpus << " GPUs, " << knob.name;
          helped |= before[i] < 1e300 && days < 0.9 * before[i];
          before[i] = days;
          ++compared;
        }
      }
      EXPECT_TRUE(helped) << knob.name << " makes no difference to anything";
    }
  EXPECT_GT(compared, 10000);
}

/// Seconds per pass of one rank.
double perPass(const Estimate &e) { return e.step / double(e.strategy.accumulate); }

Estimate accumulating(const ClusterConfig &c, int64_t stage, int64_t accumulate, int64_t gpus = 32) {
  return forecast(
      c, gpus,
      {fmt::format("parallel.zero_stage={}", stage), "train.micro_batch=1", fmt::format("accumulate={}", accumulate)});
}

TEST(Forecast, ZeRO1WithGrowingAccumulationTendsToComputeOnly) {
  for (const ClusterConfig &c : softwares()) {
    double before = 1e300;
    for (int64_t accumulate = 1; accumulate <= 4096; accumulate *= 4) {
      const Estimate e = accumulating(c, 1, accumulate);
      EXPECT_LT(perPass(e), before);
      before = perPass(e);
    }
    const Estimate most = accumulating(c, 1, 4096), one = accumulating(c, 1, 1);
    EXPECT_NEAR(most.compute / most.step, 1, 0.02);
    EXPECT_LT(one.compute / one.step, 0.5) << "nothing to amortise on this network";
    EXPECT_EQ(most.binds, "compute");
    EXPECT_EQ(one.binds, "network");
  }
}

TEST(Forecast, ZeRO3HardlyDependsOnAccumulation) {
  // Parameters are gathered with every pass; what is once per step is small beside them.
  const ClusterConfig c = jeanZay();
  const double few = perPass(accumulating(c, 3, 1)), many = perPass(accumulating(c, 3, 256));
  EXPECT_NEAR(many / few, 1, 0.1);
  EXPECT_LT(perPass(accumulating(c, 1, 256)) / perPass(accumulating(c, 1, 1)), 0.3) << "as it is with ZeRO-1";
}

TEST(Forecast, GpuDaysAreConstantWhereBandwidthIsFree) {
  // Ranks share the optimizer, which reads memory: that is constant where memory is as free as the network, or from as
  // many ranks on as leave little of it to each.
  for (bool freeMemory : {true, false})
    for (ClusterConfig c : softwares()) {
      c.network.effective = Fitted(1e30);
      c.network.latency = c.node.latency = 0;
      c.node.bandwidth = 1e30;
      if (freeMemory)
        c.device.bandwidth = c.device.cacheBandwidth = 1e30;
      Forecaster f(bloom(c, 1, {"train.micro_batch=1"}), c);
      for (int64_t stage : {0, 1, 2, 3})
        for (int64_t accumulate : {16, 64}) {
          double least = 1e300, most = 0;
          for (int64_t gpus = freeMemory ? 1 : 8; gpus <= 64; gpus *= 2) {
            Strategy s;
            s.gpus = gpus;
            s.zeroStage = gpus > 1 ? stage : 0;
            s.accumulate = accumulate;
            const Estimate e = f.estimate(s);
            ASSERT_EQ(e.problem, "");
            least = std::min(least, e.days(1e11) * double(gpus));
            most = std::max(most, e.days(1e11) * double(gpus));
          }
          EXPECT_LT(most / least, 1.02) << "ZeRO-" << stage << ", accumulation " << accumulate;
        }
    }
}

TEST(Forecast, TimeAndMemoryRiseWithLayersWidthAndContext) {
  struct Axis {
    const char *key;
    std::vector<int> values;
  };
  const Axis axes[] = {{"model.n_layer", {1, 2, 3, 6, 30, 96}},
                       {"model.n_embd", {1024, 1088, 4096, 8192}},
                       {"model.block_size", {256, 1024, 1088, 4096}}};
  for (const ClusterConfig &c : softwares())
    for (const Axis &axis : axes)
      for (const char *remat : {"none", "full"})
        for (int64_t stage : {1, 3}) {
          Estimate before;
          for (int value : axis.values) {
            const Estimate e =
                forecast(c, 16,
                         {fmt::format("{}={}", axis.key, value), fmt::format("compile.remat={}", remat),
                          fmt::format("parallel.zero_stage={}", stage), "train.micro_batch=1", "accumulate=4"});
            ASSERT_EQ(e.problem, "");
            const std::string where =
                fmt::format("{} = {}, {}, {}", axis.key, value, e.strategy.name(), c.software.name);
            EXPECT_GT(e.step, before.step) << where;
            EXPECT_GT(e.bytesPeak(), before.bytesPeak()) << where;
            EXPECT_GE(e.bytesResident(), before.bytesResident()) << where;
            before = e;
          }
        }
}

TEST(Forecast, CheckpointingTradesTimeForMemory) {
  for (const ClusterConfig &c : softwares()) {
    const Estimate plain = forecast(c, 16, {"compile.remat=none", "accumulate=4"}),
                   again = forecast(c, 16, {"compile.remat=full", "accumulate=4"});
    EXPECT_GT(again.step, plain.step);
    EXPECT_LT(again.bytesPeak(), plain.bytesPeak());
    // Of forward and backward a third is forward; heads and loss are not computed again.
    EXPECT_GT(again.recompute / plain.compute, 0.25);
    EXPECT_LE(again.recompute / plain.compute, 0.40);
  }
}

TEST(Forecast, StagesOfZeROHoldLess) {
  for (const ClusterConfig &c : softwares()) {
    std::vector<double> resident;
    for (int64_t stage : {0, 1, 2, 3})
      resident.push_back(accumulating(c, stage, 4).bytesResident());
    EXPECT_LT(resident[1], resident[0]);
    EXPECT_LE(resident[2], resident[1]) << "ours hold whole gradients while they add up";
    EXPECT_LT(resident[3], resident[2]);
  }
}

TEST(Forecast, WhatRunsIsNoLessThanWhatCounts) {
  // A causal kernel skips what the mask hides, which the formula of MFU counts.
  int compared = 0;
  for (const ClusterConfig &c : softwares())
    for (const char *context : {"model.block_size=256", "model.block_size=8192"}) {
      Forecaster f(bloom(c, 1, {"train.micro_batch=1", context}), c);
      for (const Strategy &s : strategies())
        if (const Estimate e = f.estimate(s); e.problem.empty()) {
          EXPECT_GE(e.hfu, e.mfu) << s.name();
          EXPECT_GT(e.mfu, 0);
          ++compared;
        }
    }
  EXPECT_GT(compared, 1000);
}

TEST(Forecast, APipelineFillsAndDrains) {
  const ClusterConfig c = jeanZay();
  Forecaster f(bloom(c, 8, {"train.micro_batch=1"}), c);
  Strategy s;
  s.gpus = s.pipeline = 5;
  for (int64_t accumulate : {1, 8, 64}) {
    s.accumulate = accumulate;
    const Estimate e = f.estimate(s);
    ASSERT_EQ(e.problem, "");
    // 1F1B: of accumulate + stages - 1 slots each stage works in `accumulate`.
    EXPECT_NEAR(e.compute / (e.compute + e.bubble), double(accumulate) / double(accumulate + 4), 1e-12);
    EXPECT_TRUE(e.predictedOnly);
  }
}

TEST(Forecast, StagesHaveAllTheSameLayers) {
  const ClusterConfig c = jeanZay();
  Forecaster f(bloom(c, 8, {"train.micro_batch=1"}), c);
  for (int64_t stages = 1; stages <= 31; ++stages) {
    Strategy s;
    s.gpus = s.pipeline = stages;
    EXPECT_EQ(f.estimate(s).problem.empty(), 30 % stages == 0) << stages;
  }
}

// What ranks send in a step is divided by the steps between, in f32 and beside nothing; anchors and moments of the
// outer steps take memory.
TEST(Forecast, OuterStepsDivideWhatIsSent) {
  ClusterConfig c = jeanZayWithGptc();
  c.software.overlap = 0.8;
  const std::vector<std::string> settings = {"parallel.zero_stage=0", "train.micro_batch=1", "precision.compute=bf16"};
  Forecaster each(bloom(c, 16, settings), c);
  auto every = [&](const char *steps) {
    std::vector<std::string> with = settings;
    with.push_back(std::string("parallel.sync_every=") + steps);
    Forecaster f(bloom(c, 16, with), c);
    return f.estimate(f.strategyFor(16));
  };
  const Estimate ddp = each.estimate(each.strategyFor(16)), ten = every("10"), hundred = every("100");
  ASSERT_EQ(ddp.problem + ten.problem, "");
  EXPECT_EQ(ten.strategy.name(), "DiLoCo every 10");
  EXPECT_NEAR(ten.bytesReduced, 10 * hundred.bytesReduced, 1e-9 * ten.bytesReduced);
  EXPECT_LT(ten.bytesReduced, 0.21 * ddp.bytesReduced);
  EXPECT_GT(ddp.hidden, 0);
  EXPECT_EQ(ten.hidden, 0);
  EXPECT_GT(ten.moments, 1.5 * ddp.moments);
  Strategy zero = ten.strategy;
  zero.zeroStage = 1;
  Forecaster f(bloom(c, 16, {"parallel.sync_every=10", "train.micro_batch=1"}), c);
  EXPECT_NE(f.estimate(zero).problem, "");
  EXPECT_EQ(f.strategyFor(16).zeroStage, 0) << "auto";
}

TEST(Forecast, NeighboursShareTheLinksOfTheirNode) {
  // 8 groups of ranks along `data` send at once, one from each device of a node.
  ClusterConfig c = jeanZay();
  c.network.latency = 0;
  const Estimate e = forecast(c, 16, {"parallel.tensor=8", "parallel.zero_stage=0", "train.micro_batch=1"});
  ASSERT_EQ(e.problem, "");
  EXPECT_GT(e.bytesReduced, 0);
  EXPECT_NEAR(e.reduce, e.bytesReduced / (c.network.effective / 8), 1e-9 * e.reduce);
  // And within a node over its own.
  const Estimate inside = forecast(c, 8, {"parallel.tensor=8", "train.micro_batch=1"});
  EXPECT_GT(inside.bytesExchanged / inside.exchange, 0.5 * c.node.bandwidth);
  EXPECT_LE(inside.bytesExchanged / inside.exchange, c.node.bandwidth);
}

TEST(Forecast, NoMoreIsHiddenThanThereIs) {
  ClusterConfig c = jeanZay();
  c.software.overlap = 1;
  for (int64_t stage : {0, 1, 2, 3})
    for (int64_t gpus : {1, 8, 32}) {
      const Estimate e = accumulating(c, stage, 8, gpus);
      EXPECT_LE(e.hidden, e.reduce + e.gather);
      EXPECT_GE(e.step, e.compute);
    }
}

TEST(Forecast, MoreGpusThanANodeNeedANetwork) {
  ClusterConfig c = jeanZay();
  c.network = NetworkSpec();
  EXPECT_EQ(forecast(c, 8, {}).problem, "");
  EXPECT_NE(forecast(c, 16, {}).remedy.find("network.effective"), std::string::npos);
}

TEST(Forecast, OffloadNeedsAHost) {
  ClusterConfig c = jeanZay();
  EXPECT_EQ(forecast(c, 8, {"parallel.offload=optimizer"}).problem, "");
  c.node.hostLink = 0;
  EXPECT_NE(forecast(c, 8, {"parallel.offload=optimizer"}).problem.find("node.host_link"), std::string::npos);
  c = jeanZay();
  c.node.hostBandwidth = 0;
  EXPECT_NE(forecast(c, 8, {"parallel.offload=optimizer"}).problem.find("node.host_bandwidth"), std::string::npos);
}

TEST(Search, IsNoWorseThanWhatItIncludes) {
  for (const ClusterConfig &c : softwares())
    for (int64_t gpus : {1, 8, 16, 64}) {
      Forecaster f(bloom(c, gpus, {}), c);
      const std::vector<Estimate> found = searchStrategies(f, gpus);
      ASSERT_FALSE(found.empty());
      const std::vector<Estimate> plain = strategiesOf(f, gpus);
      const Estimate *some = bestOf(plain);
      EXPECT_TRUE(found.front().fits());
      // Equal within a thousandth is decided by memory.
      EXPECT_GE(found.front().tokensPerSecond, some->fits() ? 0.998 * some->tokensPerSecond : 0) << gpus << " GPUs";
      for (const Estimate &e : found)
        EXPECT_EQ(e.strategy.gpus, gpus);
    }
}

TEST(Search, MoreBandwidthCostsNoDays) {
  for (const ClusterConfig &software : softwares()) {
    double best = 1e300, found = 1e300;
    for (double f = 1; f <= 1e4; f *= gptc::test::sized(5.0, 1.7)) {
      ClusterConfig c = software;
      c.network.effective = Fitted(1e9 * f);
      Forecaster forecaster(bloom(c, 16, {"accumulate=4"}), c);
      const double now = bestOf(strategiesOf(forecaster, 16))->days(1e11),
                   searched = searchStrategies(forecaster, 16).front().days(1e11);
      EXPECT_LE(now, best * (1 + 1e-9));
      EXPECT_LE(searched, found * (1 + 2e-3));  // the search takes memory for a thousandth of speed
      best = now;
      found = searched;
    }
  }
}

TEST(Search, KeepsTheLimits) {
  ClusterConfig c = jeanZay();
  c.limits.globalBatchTokens = 1 << 18;
  Forecaster f(bloom(c, 16, {}), c);
  for (const Estimate &e : searchStrategies(f, 16))
    EXPECT_LE(e.tokensPerStep, 1 << 18) << e.strategy.name();
  Forecaster fixed(bloom(c, 16, {"parallel.zero_stage=2", "train.micro_batch=1", "compile.remat=full", "accumulate=4"}),
                   c);
  for (const Estimate &e : searchStrategies(fixed, 16)) {
    EXPECT_TRUE(e.strategy.zeroStage == 2 || e.strategy.data() == 1) << e.strategy.name();
    EXPECT_EQ(e.strategy.microBatch, 1);
    EXPECT_TRUE(e.strategy.remat);
  }
}

TEST(Why, NamesTheCauseWithBytesAndSeconds) {
  const ClusterConfig c = jeanZay();
  const Estimate two = forecast(c, 16, {"train.micro_batch=1"}), one = forecast(c, 8, {"train.micro_batch=1"});
  ASSERT_LT(two.tokensPerSecond, one.tokensPerSecond) << "two nodes without accumulation";
  const std::vector<std::string> lines = whySlower(two, one);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("gradients summed"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("GB"), std::string::npos) << lines[0];
  EXPECT_TRUE(whySlower(one, one).empty());
}

}  // namespace
}  // namespace gptc::estimate_test

// How sure forecasts are: the fit's intervals carried to a step, the default, and what no log has tried.
#include "tools/estimate/certainty.h"

#include "support.h"

#include "support/words.h"
#include "tools/commands/estimate_table.h"
#include "tools/estimate/pictures.h"
#include "tools/estimate/search.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace gptc::estimate_test {
namespace {

const std::vector<std::string> sixteen = {"parallel.zero_stage=1", "train.micro_batch=2", "accumulate=16",
                                          "compile.remat=none"};

Forecaster forecasterOf(const ClusterConfig &c, int64_t gpus) { return Forecaster(bloom(c, gpus, sixteen), c); }

// Other software without overlap: a step is the sum of its parts, so that what each scalar does is known by hand.
TEST(Certainty, IntervalsOfAFitReachTheStep) {
  ClusterConfig c = jeanZay();
  c.software.scatter.reset();
  Forecaster f = forecasterOf(c, 16);
  const Estimate e = f.estimate(f.strategyFor(16));
  ASSERT_EQ(e.hidden, 0);
  ASSERT_GT(e.overNetwork, 0);
  const Certainty sure = certaintyOf(f, e);
  EXPECT_FALSE(sure.byDefault);
  const Fitted &s = c.software.slowdown, &o = c.software.stepOverhead, &n = c.network.effective;
  // Bytes alone: latency does not depend on the bandwidth.
  const double wire = (e.bytesReduced + e.bytesGathered) / n.value;
  auto squares = [&](double slowdown, double overhead, double effective) {
    const double steps[] = {e.step + e.compute * (slowdown / s.value - 1), e.step + overhead - o.value,
                            e.step + wire * (n.value / effective - 1)};
    double sum = 0;
    for (double step : steps)
      sum += std::pow(std::log(step / e.step), 2);
    return std::sqrt(sum);
  };
  EXPECT_NEAR(std::log(sure.high), squares(s.high, o.high, n.low), 1e-4);
  EXPECT_NEAR(-std::log(sure.low), squares(s.low, o.low, n.high), 1e-4);
  EXPECT_GT(std::log(sure.high), 0.03);
  // The forecaster is as before.
  EXPECT_EQ(f.estimate(f.strategyFor(16)).step, e.step);
  EXPECT_EQ(f.cluster().software.slowdown.high, s.high);
}

TEST(Certainty, SingleRunsScatterAboutTheMean) {
  ClusterConfig c = jeanZay();
  ASSERT_TRUE(c.software.scatter);
  const double scatter = *c.software.scatter;
  EXPECT_GT(scatter, 1.01);
  auto sureOf = [&] {
    Forecaster f = forecasterOf(c, 16);
    return certaintyOf(f, f.estimate(f.strategyFor(16)));
  };
  const Certainty run = sureOf();
  EXPECT_NE(sourceOf(run, c).find("and how far its runs scatter"), std::string::npos) << sourceOf(run, c);
  c.software.scatter.reset();
  const Certainty mean = sureOf();
  EXPECT_NE(sourceOf(mean, c).find("of the mean of runs"), std::string::npos) << sourceOf(mean, c);
  EXPECT_NEAR(std::log(run.high), std::hypot(std::log(mean.high), std::log(scatter)), 1e-9);
  EXPECT_NEAR(-std::log(run.low), std::hypot(std::log(mean.low), std::log(scatter)), 1e-9);
  // A default is of single runs already.
  c.software.scatter = 2;
  c.software.slowdown = Fitted(c.software.slowdown.value);
  EXPECT_TRUE(sureOf().byDefault);
  EXPECT_EQ(sureOf().high, 1.87);
}

TEST(Certainty, DaysHaveTheDoubtOfTokensToo) {
  const Certainty step{0.9, 1.25, false};
  const Certainty given = certaintyOfDays(step, 100e9);
  EXPECT_NEAR(given.low, 0.9, 1e-12);
  EXPECT_NEAR(given.high, 1.25, 1e-12);
  const Certainty both = certaintyOfDays(step, {100e9, 80e9, 150e9});
  EXPECT_NEAR(std::log(both.high), std::hypot(std::log(1.25), std::log(1.5)), 1e-12);
  EXPECT_NEAR(-std::log(both.low), std::hypot(std::log(0.9), std::log(0.8)), 1e-12);
  EXPECT_TRUE(std::isinf(certaintyOfDays(step, {100e9, 80e9, INFINITY}).high));
}

TEST(Certainty, WithinANodeTheNetworkSaysNothing) {
  ClusterConfig c = jeanZay();
  Forecaster f = forecasterOf(c, 8);
  const Certainty sure = certaintyOf(f, f.estimate(f.strategyFor(8)));
  c.network.effective.low = 0.1e9;
  Forecaster wider = forecasterOf(c, 8);
  EXPECT_EQ(certaintyOf(wider, wider.estimate(wider.strategyFor(8))).high, sure.high);
  Forecaster two = forecasterOf(c, 16);
  EXPECT_GT(certaintyOf(two, two.estimate(two.strategyFor(16))).high, 1.5);
}

TEST(Certainty, WithoutAFitItIsADefaultAndSaysSo) {
  const ClusterConfig h100 = loadCluster(sourceFile("examples/clusters/8xh100.toml"));
  Forecaster f = forecasterOf(h100, 8);
  const Certainty sure = certaintyOf(f, f.estimate(f.strategyFor(8)));
  EXPECT_TRUE(sure.byDefault);
  EXPECT_LT(sure.low, 1);
  EXPECT_GT(sure.high, 1.5) << "forecasts are rather too fast";
  EXPECT_NE(sourceOf(sure, h100).find("a default"), std::string::npos);
  EXPECT_NE(sourceOf(sure, h100).find("0.92 to 1.87"), std::string::npos) << sourceOf(sure, h100);
  // A slowdown that somebody wrote is no fit, whatever the network has.
  ClusterConfig given = jeanZay();
  given.software.slowdown = Fitted(given.software.slowdown.value);
  Forecaster g = forecasterOf(given, 16);
  EXPECT_TRUE(certaintyOf(g, g.estimate(g.strategyFor(16))).byDefault);
  EXPECT_EQ(sourceOf(certaintyOf(g, g.estimate(g.strategyFor(16))), given).find("jean-zay"), std::string::npos);
  ClusterConfig cpu = clusterOf("[device]\nkind = \"cpu\"\npeak_fp32 = \"500 GFLOP/s\"\nmemory = \"640 GiB\"\n"
                                "memory_bandwidth = \"50 GB/s\"\n");
  Forecaster onCpu(bloom(cpu, 1, {"model.n_layer=1", "precision.compute=fp32"}), cpu);
  const Certainty ofCpu = certaintyOf(onCpu, onCpu.estimate(onCpu.strategyFor(1)));
  EXPECT_TRUE(ofCpu.byDefault);
  EXPECT_LT(ofCpu.high, sure.high);
}

TEST(Certainty, OnlyPossibleForecastsAreJudged) {
  const ClusterConfig c = jeanZay();
  Forecaster f = forecasterOf(c, 16);
  std::vector<Estimate> all(3);
  all[0] = all[2] = f.estimate(f.strategyFor(16));
  all[1].problem = "cannot be";
  judge(f, all, 1);
  EXPECT_EQ(all[0].sure.high, 1) << "before the first";
  EXPECT_EQ(all[1].sure.high, 1);
  EXPECT_GT(all[2].sure.high, 1);
}

TEST(NeverSeen, IsWhatNoRowHas) {
  using Words = std::vector<std::string>;
  ClusterConfig c = jeanZay();
  auto neverSeen = [&](const Strategy &s) { return gptc::neverSeen(s, triedIn(c), c.node.devices); };
  Strategy s;
  s.gpus = 32;
  EXPECT_EQ(neverSeen(s), Words()) << "the log has rows on 16 and more";
  s.tensor = 8;
  EXPECT_EQ(neverSeen(s), Words{"tensor"});
  s.tensor = 16;
  EXPECT_EQ(neverSeen(s), Words{"tensor over nodes"});
  s.tensor = 1, s.pipeline = 2, s.offload = true, s.compression = "powersgd";
  EXPECT_EQ(neverSeen(s), (Words{"pipeline", "offload", "compression"}));
  // A row tries it, if it has a speed.
  Observation o;
  o.gpus = 32, o.pipeline = 2, o.model = sourceFile("examples/bloom-7b1.toml");
  o.settings = {"parallel.tensor=2", "parallel.tensor=16", "parallel.offload=\"optimizer\"", "accumulate=1"};
  c.observations.push_back(o);
  s.tensor = 16, s.compression = "none";
  EXPECT_EQ(neverSeen(s).size(), 3u);
  c.observations.back().secondsPerStep = 1;
  EXPECT_EQ(neverSeen(s), Words());
  c.observations.clear();
  s = {};
  s.gpus = 8;
  EXPECT_EQ(neverSeen(s), Words());
  s.gpus = 9;
  EXPECT_EQ(neverSeen(s), Words{"several nodes"});
}

TEST(Shown, IntervalsOfSpeedDaysAndCost) {
  ClusterConfig c = jeanZay();
  c.limits.price = 2;
  Forecaster f = forecasterOf(c, 16);
  std::vector<Estimate> all = {f.estimate(f.strategyFor(16))};
  all[0].sure = {0.9, 1.25, false};
  all[0].neverSeen = {"tensor over nodes"};
  const auto j = jsonOf(all[0], 100e9, c);
  const auto &i = j["interval"];
  const double days = j["days"], cost = j["cost"]["amount"], speed = j["tokens_per_s"];
  EXPECT_EQ(i["by"], "fit");
  EXPECT_EQ(i["of"], "run");
  EXPECT_DOUBLE_EQ(double(i["days"][0]), 0.9 * days);
  EXPECT_DOUBLE_EQ(double(i["days"][1]), 1.25 * days);
  EXPECT_DOUBLE_EQ(double(i["tokens_per_s"][0]), speed / 1.25);
  EXPECT_DOUBLE_EQ(double(i["tokens_per_s"][1]), speed / 0.9);
  EXPECT_DOUBLE_EQ(double(i["cost"][1]), 1.25 * cost);
  EXPECT_EQ(j["never_seen"][0], "tensor over nodes");
  const std::string table = tableOf(all, 100e9, c);
  EXPECT_NE(table.find(fmt::format(" {:.0f} to {:.0f} ", 0.9 * days, 1.25 * days)), std::string::npos) << table;
  EXPECT_EQ(table.substr(table.size() - 3), " *\n");
  const std::vector<std::string> notes = notesOf(all, all[0], 100e9, c);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find(fmt::format("{:.0f} to {:.0f} USD with 90% confidence", 0.9 * cost, 1.25 * cost)),
            std::string::npos)
      << notes[0];
  EXPECT_NE(notes[1].find("has tensor over nodes"), std::string::npos) << notes[1];
  // Tokens that are in doubt, and perhaps without an end.
  const RunTokens doubtful(100e9, 50e9, INFINITY);
  const auto ofDoubtful = jsonOf(all[0], doubtful, c)["interval"];
  EXPECT_NEAR(double(ofDoubtful["days"][0]) / days, std::exp(-std::hypot(std::log(0.9), std::log(0.5))), 1e-9);
  EXPECT_TRUE(ofDoubtful["days"][1].is_null() && ofDoubtful["cost"][1].is_null());
  EXPECT_DOUBLE_EQ(double(ofDoubtful["tokens_per_s"][0]), speed / 1.25);
  EXPECT_NE(tableOf(all, doubtful, c).find(" or more"), std::string::npos) << tableOf(all, doubtful, c);
  EXPECT_NE(notesOf(all, all[0], doubtful, c)[0].find("by the doubt of tokens"), std::string::npos);
  EXPECT_NE(daysPicture(all, doubtful, c).find(" or more)"), std::string::npos);
  EXPECT_EQ(daysPicture(all, doubtful, c).find("inf"), std::string::npos);
  all[0].outOfMemory = true;
  EXPECT_EQ(notesOf(all, all[0], 100e9, c)[0].find("confidence"), std::string::npos) << "it does not run";
}

// What a row's model says counts as what its settings say, and a row whose model is gone says how many GPUs it had.
TEST(NeverSeen, ModelsOfRowsCount) {
  const std::string model = testing::TempDir() + fmt::format("gptc-tried-{}.toml", ::getpid());
  std::ofstream(model) << "extends = \"" << sourceFile("examples/bloom-7b1.toml")
                       << "\"\n[parallel]\ntensor = 4\noffload = \"optimizer\"\ncompression = \"powersgd\"\n";
  ClusterConfig c = jeanZay();
  Observation o;
  o.gpus = 16, o.secondsPerStep = 1, o.model = model, o.settings = {"accumulate=1"};
  c.observations = {o};
  Tried tried = triedIn(c);
  EXPECT_TRUE(tried.nodes && tried.tensor && tried.offload);
  EXPECT_FALSE(tried.tensorOverNodes || tried.pipeline);
  EXPECT_EQ(tried.compressions, std::set<std::string>{"powersgd"});
  c.observations[0].settings.push_back("parallel.tensor=1");
  EXPECT_FALSE(triedIn(c).tensor) << "the settings win";
  std::filesystem::remove(model);
  tried = triedIn(c);
  EXPECT_TRUE(tried.nodes);
  EXPECT_FALSE(tried.tensor || tried.offload);
}

int count(const std::string &text, const std::string &what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
    ++n;
  return n;
}

TEST(Pictures, NameTheirMarksAndTellEqualLinesApart) {
  ClusterConfig c = jeanZay();
  std::vector<Estimate> all;
  for (int64_t gpus : {8, 16})
    for (int64_t stage : {0, 1, 2}) {
      Forecaster f = forecasterOf(c, gpus);
      Strategy s = f.strategyFor(gpus);
      s.zeroStage = 1;
      Estimate e = f.estimate(s);
      e.strategy.zeroStage = stage;  // equal but for the name
      e.sure = {0.9, 1.1, false};
      all.push_back(e);
    }
  all[1].outOfMemory = true;
  const std::string lines = daysPicture(all, 100e9, c);
  for (const char *name : {">DDP<", ">ZeRO-1<", ">ZeRO-2<", ">forecast, fits<", ">90% interval<", ">out of memory<",
                           ">observed, of the log<"})
    EXPECT_EQ(count(lines, name), 1) << name;
  // Each but the first is dashed, on the line and in the legend, and its points are smaller.
  EXPECT_EQ(count(lines, "stroke-dasharray=\"9 5\""), 2);
  EXPECT_EQ(count(lines, "stroke-dasharray=\"3 3\""), 2);
  EXPECT_EQ(count(lines, "r=\"6.0\""), 2);
  EXPECT_EQ(count(lines, "r=\"4.0\""), 2);
  // One number of GPUs: bars, and the rows of the log with as many.
  all.resize(3);
  const std::string bars = daysPicture(all, 100e9, c);
  EXPECT_EQ(count(bars, "<rect "), 1 + 3);
  EXPECT_EQ(count(bars, "<circle "), 2) << "rows of 8 GPUs with days";
  EXPECT_EQ(count(bars, " observed<"), 2);
  EXPECT_EQ(count(bars, ", out of memory<"), 1);
  EXPECT_NE(bars.find(", 8 GPUs</text>"), std::string::npos);
  EXPECT_EQ(bars.find("stroke-dasharray"), std::string::npos);
  const std::string open = daysPicture(all, RunTokens(100e9, 90e9, INFINITY), c);
  EXPECT_EQ(count(bars, "<line ") - count(open, "<line "), 3) << "what has no end has no cap there";
  // The same parts by name in the other pictures.
  EXPECT_EQ(count(stepPicture(all[0]), ">90% interval: "), 1);
  const std::string memory = memoryPicture(all[0], {1, 3, 2}, c);
  for (const char *name : {">activations of a pass<", ">gradients<", ">optimizer state<", ">gathered and reserved<"})
    EXPECT_GE(count(memory, name), 1) << name;
  EXPECT_NE(daysPicture({}, 100e9, c).find("</svg>"), std::string::npos);
}

TEST(Search, OthersAreOtherStrategiesThatFit) {
  const ClusterConfig c = loadCluster(sourceFile("examples/clusters/8xh100.toml"));
  const Config config = readForForecast(sourceFile("examples/bloom-7b1.toml"), smallModel(), 8, c);
  Forecaster f(config, c);
  const std::vector<Estimate> found = searchStrategies(f, 8);
  const std::optional<Estimate> best = runnable(f, found);
  ASSERT_TRUE(best && best->fits());
  const std::vector<Estimate> others = othersRunnable(f, found, *best, 2);
  ASSERT_EQ(others.size(), 2u);
  EXPECT_NE(others[0].strategy.name(), best->strategy.name());
  EXPECT_NE(others[1].strategy.name(), best->strategy.name());
  EXPECT_NE(others[0].strategy.name(), others[1].strategy.name());
  EXPECT_GE(others[0].tokensPerSecond * 1.002, others[1].tokensPerSecond);
  for (const Estimate &e : others) {
    EXPECT_TRUE(e.fits() && !e.predictedOnly);
    EXPECT_LE(e.tokensPerSecond, best->tokensPerSecond * 1.002);
    EXPECT_NE(e.binds, "");
    // None of its name that fits is faster.
    for (const Estimate &one : found)
      if (one.strategy.name() == e.strategy.name() && one.fits() && !one.predictedOnly) {
        EXPECT_LE(one.tokensPerSecond, e.tokensPerSecond * 1.002);
      }
  }
  EXPECT_TRUE(othersRunnable(f, {}, *best, 2).empty());
}

TEST(Tokens, TakeSuffixes) {
  const std::pair<const char *, double> good[] = {{"100B", 100e9},  {"1.5T", 1.5e12}, {"250m", 250e6}, {" 8 K ", 8000},
                                                  {"300e9", 300e9}, {"1", 1},         {"1e6T", 1e18},  {"1e+3k", 1e6}};
  for (const auto &[text, n] : good) {
    ASSERT_TRUE(parseTokens(text)) << text;
    EXPECT_DOUBLE_EQ(*parseTokens(text), n) << text;
  }
  for (const char *bad : {"", "B", " ", "100G", "100BB", "B100", "-1B", "0", "0.5", "2e6T", "inf", "nan", "0x10",
                          "1,5T", "infB", "1e999", "1 0"})
    EXPECT_FALSE(parseTokens(bad)) << bad;
}

TEST(Tokens, MayHaveToBeWhole) {
  const std::pair<const char *, int64_t> good[] = {{"512K", 512'000},
                                                   {"1.001k", 1001},
                                                   {"0", 0},
                                                   {" 7 ", 7},
                                                   {"4.2m", 4'200'000},
                                                   {"1e3", 1000},
                                                   {"9007199254740993", 9'007'199'254'740'993}};  // 2^53 + 1
  for (const auto &[text, n] : good)
    EXPECT_EQ(parseWholeTokens(text, 0, int64_t(1) << 60), n) << text;
  for (const char *bad : {"", "K", "1.5", "1.0005k", "-1", "512G", "99999999999999999999", "1e300", "0x1"})
    EXPECT_FALSE(parseWholeTokens(bad, 0, int64_t(1) << 60)) << bad;
  for (const auto &[least, most] : {std::pair(1, 511'999), {512'001, 1'000'000}})
    EXPECT_FALSE(parseWholeTokens("512K", least, most)) << least;
  EXPECT_EQ(parseWholeTokens("512K", 512'000, 512'000), 512'000);
}

TEST(Tokens, OfTheClusterFile) {
  const std::string machines = readSource("examples/clusters/8xh100.toml");
  const std::string row = "[[observation]]\nmodel = \"" + sourceFile("examples/bloom-7b1.toml") +
                          "\"\ngpus = 8\npipeline = 2\ndays = 3\ntokens = ";
  const ClusterConfig c = clusterOf(machines + row + "\"20B\"\n");
  EXPECT_EQ(c.observations[0].tokens, 20e9);
  EXPECT_EQ(c.observations[0].pipeline, 2);
  EXPECT_EQ(clusterOf(machines + row + "20e9\n").observations[0].tokens, 20e9);
  EXPECT_EQ(clusterOf(machines + "global_batch_tokens = \"4M\"\n").limits.globalBatchTokens, 4000000);
  EXPECT_EQ(clusterOf(machines + "global_batch_tokens = 4194304\n").limits.globalBatchTokens, 4194304);
  for (const std::string &text :
       {row + "\"20\xc2\xb5\"\n", row + "-1\n", row + "true\n", std::string("global_batch_tokens = \"9T\"\n")})
    EXPECT_THROW(clusterOf(machines + text), UserError) << text;
}

}  // namespace
}  // namespace gptc::estimate_test

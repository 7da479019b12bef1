// What gptc calibrate finds in logs: those of a real training, and logs made from the model itself.
#include "tools/estimate/calibrate.h"

#include "support.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"
#include "tools/estimate/certainty.h"
#include "tools/estimate/pictures.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace gptc::estimate_test {
namespace {

const ObservedRow &rowOf(const Calibration &c, const std::string &name) {
  for (const ObservedRow &r : c.rows)
    if (r.observation->name == name)
      return r;
  throw std::out_of_range(name);
}

TEST(JeanZay, RowsAreWithinFivePercent) {
  const Calibration c = calibrate(jeanZay());
  EXPECT_LE(c.fitted.size(), 3u);
  int fitted = 0, heldBack = 0;
  for (const ObservedRow &r : c.rows) {
    EXPECT_TRUE(r.contradictions.empty()) << r.observation->name << ": " << r.contradictions.front();
    if (!(r.seen > 0))
      continue;
    EXPECT_LT(std::abs(r.error), 0.05) << r.observation->name;
    EXPECT_EQ(r.fitted, r.observation->fit);
    ++(r.fitted ? fitted : heldBack);
  }
  EXPECT_EQ(fitted, 4);
  EXPECT_EQ(heldBack, 1);
  const ObservedRow &out = rowOf(c, "32 GPUs, ZeRO-2, accumulation 256");
  EXPECT_TRUE(out.estimate.outOfMemory);
  EXPECT_NE(largest(out.estimate.buffers, 1)[0].first.find("attention probabilities"), std::string::npos);
}

TEST(JeanZay, TheFileHoldsWhatCalibrateFinds) {
  const ClusterConfig file = jeanZay();
  const Calibration c = calibrate(file);
  EXPECT_EQ(withFitted(readSource("examples/clusters/jean-zay.toml"), c.cluster),
            readSource("examples/clusters/jean-zay.toml"));
  // And from nothing, too.
  ClusterConfig open = file;
  open.software.slowdown.known = open.software.stepOverhead.known = open.network.effective.known = false;
  const Calibration again = calibrate(open);
  EXPECT_NEAR(again.cluster.software.slowdown / file.software.slowdown, 1, 1e-3);
  EXPECT_NEAR(again.cluster.network.effective / file.network.effective, 1, 1e-3);
  EXPECT_NEAR(again.cluster.software.stepOverhead / file.software.stepOverhead, 1, 1e-3);
  ASSERT_TRUE(file.software.scatter && again.cluster.software.scatter);
  EXPECT_NEAR(*again.cluster.software.scatter / *file.software.scatter, 1, 1e-3);
}

// The residuals' deviation by hand, with one degree of freedom: four rows, three scalars.
TEST(JeanZay, SingleRunsScatterAsItsRowsDo) {
  const Calibration c = calibrate(jeanZay());
  double squares = 0;
  int rows = 0;
  for (const ObservedRow &r : c.rows)
    if (r.fitted) {
      squares += std::pow(std::log(r.predicted / r.seen), 2);
      ++rows;
    }
  ASSERT_EQ(rows, 4);
  ASSERT_TRUE(c.cluster.software.scatter);
  EXPECT_NEAR(std::log(*c.cluster.software.scatter), 6.314 * std::sqrt(squares), 1e-6);
}

TEST(JeanZay, PredictionsRunWithoutAnyOneObservation) {
  const ClusterConfig all = jeanZay();
  for (size_t gone = 0; gone < all.observations.size(); ++gone) {
    ClusterConfig c = all;
    c.observations.erase(c.observations.begin() + long(gone));
    c.software.slowdown.known = c.software.stepOverhead.known = c.network.effective.known = false;
    const Calibration found = calibrate(c);
    EXPECT_LE(found.fitted.size(), 3u);
    for (const Observation &o : all.observations) {
      const Config config = readForForecast(o.model, o.settings, o.gpus, found.cluster);
      Forecaster f(config, found.cluster);
      const Estimate e = f.estimate(f.strategyFor(o.gpus));
      EXPECT_EQ(e.problem, "");
      EXPECT_TRUE(std::isfinite(e.step) && e.step > 0) << o.name << " without " << all.observations[gone].name;
      EXPECT_EQ(e.outOfMemory, o.outOfMemory) << o.name;
    }
  }
}

/// A run of a log.
struct Logged {
  int gpus, stage, micro, accumulate, context;
  bool remat;
  std::vector<std::string> settings() const {
    return {fmt::format("parallel.zero_stage={}", stage), fmt::format("train.micro_batch={}", micro),
            fmt::format("accumulate={}", accumulate), fmt::format("model.block_size={}", context),
            fmt::format("compile.remat={}", remat ? "full" : "none")};
  }
  std::string row(const std::string &what) const {
    return fmt::format("[[observation]]\nmodel = \"{}\"\ngpus = {}\nzero_stage = {}\nmicro_batch = {}\n"
                       "accumulate = {}\nblock_size = {}\nremat = \"{}\"\n{}\n",
                       sourceFile("examples/bloom-7b1.toml"), gpus, stage, micro, accumulate, context,
                       remat ? "full" : "none", what);
  }
};

/// The machines of Jean Zay with none of the scalars.
std::string machines() {
  std::string text, all = readSource("examples/clusters/jean-zay.toml");
  all.resize(all.find("[[observation]]"));
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(all).split(lines, '\n');
  for (llvm::StringRef l : lines)
    if (!l.starts_with("slowdown") && !l.starts_with("step_overhead") && !l.starts_with("effective") &&
        !l.starts_with("scatter"))
      text += l.str() + "\n";
  return text;
}

struct Truth {
  double slowdown, effective, overhead;
};

/// Seconds per step of runs where the scalars are these.
std::vector<double> stepsOf(const std::vector<Logged> &runs, const Truth &truth) {
  ClusterConfig c = jeanZay();
  c.software.slowdown = Fitted(truth.slowdown);
  c.software.stepOverhead = Fitted(truth.overhead);
  c.network.effective = Fitted(truth.effective);
  std::vector<double> steps;
  for (const Logged &r : runs) {
    const Estimate e = forecast(c, r.gpus, r.settings());
    EXPECT_TRUE(e.fits()) << "such a run would not be in a log";
    steps.push_back(e.step);
  }
  return steps;
}

ClusterConfig logOf(const std::vector<Logged> &runs, const std::vector<double> &steps) {
  std::string text = machines();
  for (size_t i = 0; i < runs.size(); ++i)
    text += runs[i].row(fmt::format("step = \"{:.17g} s\"", steps[i]));
  return clusterOf(text);
}

/// Of each scalar there are several rows that say something.
const std::vector<Logged> &variedRuns() {
  static const std::vector<Logged> runs = {
      {8, 1, 1, 1, 1024, false},  {8, 1, 1, 1, 1024, true},  {4, 1, 1, 2, 1024, true},    {8, 3, 1, 1, 1024, false},
      {8, 1, 2, 64, 1024, true},  {4, 1, 2, 16, 1024, true}, {16, 1, 2, 256, 1024, true}, {32, 3, 1, 16, 2048, true},
      {16, 3, 1, 4, 1024, false}, {48, 1, 1, 8, 2048, true}, {64, 1, 1, 1, 1024, false},  {32, 2, 1, 16, 1024, false},
  };
  return runs;
}

void expectNoFlags(const Calibration &c) {
  for (const ObservedRow &r : c.rows)
    for (const std::string &why : r.contradictions)
      ADD_FAILURE() << r.observation->name << ": " << why;
}

TEST(Made, ExactLogsGiveTheScalarsBack) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> u(0, 1);
  for (int i = 0; i < gptc::test::sized(4, 8); ++i) {
    const Truth truth{1.2 * std::pow(6, u(random)), 1e9 * std::pow(20, u(random)), 0.3 * std::pow(10, u(random))};
    const Calibration c = calibrate(logOf(variedRuns(), stepsOf(variedRuns(), truth)));
    expectNoFlags(c);
    EXPECT_EQ(c.fitted.size(), 3u);
    EXPECT_NEAR(c.cluster.software.slowdown / truth.slowdown, 1, 1e-4);
    EXPECT_NEAR(c.cluster.network.effective / truth.effective, 1, 1e-4);
    EXPECT_NEAR(c.cluster.software.stepOverhead / truth.overhead, 1, 1e-4);
  }
}

TEST(Made, NoiseIsNoContradictionAndTheIntervalsHoldTheTruth) {
  std::mt19937 random(11), tomorrow(12);
  std::uniform_real_distribution<double> u(0, 1), noise(-0.03, 0.03);
  int held = 0, intervals = 0, inside = 0, ofMean = 0;
  const int logs = gptc::test::sized(10, 20);
  for (int i = 0; i < logs; ++i) {
    const Truth truth{1.2 * std::pow(6, u(random)), 1e9 * std::pow(20, u(random)), 0.3 * std::pow(10, u(random))};
    std::vector<Logged> runs;
    for (const Logged &r : variedRuns())
      if (runs.size() < 6 || u(random) < 0.6)
        runs.push_back(r);
    for (int k = 0; k < 3; ++k)  // and a few again: the same configuration, a little different
      runs.push_back(runs[random() % runs.size()]);
    runs.push_back(variedRuns()[7]);  // some network in each
    std::vector<double> steps = stepsOf(runs, truth);
    for (double &s : steps)
      s *= std::exp(noise(random));
    const Calibration c = calibrate(logOf(runs, steps));
    expectNoFlags(c);
    EXPECT_LE(c.fitted.size(), 3u);
    for (const ObservedRow &r : c.rows)
      EXPECT_LT(std::abs(r.error), 0.08) << r.observation->name;
    const std::pair<Fitted, double> found[] = {{c.cluster.software.slowdown, truth.slowdown},
                                               {c.cluster.network.effective, truth.effective},
                                               {c.cluster.software.stepOverhead, truth.overhead}};
    for (auto &[f, value] : found) {
      ++intervals;
      held += f.low <= value && value <= f.high;
    }
    // Three runs of tomorrow, as noisy: within the interval of a single run, and not always within that of the mean.
    ASSERT_TRUE(c.cluster.software.scatter);
    ClusterConfig mean = c.cluster;
    mean.software.scatter.reset();
    for (size_t k = 0; k < 3; ++k) {
      const Logged &r = variedRuns()[4 + k];
      const double took = stepsOf({r}, truth)[0] * std::exp(noise(tomorrow));
      auto holds = [&](const ClusterConfig &by) {
        Forecaster f(bloom(by, r.gpus, r.settings()), by);
        const Estimate e = f.estimate(f.strategyFor(r.gpus));
        const Certainty sure = certaintyOf(f, e);
        return sure.low * e.step <= took && took <= sure.high * e.step;
      };
      inside += holds(c.cluster);
      ofMean += holds(mean);
    }
  }
  // Of 90% intervals: fewer than 45 of 60, or 21 of 30, have a chance below 1 in 1000.
  EXPECT_EQ(intervals, 3 * logs);
  EXPECT_GE(held, gptc::test::sized(21, 45));
  EXPECT_GE(inside, gptc::test::sized(21, 45)) << "of as many single runs";
  // Those of the mean leave out each run with a chance of a third or more, as they reach 1% to 2.6% and the noise 3%:
  // all of 30 are in them with a chance of (2/3)^30, below 1 in 100000.
  EXPECT_GT(inside, ofMean);
}

bool says(const ObservedRow &r, const std::string &what) {
  for (const std::string &why : r.contradictions)
    if (why.find(what) != std::string::npos)
      return true;
  return false;
}

const Truth usual{4, 5e9, 0.8};

TEST(Planted, OneRowAgainstAllOthers) {
  const std::vector<Logged> &runs = variedRuns();
  const std::vector<double> steps = stepsOf(runs, usual);
  gptc::test::OneIn some(3);
  for (size_t bad = 0; bad < runs.size(); ++bad)
    for (double factor : {1.5, 1 / 1.5}) {
      if (some.skips())
        continue;
      std::vector<double> wrong = steps;
      wrong[bad] *= factor;
      const Calibration c = calibrate(logOf(runs, wrong));
      for (size_t i = 0; i < runs.size(); ++i)
        EXPECT_EQ(!c.rows[i].contradictions.empty(), i == bad) << "row " << i + 1 << " of which " << bad + 1 << " lies";
      EXPECT_TRUE(says(c.rows[bad], "contradicts the other rows"));
      EXPECT_TRUE(says(c.rows[bad], "for it to be true"));
      EXPECT_NEAR(c.cluster.software.slowdown / usual.slowdown, 1, 1e-3);
      EXPECT_NEAR(c.cluster.network.effective / usual.effective, 1, 1e-3);
    }
}

TEST(Planted, FasterThanTheDevice) {
  const std::vector<Logged> &runs = variedRuns();
  std::vector<double> steps = stepsOf(runs, usual);
  steps[4] /= 4.5;
  const Calibration c = calibrate(logOf(runs, steps));
  EXPECT_TRUE(says(c.rows[4], "faster than the device"));
  EXPECT_FALSE(c.rows[4].fitted);
  EXPECT_NEAR(c.cluster.software.slowdown / usual.slowdown, 1, 1e-3);
  // What would have to be true: a step that the device can do.
  steps[4] *= 1.2;
  EXPECT_FALSE(says(calibrate(logOf(runs, steps)).rows[4], "faster than the device"));
}

TEST(Planted, FasterThanTheNetwork) {
  // Slow enough for the device, and too fast for what ZeRO-3 sends with each of 16 passes.
  const std::vector<Logged> &runs = variedRuns();
  std::vector<double> steps = stepsOf(runs, usual);
  steps[7] = 11;
  const Calibration c = calibrate(logOf(runs, steps));
  EXPECT_TRUE(says(c.rows[7], "faster than the network"));
  EXPECT_FALSE(says(c.rows[7], "faster than the device"));
  EXPECT_FALSE(c.rows[7].fitted);
}

TEST(Planted, TheSameConfigurationWithOtherFigures) {
  std::vector<Logged> runs = variedRuns();
  runs.push_back(runs[4]);
  std::vector<double> steps = stepsOf(runs, usual);
  steps.back() *= 1.25;
  const Calibration c = calibrate(logOf(runs, steps));
  EXPECT_TRUE(says(c.rows.back(), "\"row 5\" is the same configuration"));
  EXPECT_FALSE(c.rows.back().impossible);  // either may be the wrong one
  for (size_t i = 0; i + 1 < runs.size(); ++i)
    EXPECT_TRUE(i == 4 || c.rows[i].contradictions.empty()) << i + 1;
}

/// A run of BLOOM-7B as a log may say it.
std::string rowOf(int gpus, const std::string &settings, double step) {
  return fmt::format("[[observation]]\nmodel = \"{}\"\ngpus = {}\n{}\nstep = \"{:.17g} s\"\n",
                     sourceFile("examples/bloom-7b1.toml"), gpus, settings, step);
}

bool notes(const Calibration &c, const char *what) {
  return llvm::any_of(c.notes, [&](const std::string &n) { return n.find(what) != std::string::npos; });
}

// Two pairs of equal runs with other figures: leaving one row out mends one pair only, and the rest tells who lies.
TEST(Planted, TwoPairsThatContradict) {
  std::vector<Logged> runs;
  for (size_t i = 0; i < 6; ++i)
    runs.push_back(variedRuns()[i]);
  runs.push_back(runs[0]);
  runs.push_back(runs[4]);
  std::vector<double> steps = stepsOf(runs, usual);
  steps[6] *= 1.3;
  steps[7] *= 1.3;
  const Calibration c = calibrate(logOf(runs, steps));
  for (size_t i = 0; i < runs.size(); ++i)
    EXPECT_EQ(c.rows[i].fitted, i < 6) << i + 1;
  EXPECT_TRUE(says(c.rows[6], "is the same configuration"));
  EXPECT_TRUE(says(c.rows[6], "contradicts the other rows"));
  EXPECT_NEAR(c.cluster.software.slowdown / usual.slowdown, 1, 1e-3);
  EXPECT_FALSE(notes(c, "which are wrong is open"));
}

// Nothing tells which of the rows lies; the fit stays near the two that agree instead of at the mean.
TEST(Planted, WhereNobodyKnowsWhoLiesTheFitIsRobust) {
  const std::vector<Logged> runs(3, variedRuns()[0]);
  std::vector<double> steps = stepsOf(runs, usual);
  steps[2] *= 1.3;
  const Calibration c = calibrate(logOf(runs, steps));
  for (int i : {0, 1, 2})
    EXPECT_TRUE(c.rows[size_t(i)].fitted);
  EXPECT_TRUE(notes(c, "which are wrong is open"));
  // The mean would be 9.1% off. With Huber's loss: 2 x the error is 0.08.
  EXPECT_NEAR(std::log(1 + c.rows[0].error), 0.04, 0.005);
  EXPECT_FALSE(notes(calibrate(logOf({runs[0], runs[1]}, {steps[0], steps[1] * 1.05})), "which are wrong is open"));
}

TEST(Planted, ALargerMicroBatchThatIsNotFaster) {
  const Logged small{8, 1, 1, 4, 1024, true}, large{8, 1, 2, 4, 1024, true}, fewer{8, 1, 2, 1, 1024, true};
  auto told = [&](const Logged &other, double step) {
    const Calibration c = calibrate(logOf({small, other}, {5, step}));
    EXPECT_FALSE(says(c.rows[0], "micro-batch")) << step;
    return says(c.rows[1], "micro-batch 2 was");
  };
  EXPECT_TRUE(told(large, 10.2));
  EXPECT_FALSE(told(large, 9.8));
  EXPECT_FALSE(told(large, 10.01)) << "as fast";
  EXPECT_FALSE(told(fewer, 4.9)) << "a step of fewer tokens, whose fixed costs count more";
  Logged other = large;
  other.remat = false;
  EXPECT_FALSE(told(other, 10.2));
  // In either order of the rows.
  const Calibration c = calibrate(logOf({large, small}, {10.2, 5}));
  EXPECT_TRUE(says(c.rows[0], "micro-batch 2 was 0.98 x as fast as 1 in \"row 2\""));
}

TEST(Planted, RowsWithPipelines) {
  const std::string words = "zero_stage = 1\nmicro_batch = 1\naccumulate = 8\nremat = \"none\"\n";
  const ClusterConfig c = clusterOf(machines() + rowOf(10, words + "pipeline = 5", 30) + rowOf(8, words, 30));
  const Calibration found = calibrate(c);
  EXPECT_EQ(found.rows[0].estimate.strategy.pipeline, 5);
  EXPECT_EQ(found.rows[0].estimate.strategy.data(), 2);
  EXPECT_GT(found.rows[0].estimate.bubble, 0);
  EXPECT_EQ(found.rows[1].estimate.strategy.pipeline, 1);
  // Stages that do not divide the GPUs, or the layers.
  for (int stages : {3, 4})
    EXPECT_THROW(calibrate(clusterOf(machines() + rowOf(8, words + fmt::format("pipeline = {}", stages), 30))),
                 UserError)
        << stages;
}

TEST(Planted, TheSameConfigurationInOtherWords) {
  const std::string asked = "zero_stage = 1\nmicro_batch = 2\naccumulate = 4\n";
  const std::pair<const char *, std::string> same[] = {
      {"other order", "accumulate = 4\nmicro_batch = 2\nzero_stage = 1"},
      {"full names", "set = [\"train.micro_batch=2\", \"accumulate=4\", \"parallel.zero_stage=1\"]"},
      {"tokens for passes", "zero_stage = 1\nmicro_batch = 2\nset = [\"train.global_batch_tokens=65536\"]"},
      {"what the model says", "zero_stage = 1\naccumulate = 4\nblock_size = 1024\nset = [\"model.n_layer=30\"]"},
      {"defaults", asked + "remat = \"none\"\ncompute = \"bf16\"\noptimizer = \"adamw\"\ntensor = 1"},
      {"where there is one", asked + "set = [\"model.n_kv_head=32\", \"parallel.compression=none\"]"},
      {"what costs nothing", asked + "set = [\"optimizer.lr=1e-4\", \"train.seed=7\", \"train.steps=9\"]"},
  };
  for (const auto &[how, words] : same)
    for (bool agrees : {false, true}) {
      const double step = agrees ? 10.5 : 12.5;
      const Calibration c = calibrate(clusterOf(machines() + rowOf(8, asked, 10) + rowOf(8, words, step)));
      EXPECT_EQ(says(c.rows[1], "\"row 1\" is the same configuration and took 10 s"), !agrees) << how;
    }
  const std::pair<const char *, std::string> others[] = {
      {"stage", "zero_stage = 2\nmicro_batch = 2\naccumulate = 4"},
      {"micro-batch", "zero_stage = 1\nmicro_batch = 1\naccumulate = 4"},
      {"passes", "zero_stage = 1\nmicro_batch = 2\naccumulate = 2"},
      {"context", asked + "block_size = 512"},
      {"layers", asked + "set = [\"model.n_layer=29\"]"},
      {"activation", asked + "set = [\"model.activation=gelu\"]"},
      {"dropout", asked + "set = [\"model.dropout=0.1\"]"},
      {"checkpointing", asked + "remat = \"full\""},
      {"optimizer", asked + "optimizer = \"adafactor\""},
      {"precision", asked + "compute = \"fp16\""},
      {"moments", asked + "set = [\"precision.optimizer_state=bf16\"]"},
      {"offload", asked + "offload = \"optimizer\""},
      {"tensor", asked + "tensor = 2"},
      {"compression", "zero_stage = 0\nmicro_batch = 2\naccumulate = 4\ncompression = \"powersgd\""},
  };
  for (const auto &[how, words] : others) {
    const Calibration c = calibrate(clusterOf(machines() + rowOf(8, asked, 10) + rowOf(8, words, 5)));
    EXPECT_FALSE(says(c.rows[1], "is the same configuration")) << how;
  }
}

TEST(Planted, AnotherMemoryThanWasSeen) {
  const std::vector<Logged> &runs = variedRuns();
  ClusterConfig log = logOf(runs, stepsOf(runs, usual));
  const Calibration quiet = calibrate(log);
  log.observations[0].bytesPeak = quiet.rows[0].estimate.bytesPeak() * 1.1;
  log.observations[1].bytesPeak = quiet.rows[1].estimate.bytesPeak() * 1.3;
  const Calibration c = calibrate(log);
  EXPECT_TRUE(c.rows[0].contradictions.empty());
  EXPECT_TRUE(says(c.rows[1], "and is predicted to need"));
  EXPECT_TRUE(c.rows[1].fitted);
}

TEST(Planted, MoreGpusThanTheirShareOfSpeed) {
  std::vector<Logged> runs = variedRuns();
  runs.push_back({32, 1, 2, 256, 1024, true});  // as row 7, with twice the GPUs
  std::vector<double> steps = stepsOf(runs, usual);
  EXPECT_FALSE(says(calibrate(logOf(runs, steps)).rows.back(), "x as fast"));
  steps.back() /= 1.3;  // a step does twice the work in less time
  const Calibration c = calibrate(logOf(runs, steps));
  EXPECT_TRUE(says(c.rows.back(), "2.00 x the GPUs of \"row 7\" were 2.6"));
}

/// What the second of two rows on 8 and on 16 GPUs is told.
bool tooFast(int passes, double step, int passesOfMore, double stepOfMore) {
  auto words = [](int n) { return fmt::format("zero_stage = 1\nmicro_batch = 2\naccumulate = {}", n); };
  const Calibration c =
      calibrate(clusterOf(machines() + rowOf(8, words(passes), step) + rowOf(16, words(passesOfMore), stepOfMore)));
  EXPECT_FALSE(says(c.rows[0], "x as fast"));
  return says(c.rows[1], "2.00 x the GPUs of \"row 1\" were");
}

TEST(Planted, MoreGpusThanTheirShareWithOtherPasses) {
  // The same passes of each, whatever a step has of them: no shorter step.
  EXPECT_FALSE(tooFast(64, 130, 64, 128));
  EXPECT_TRUE(tooFast(64, 130, 64, 118));
  // The same global batch: half the passes in no less than half of the time.
  EXPECT_FALSE(tooFast(64, 130, 32, 64));
  EXPECT_TRUE(tooFast(64, 130, 32, 59));
  // More passes make what comes once a step cheaper, so that 16 GPUs may be 30 times as fast, but no step shorter.
  EXPECT_FALSE(tooFast(1, 14, 64, 60));
  EXPECT_FALSE(tooFast(1, 14, 64, 13.5));
  EXPECT_TRUE(tooFast(1, 14, 64, 12));
}

TEST(Planted, WhatIsSharedOutMayGetFasterThanByTheNumberOfGpus) {
  // One pass of few tokens, in which the optimizer takes long, and links that take no time: ZeRO shares it out, so that
  // 8 GPUs are more than 8 times as fast as one.
  std::string text = readSource("examples/clusters/8xa100-80gb.toml");
  const std::string links = "bandwidth = \"230 GB/s\"";
  text.replace(text.find(links), links.size(), "latency = \"0 us\"\nbandwidth = \"90 TB/s\"");
  const std::string words =
      "zero_stage = 1\nmicro_batch = 1\naccumulate = 1\nset = [\"model.n_layer=4\", \"model.block_size=128\"]";
  const ClusterConfig c = clusterOf(text + rowOf(1, words, 1) + rowOf(8, words, 1));
  double steps[2];
  for (int i : {0, 1}) {
    const Observation &o = c.observations[size_t(i)];
    steps[i] = forecast(c, o.gpus, o.settings).step;
  }
  EXPECT_LT(steps[1] * 1.3, steps[0]);
  expectNoFlags(calibrate(clusterOf(text + rowOf(1, words, steps[0]) + rowOf(8, words, steps[1]))));
  EXPECT_TRUE(says(calibrate(clusterOf(text + rowOf(1, words, steps[0]) + rowOf(8, words, steps[1] / 1.2))).rows[1],
                   "8.00 x the GPUs of \"row 1\""));
}

/// A speed as one of the three figures that a log may have, of a step of so many tokens.
std::string speedAs(const std::string &figure, double step, double tokens) {
  return figure == "days"           ? fmt::format("tokens = 5e9\ndays = {:.17g}", step * 5e9 / tokens / 86400)
         : figure == "tokens_per_s" ? fmt::format("tokens_per_s = {:.17g}", tokens / step)
                                    : fmt::format("step = \"{:.17g} s\"", step);
}

/// The number behind `words` in what a row is told.
double figureIn(const ObservedRow &r, const std::string &words) {
  for (const std::string &why : r.contradictions)
    if (const size_t at = why.find(words); at != std::string::npos)
      return std::stod(why.substr(at + words.size()));
  ADD_FAILURE() << "nobody says " << words;
  return 1;
}

class EachFigure : public testing::TestWithParam<std::tuple<const char *, bool>> {};
INSTANTIATE_TEST_SUITE_P(Planted, EachFigure,
                         testing::Combine(testing::Values("step", "days", "tokens_per_s"), testing::Bool()),
                         [](const auto &info) {
                           return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "Fit" : "NotFit");
                         });

// Every way to break physics, in every figure, in rows that are fitted and in others; and a row that takes what the
// flag says it must is not flagged.
TEST_P(EachFigure, SaysWhatCannotBeAndWhatCould) {
  const auto [figure, fit] = GetParam();
  const Logged one{8, 1, 1, 1, 1024, false}, two{16, 1, 1, 1, 1024, false}, wide{32, 3, 1, 16, 2048, true};
  struct Case {
    Logged first, second;  // with the steps; the second breaks what cannot be
    double stepOfFirst, stepOfSecond;
    std::string flag, figureBehind;
  };
  const Case cases[] = {
      {one, {8, 1, 2, 64, 1024, true}, 3, 10, "faster than the device", "the step must take "},
      {one, wide, 3, 11, "faster than the network", "what ranks send takes "},
      {one, one, 3, 3.5, "is the same configuration and took 3 s", "is the same configuration and took "},
      {one, two, 3, 2, "2.00 x the GPUs of \"row 1\" were 3.00 x as fast", "would have to take "},
  };
  for (const Case &k : cases) {
    auto tokens = [](const Logged &l) { return double(l.gpus) * l.micro * l.accumulate * l.context; };
    auto rows = [&](double second) {
      const std::string fitted = fit ? "" : "\nfit = false";
      return calibrate(clusterOf(machines() + k.first.row(speedAs(figure, k.stepOfFirst, tokens(k.first))) +
                                 k.second.row(speedAs(figure, second, tokens(k.second)) + fitted)));
    };
    const Calibration c = rows(k.stepOfSecond);
    EXPECT_TRUE(says(c.rows[1], k.flag)) << k.flag;
    EXPECT_TRUE(c.rows[0].contradictions.empty()) << k.flag;
    EXPECT_NEAR(c.rows[1].seen / k.stepOfSecond, 1, 1e-9);
    // What would have to be true, in seconds and in the log's own figure.
    const double least = figureIn(c.rows[1], k.figureBehind);
    EXPECT_FALSE(says(rows(least * 1.001).rows[1], k.flag)) << k.flag;
    const std::string inFigure = std::string(figure) == "days" ? " days)" : " tokens/s)";
    EXPECT_EQ(says(c.rows[1], inFigure), std::string(figure) != "step") << k.flag;
  }
}

TEST(Planted, RowsThatAgreeAreNotFlagged) {
  const std::vector<Logged> runs = {variedRuns()[0], variedRuns()[0], variedRuns()[4], variedRuns()[0]};
  std::vector<double> steps = stepsOf(runs, usual);
  steps[1] *= 1.03;
  expectNoFlags(calibrate(logOf(runs, steps)));
  // Of three, each of the others that differs is told.
  steps[3] *= 1.2;
  const Calibration c = calibrate(logOf(runs, steps));
  EXPECT_TRUE(c.rows[0].contradictions.empty());
  EXPECT_TRUE(c.rows[1].contradictions.empty());
  EXPECT_TRUE(says(c.rows[3], "\"row 1\" is the same configuration"));
  EXPECT_TRUE(says(c.rows[3], "\"row 2\" is the same configuration"));
}

TEST(Planted, WhatIsHiddenIsSentToo) {
  std::string text = machines();
  text.replace(text.find("[software]"), 10, "[software]\noverlap = 1.0");
  const Calibration c =
      calibrate(clusterOf(text + variedRuns()[0].row("step = \"3 s\"") + variedRuns()[7].row("step = \"11 s\"")));
  EXPECT_TRUE(says(c.rows[1], "faster than the network"));
}

TEST(Planted, MoreMemoryThanTheDeviceHas) {
  const std::vector<Logged> &runs = variedRuns();
  ClusterConfig log = logOf(runs, stepsOf(runs, usual));
  log.observations[0].bytesPeak = 80.5 * 0x1p30;
  const Calibration c = calibrate(log);
  EXPECT_TRUE(says(c.rows[0], "took 80.5 GiB of a device that has 80.0 GiB; it must be the memory of several"));
  EXPECT_FALSE(says(c.rows[0], "is predicted to need"));
}

TEST(Planted, OutOfMemoryWhereTheSameRan) {
  // Predicted to fit and not to fit; the passes of a step make no difference to memory.
  for (const Logged &run : {Logged{8, 1, 1, 4, 1024, false}, Logged{32, 2, 2, 16, 2048, false}}) {
    Logged more = run;
    more.accumulate *= 2;
    Logged other = run;
    other.micro = 1;
    for (const char *ran : {"step = \"40 s\"", "memory = \"70 GiB\""}) {
      const std::string rest = variedRuns()[0].row("step = \"3 s\"") + run.row("out_of_memory = true");
      EXPECT_TRUE(says(calibrate(clusterOf(machines() + rest + more.row(ran))).rows[1],
                       "ran out of memory, and \"row 3\" ran in the same configuration"));
      if (run.micro > 1) {
        EXPECT_FALSE(
            says(calibrate(clusterOf(machines() + rest + other.row(ran))).rows[1], "in the same configuration"));
      }
    }
  }
}

TEST(Planted, TheSameConfigurationWithOtherMemory) {
  const std::string row = variedRuns()[0].row("step = \"3 s\"\nmemory = \"48 GiB\"");
  const Calibration c = calibrate(clusterOf(machines() + row + variedRuns()[0].row("memory = \"54 GiB\"") +
                                            variedRuns()[0].row("memory = \"58 GiB\"")));
  EXPECT_FALSE(says(c.rows[1], "is the same configuration"));
  EXPECT_TRUE(says(c.rows[2], "\"row 1\" is the same configuration and took 48.0 GiB, this one 58.0 GiB"));
}

TEST(JeanZay, RowsLeaveTheMemoryOfTheDriverOpen) {
  // As the file says where it assumes one.
  for (const auto &[context, agree] : {std::pair{0.0, true}, {1.0, true}, {23.0, true}, {24.0, false}}) {
    ClusterConfig c = jeanZay();
    c.software.context = context * 0x1p30;
    int flags = 0;
    for (const ObservedRow &r : calibrate(c).rows)
      flags += !r.contradictions.empty();
    EXPECT_EQ(flags == 0, agree) << context << " GiB";
  }
}

TEST(Planted, MemoryThatCannotBe) {
  const Logged small{8, 3, 1, 1, 1024, true}, large{8, 1, 16, 1, 2048, false};
  const std::vector<Logged> &runs = variedRuns();
  std::string text = machines();
  const std::vector<double> steps = stepsOf(runs, usual);
  for (size_t i = 0; i < runs.size(); ++i)
    text += runs[i].row(fmt::format("step = \"{} s\"", steps[i]));
  const Calibration c =
      calibrate(clusterOf(text + small.row("out_of_memory = true") + large.row("fit = false\nstep = \"30 s\"")));
  EXPECT_TRUE(says(c.rows[runs.size()], "ran out of memory, and is predicted to need"));
  EXPECT_TRUE(says(c.rows[runs.size() + 1], "ran, and is predicted to need"));
}

TEST(Calibrate, FitsNoMoreThanThereIsToFit) {
  const std::vector<Logged> one = {variedRuns()[0]};
  const Calibration c = calibrate(logOf(one, stepsOf(one, usual)));
  EXPECT_EQ(c.fitted.size(), 1u);
  EXPECT_FALSE(c.notes.empty());
  EXPECT_NEAR(c.rows[0].error, 0, 1e-6);
  EXPECT_TRUE(std::isnan(c.rows[0].leftOut)) << "nothing is left to predict it from";
  // One node says nothing of the network; a scalar that is named twice is one.
  const std::vector<Logged> node = {variedRuns()[0], variedRuns()[4], variedRuns()[5]};
  const Calibration d = calibrate(logOf(node, stepsOf(node, usual)));
  EXPECT_EQ(d.fitted.size(), 2u);
  EXPECT_NEAR(d.cluster.software.slowdown / usual.slowdown, 1, 1e-4);
  const Calibration e = calibrate(logOf(node, stepsOf(node, usual)), {Scalar::slowdown, Scalar::slowdown});
  EXPECT_EQ(e.fitted.size(), 1u);
}

TEST(Calibrate, KeepsHowFarRunsScatterInTheFile) {
  std::vector<double> steps = stepsOf(variedRuns(), usual);
  for (size_t i = 0; i < steps.size(); ++i)
    steps[i] *= i % 2 ? 1.02 : 1 / 1.02;
  const std::string text = machines();
  const Calibration c = calibrate(logOf(variedRuns(), steps));
  ASSERT_TRUE(c.cluster.software.scatter);
  EXPECT_GT(*c.cluster.software.scatter, 1.02);
  const std::string written = withFitted(text, c.cluster);
  const ClusterConfig read = clusterOf(written);
  EXPECT_NEAR(*read.software.scatter / *c.cluster.software.scatter, 1, 1e-3);
  EXPECT_EQ(withFitted(written, read), written);
  // As many scalars as rows tell nothing of it, and what an earlier fit wrote goes.
  const std::vector<Logged> three = {variedRuns()[0], variedRuns()[6], variedRuns()[8]};
  ClusterConfig exact = logOf(three, stepsOf(three, usual));
  exact.software.scatter = 1.5;
  const Calibration e = calibrate(exact);
  ASSERT_EQ(e.fitted.size(), 3u);
  EXPECT_FALSE(e.cluster.software.scatter);
  EXPECT_TRUE(notes(e, "nor how far single runs scatter"));
  EXPECT_EQ(withFitted(written, e.cluster).find("scatter"), std::string::npos);
  // Nor do two rows that are 5 x apart: with one degree of freedom, a run would lie within a factor of over 1000.
  const double step = steps[0];
  const Calibration apart = calibrate(logOf({variedRuns()[0], variedRuns()[0]}, {step, 5 * step}), {Scalar::slowdown});
  EXPECT_FALSE(apart.cluster.software.scatter);
  EXPECT_TRUE(notes(apart, "these rows say nothing of how far single runs scatter"));
  EXPECT_FALSE(notes(c, "single runs scatter"));
  for (const char *bad : {"0.9", "101", "nan", "\"1.1\""})
    EXPECT_THROW(clusterOf(fmt::format("{}scatter = {}\n", text, bad)), UserError) << bad;
}

TEST(Calibrate, FitsFromWhateverTheFileSays) {
  ClusterConfig c = jeanZay();
  const double slowdown = c.software.slowdown, effective = c.network.effective;
  c.network.effective = Fitted(500e9);
  c.network.effective.low = 400e9, c.network.effective.high = 600e9;  // so that it is fitted
  const Calibration found = calibrate(c);
  EXPECT_NEAR(found.cluster.software.slowdown / slowdown, 1, 1e-3);
  EXPECT_NEAR(found.cluster.network.effective / effective, 1, 1e-3);
  for (const std::string &note : found.notes)
    EXPECT_EQ(note.find("no difference"), std::string::npos) << note;
}

TEST(Calibrate, SaysWhatRowsCannotSay) {
  auto has = [](const Calibration &c, const char *what) {
    return llvm::any_of(c.notes, [&](const std::string &n) { return n.find(what) != std::string::npos; });
  };
  // Of one configuration the slowdown and the overhead are one sum.
  const std::vector<Logged> alike(4, variedRuns()[0]);
  const Calibration c = calibrate(logOf(alike, stepsOf(alike, usual)));
  EXPECT_TRUE(has(c, "these rows cannot tell")) << c.notes.front();
  EXPECT_FALSE(has(c, "no difference"));
  // On another number of GPUs than was written all is off.
  ClusterConfig wrong = jeanZay();
  for (Observation &o : wrong.observations)
    if (o.gpus == 8)
      o.gpus = 16;
  const Calibration d = calibrate(wrong);
  EXPECT_TRUE(has(d, "do not agree with one another"));
  for (const Fitted *f : {&d.cluster.software.slowdown, &d.cluster.software.stepOverhead, &d.cluster.network.effective})
    EXPECT_LE(f->high, 1e4 * f->value);
  // Scalars without an interval are given.
  ClusterConfig given = jeanZay();
  for (Fitted *f : {&given.software.slowdown, &given.software.stepOverhead, &given.network.effective})
    *f = Fitted(f->value);
  EXPECT_TRUE(has(calibrate(given), "--fit NAME"));
  // And what nobody wrote of a run is assumed.
  Observation bare;
  bare.name = "bare";
  bare.model = jeanZay().observations[0].model;
  bare.gpus = 8, bare.days = 258;
  given.observations = {bare};
  EXPECT_TRUE(has(calibrate(given), "\"bare\" does not say how it ran; assumed: zero_stage = 1"));
}

TEST(Calibrate, ACopyElsewhereFindsItsModels) {
  const std::string text = "[[observation]]\nmodel = \"../m.toml\"  # so\n[[observation]]\nmodel = \"/abs/m.toml\"\n";
  EXPECT_EQ(movedTo(text, "/a/b/c.toml", "/a/b/d.toml"), text);
  EXPECT_EQ(movedTo(text, "/a/b/c.toml", "/a/x/y/d.toml"),
            "[[observation]]\nmodel = \"../../m.toml\"  # so\n[[observation]]\nmodel = \"/abs/m.toml\"\n");
}

TEST(Calibrate, WhatHadNoMemoryHasNoSpeed) {
  try {
    clusterOf(machines() + variedRuns()[0].row("days = 258\nout_of_memory = true"));
    ADD_FAILURE() << "taken";
  } catch (const UserError &e) {
    ASSERT_EQ(e.diagnostics.size(), 1u);
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::Contradiction);
    EXPECT_EQ(e.diagnostics[0].message, "a run that had no memory has no speed");
  }
}

TEST(Calibrate, NeedsASpeed) {
  EXPECT_THROW(calibrate(clusterOf(machines())), UserError);
  EXPECT_THROW(calibrate(clusterOf(machines() + variedRuns()[0].row("out_of_memory = true"))), UserError);
}

}  // namespace
}  // namespace gptc::estimate_test

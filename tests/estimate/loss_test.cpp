// Losses: the law, the critical batch, and a run's own curve continued.
#include "tools/estimate/loss.h"

#include "support.h"

#include "support/diagnostics.h"
#include "tools/commands/estimate_loss.h"
#include "tools/estimate/certainty.h"
#include "tools/estimate/loss_curve.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

namespace gptc::estimate_test {
namespace {

TEST(LossLaw, HasTheConstantsOfTheReplication) {
  // By hand: 1.8172 + 482.01 / 70e9^0.3478 + 2085.43 / 1.4e12^0.3658, of Chinchilla itself.
  EXPECT_NEAR(lossByLaw(70e9, 1.4e12),
              1.8172 + 482.01 * std::exp(-0.3478 * std::log(70e9)) + 2085.43 * std::exp(-0.3658 * std::log(1.4e12)),
              1e-9);
  EXPECT_NEAR(lossByLaw(70e9, 1.4e12), 1.973, 0.002);
  // Twenty tokens for each parameter are near the best use of 6 N D FLOPs.
  const double flops = 6 * 70e9 * 1.4e12;
  const auto of = [&](double parameters) { return lossByLaw(parameters, flops / 6 / parameters); };
  EXPECT_LT(of(70e9), of(10e9));
  EXPECT_LT(of(70e9), of(500e9));
  EXPECT_GT(leastLossByLaw(70e9), 1.8172);
}

TEST(LossLaw, TokensAreItsInverse) {
  for (double parameters : {1e7, 124e6, 7e9})
    for (double tokens : {1e8, 3e9, 1e12}) {
      const std::optional<double> back = tokensByLaw(parameters, lossByLaw(parameters, tokens));
      ASSERT_TRUE(back);
      EXPECT_NEAR(*back / tokens, 1, 1e-6);
    }
  EXPECT_FALSE(tokensByLaw(124e6, leastLossByLaw(124e6)));
  EXPECT_FALSE(tokensByLaw(124e6, 1.5));
  EXPECT_FALSE(tokensByLaw(124e6, leastLossByLaw(124e6) + 1e-6)) << "more than 1e18 tokens";
}

TEST(CriticalBatch, GrowsAsTheLossFalls) {
  EXPECT_NEAR(criticalBatch(1), 2e8, 1);
  // 2e8 / 2^(1 / 0.21) = 2e8 / 27.13.
  EXPECT_NEAR(criticalBatch(2) / 7.37e6, 1, 0.002);
  EXPECT_GT(criticalBatch(2.2), criticalBatch(3.2));
}

/// Losses of steps of a million tokens by a law, with normal noise, and some spikes.
std::vector<CurvePoint> madeOf(double offset, double scale, double exponent, double noise, double spikes = 0,
                               int steps = 1000, unsigned seed = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_real_distribution<double> u(0, 1);
  std::vector<CurvePoint> points;
  for (int i = 1; i <= steps; ++i) {
    const double loss = offset + scale * std::pow(double(i) / steps, -exponent) + noise * normal(random);
    points.push_back({1e6 * i, loss + (u(random) < spikes ? 3 * u(random) : 0)});
  }
  return points;
}

TEST(LossCurve, ExactPointsGiveTheirLaw) {
  const LossCurve c("log", madeOf(2.5, 0.4, 0.35, 0));
  EXPECT_EQ(c.last(), 1e9);
  for (double times : {0.2, 1.0, 10.0, 100.0}) {
    const LossCurve::Span s = c.lossAt(times * 1e9);
    // Bins have the median loss at the mean of their logarithms: nearly a point of the curve.
    EXPECT_NEAR(s.value, 2.5 + 0.4 * std::pow(times, -0.35), 0.01) << times;
    EXPECT_LE(s.low, s.value);
    EXPECT_GE(s.high, s.value);
    EXPECT_LT(s.high - s.low, 0.03);
  }
}

TEST(LossCurve, SpikesAndWarmUpDrawItNowhere) {
  std::vector<CurvePoint> points = madeOf(2.5, 0.4, 0.35, 0.03, 0.03);
  for (int i = 0; i < 60; ++i)
    points[size_t(i)].loss = 10;  // before the last tenfold
  const LossCurve c("log", points), clean("log", madeOf(2.5, 0.4, 0.35, 0.03));
  for (double times : {1.0, 4.0})
    EXPECT_NEAR(c.lossAt(times * 1e9).value, 2.5 + 0.4 * std::pow(times, -0.35), 0.05) << times;
  EXPECT_NEAR(c.lossAt(4e9).value, clean.lossAt(4e9).value, 0.06);
}

TEST(LossCurve, IntervalsWidenAheadAndWithNoise) {
  const LossCurve c("log", madeOf(2.5, 0.4, 0.35, 0.05)), quiet("log", madeOf(2.5, 0.4, 0.35, 0.005));
  auto width = [](const LossCurve &of, double tokens) { return of.lossAt(tokens).high - of.lossAt(tokens).low; };
  EXPECT_LT(width(c, 1e9), width(c, 1e10));
  EXPECT_LT(width(c, 1e10), width(c, 1e12));
  EXPECT_LT(width(quiet, 1e10), width(c, 1e10));
  EXPECT_GT(width(quiet, 1e10), 0);
  // The same log gives the same numbers.
  EXPECT_EQ(LossCurve("log", madeOf(2.5, 0.4, 0.35, 0.05)).lossAt(1e11).high, c.lossAt(1e11).high);
}

TEST(LossCurve, IntervalsHoldTheTruth) {
  int held = 0, all = 0;
  for (unsigned seed = 1; seed <= 16; ++seed) {
    const double offset = 1.5 + 0.1 * seed, scale = 0.2 + 0.05 * (seed % 8), exponent = 0.2 + 0.05 * (seed % 7);
    const LossCurve c("log", madeOf(offset, scale, exponent, 0.04, 0.02, 1000, seed));
    for (double times : {2.0, 10.0}) {
      const LossCurve::Span s = c.lossAt(times * 1e9);
      const double truth = offset + scale * std::pow(times, -exponent);
      held += s.low <= truth && truth <= s.high;
      ++all;
    }
  }
  EXPECT_GE(held, all * 7 / 10) << "of " << all;
}

TEST(LossCurve, TokensToALossAreTheInverse) {
  const LossCurve c("log", madeOf(2.5, 0.4, 0.35, 0.02));
  const double loss = c.lossAt(5e9).value;
  const LossCurve::Span t = c.tokensTo(loss);
  EXPECT_NEAR(t.value / 5e9, 1, 1e-3);
  EXPECT_LT(t.low, t.value);
  EXPECT_GT(t.high, t.value);
  if (std::isfinite(t.high)) {
    EXPECT_NEAR(c.lossAt(t.high).high, loss, 1e-3);
  }
  EXPECT_NEAR(c.lossAt(t.low).low, loss, 1e-3);
  auto code = [&](double asked) {
    try {
      c.tokensTo(asked);
    } catch (const UserError &e) {
      return e.diagnostics[0].code;
    }
    return ErrorCode::Internal;
  };
  EXPECT_EQ(code(1.0), ErrorCode::OutOfRange) << "below where it flattens";
  EXPECT_EQ(code(9.0), ErrorCode::OutOfRange) << "above where it begins";
}

TEST(LossCurve, RefusesWhatIsNoCurve) {
  auto refused = [](const std::vector<CurvePoint> &points) {
    try {
      LossCurve("log", points);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(madeOf(2.5, 0.4, 0.35, 0, 0, 21))) << "19 in the last tenfold";
  EXPECT_FALSE(refused(madeOf(2.5, 0.4, 0.35, 0, 0, 23)));
  EXPECT_TRUE(refused(madeOf(2.5, 0, 0.35, 0.02))) << "does not fall";
  EXPECT_TRUE(refused(madeOf(2.5, -0.4, 0.35, 0.02))) << "rises";
  // Many points in few places.
  std::vector<CurvePoint> few;
  for (int i = 0; i < 100; ++i)
    few.push_back({i < 50 ? 5e8 : 1e9, i < 50 ? 3.0 : 2.8});
  EXPECT_TRUE(refused(few));
}

TEST(LossCurve, ReadsTheLogOfARun) {
  const std::string file = testing::TempDir() + fmt::format("gptc-curve-{}.jsonl", ::getpid());
  auto read = [&](const std::string &text) {
    std::ofstream(file) << text;
    return readCurve(file);
  };
  // Steps twice, evaluations, damaged lines, losses that are none, and no end of the last line.
  const std::vector<CurvePoint> points =
      read("{\"step\": 10, \"loss\": 4.5, \"ms\": 2.0, \"tokens_per_s\": 1024000.2}\n"
           "{\"step\": 20, \"val_loss\": 4.0}\n{\"step\": 20, \"loss\": null, \"ms\": 2, \"tokens_per_s\": 1}\n"
           "{\"step\": 20, \"loss\": 3.9, \"ms\": 4, \"tokens_per_s\": 512000}\nnothing\n"
           "{\"step\": 20, \"loss\": 3.5, \"ms\": 4, \"tokens_per_s\": 512000}");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].tokens, 10 * 2048);
  EXPECT_EQ(points[1].tokens, 20 * 2048);
  EXPECT_EQ(points[1].loss, 3.5);
  for (const char *bad : {"", "{}", "[1]\n\n", "{\"step\": 1, \"loss\": 3}", "{\"step\": 0, \"loss\": 3, \"ms\": 1}"})
    EXPECT_THROW(read(bad), UserError) << bad;
  std::filesystem::remove(file);
  EXPECT_THROW(readCurve(file), UserError);
}

TEST(LossForecast, DaysToALossByTheLaw) {
  const ClusterConfig c = jeanZay();
  const Config config = bloom(c, 16, {"train.micro_batch=2", "accumulate=256"});
  const LossForecast given = forecastLoss(config, {}, 100e9);
  EXPECT_EQ(given.tokens, 100e9);
  EXPECT_NEAR(*given.byLaw, 2.195, 0.003);
  const LossForecast asked = forecastLoss(config, {2.4, ""}, 100e9);
  EXPECT_NEAR(*asked.byLaw, 2.4, 1e-9);
  EXPECT_LT(asked.tokens, given.tokens);
  EXPECT_LT(*asked.critical, *given.critical);
  try {
    forecastLoss(config, {1.9, ""}, 100e9);
    ADD_FAILURE() << "taken";
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::OutOfRange);
  }
}

TEST(LossForecast, WarnsOfBatchesBeyondTheCriticalOne) {
  const ClusterConfig c = jeanZay();
  const Config config = bloom(c, 16, {"train.micro_batch=2", "accumulate=256"});
  const LossForecast loss = forecastLoss(config, {}, 100e9);
  Estimate e;
  e.strategy.gpus = 16, e.strategy.zeroStage = 1;
  e.tokensPerStep = 16.0 * 2 * 256 * 1024;
  e.tokensPerSecond = 1e4;
  ASSERT_GT(e.tokensPerStep, *loss.critical);
  auto warned = [&](const std::vector<Estimate> &all) {
    for (const std::string &n : notesOf(loss, all, all[0]))
      if (n.find("beyond the critical batch") != std::string::npos)
        return n;
    return std::string();
  };
  EXPECT_NE(warned({e}).find("batch: 8.39e+06 tokens a step (16 GPUs, ZeRO-1)"), std::string::npos) << warned({e});
  EXPECT_NE(warned({e}).find(fmt::format("= {:.2g} x the tokens", 1 + e.tokensPerStep / *loss.critical)),
            std::string::npos);
  EXPECT_EQ(jsonOf(loss, e)["beyond_critical_batch"], true);
  Estimate half = e;
  half.tokensPerStep = *loss.critical;
  EXPECT_EQ(warned({half}), "");
  EXPECT_EQ(jsonOf(loss, half)["beyond_critical_batch"], false);
  EXPECT_NE(warned({half, e}), "");
  e.outOfMemory = true;
  EXPECT_EQ(warned({half, e}), "") << "nobody runs that";
}

TEST(LossForecast, ByTheCurveOfARun) {
  const ClusterConfig c = jeanZay();
  const Config config = bloom(c, 16, {"train.micro_batch=2", "accumulate=4"});
  const std::string file = testing::TempDir() + fmt::format("gptc-curve-{}.jsonl", ::getpid());
  std::ofstream out(file);
  int64_t step = 0;
  for (const CurvePoint &p : madeOf(2.5, 0.4, 0.35, 0.01))
    out << fmt::format("{{\"step\": {}, \"loss\": {:.6f}, \"ms\": 1000, \"tokens_per_s\": 1000000}}\n", ++step, p.loss);
  out.close();
  const LossForecast at = forecastLoss(config, {0, file}, 4e9);
  EXPECT_NEAR(at.byCurve->value, 2.5 + 0.4 * std::pow(4.0, -0.35), 0.03);
  EXPECT_NEAR(*at.critical, criticalBatch(at.byCurve->value), 1);
  const LossForecast to = forecastLoss(config, {2.75, file}, 100e9);
  EXPECT_NEAR(to.byCurve->value, 2.75, 1e-3);
  EXPECT_TRUE(at.tokens.isGiven);
  EXPECT_LT(to.tokens.low, to.tokens.value);
  EXPECT_GT(to.tokens.high, to.tokens.value);
  Estimate e;
  e.tokensPerSecond = 1e4;
  const auto j = jsonOf(to, e);
  EXPECT_EQ(j["goal"], 2.75);
  EXPECT_LT(double(j["by_curve"]["tokens_interval"][0]), to.tokens);
  LossForecast agreed = to;  // all refits say as many
  agreed.tokens = RunTokens(1e9, 1e9, 1e9);
  EXPECT_EQ(jsonOf(agreed, e)["by_curve"]["tokens_interval"], nlohmann::json({1e9, 1e9}));
  EXPECT_FALSE(jsonOf(at, e)["by_curve"].contains("tokens_interval"));
  e.sure = {0.5, 2, false};
  const Certainty sure = certaintyOfDays(e.sure, to.tokens);
  EXPECT_GT(sure.high, 2.0);
  const std::string days =
      fmt::format("and the doubt of their speed {} to {} days", formatDays(sure.low * e.days(to.tokens)),
                  formatDays(sure.high * e.days(to.tokens)));
  bool said = false;
  for (const std::string &n : notesOf(to, {e}, e))
    said |= n.find("Loss 2.75 takes ") != std::string::npos && n.find(days) != std::string::npos;
  EXPECT_TRUE(said) << days;
  EXPECT_THROW(forecastLoss(config, {0, file}, 5e7), UserError) << "before the curve";
  std::filesystem::remove(file);
}

TEST(LossForecast, EncodersHaveNoLaw) {
  const ClusterConfig c = jeanZay();
  Config config = bloom(c, 8, {"train.micro_batch=2", "accumulate=4"});
  config.model.causal = false;
  const LossForecast l = forecastLoss(config, {}, 100e9);
  EXPECT_FALSE(l.byLaw || l.critical);
  EXPECT_TRUE(notesOf(l, {}, Estimate()).empty());
  EXPECT_THROW(forecastLoss(config, {2.5, ""}, 100e9), UserError);
}

}  // namespace
}  // namespace gptc::estimate_test

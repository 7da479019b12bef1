// Plans for several ranks: the same bits on any number of ranks, in every stage of ZeRO, whatever the micro-batch.
#include "tests/support/rank_threads.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

class Ranks : public testing::TestWithParam<RankCut> {};

TEST_P(Ranks, GiveTheBitsOfOne) {
  const RankCut &c = GetParam();
  const RanksOutcome expected = train({1, 0, 4, "tree", c.compute, c.optimizer}, 3), got = train(c, 3);
  ASSERT_EQ(expected.losses.size(), 3u);
  EXPECT_LT(expected.losses[2], expected.losses[0]) << "it learns nothing";
  EXPECT_EQ(got.losses, expected.losses);
  for (const auto &[name, bytes] : expected.states) {
    auto it = got.states.find(name);
    ASSERT_TRUE(it != got.states.end()) << name;
    EXPECT_TRUE(it->second == bytes) << name << " differs";
  }
}

/// Stochastic rounding draws by the number of an element in the whole, whoever has it.
TEST(Ranks, RoundMomentsByTheNumbersOfOne) {
  for (const char *optimizer : {"adamw", "sgd"}) {
    RankCut one{.microBatches = 4, .compute = "bf16", .optimizer = optimizer};
    one.settings = {"precision.optimizer_state=bf16"};
    const RanksOutcome expected = train(one, 3);
    for (int64_t stage : {0, 1, 3}) {
      RankCut four = one;
      four.data = 4, four.stage = stage, four.microBatches = 1;
      EXPECT_TRUE(train(four, 3) == expected) << optimizer << ", stage " << stage;
    }
    // Parts along "tensor" have numbers of their own, which do not depend on who has a piece of them.
    RankCut pairs = one;
    pairs.tensor = 2;
    const RanksOutcome ofTwo = train(pairs, 3);
    pairs.data = 2, pairs.stage = 3, pairs.microBatches = 2;
    EXPECT_TRUE(train(pairs, 3) == ofTwo) << optimizer;
  }
}

/// ZeRO's theory: of P ranks each holds a P-th of what the optimizer updates (parameters and two moments) from stage 1
/// on, beside a whole copy of the parameters, which stage 3 does without. What cannot be cut by rows stays whole. That
/// an arena has the bytes of its plan every executor checks.
TEST(RanksMemory, StatesOfARankFollowTheory) {
  const std::unique_ptr<Module> alone = plannedFor({1, 0, 4});
  for (int64_t ranks : {2, 4})
    for (int64_t stage : {0, 1, 2, 3}) {
      const std::unique_ptr<Module> m = plannedFor({ranks, stage, 1});
      int64_t whole = 0, held = 0;
      for (const auto &s : m->states) {
        const std::string kind = s->attrs.getString("kind");
        if (kind == "whole")
          held += s->type.bytes();
        if (kind != "param" && kind != "moment")
          continue;
        const State *one = alone->state(s->name);
        ASSERT_TRUE(one) << s->name;
        const bool cut = stage >= 1 && one->type.rank() > 1 && one->type.padded(0) % ranks == 0;
        EXPECT_EQ(s->type.bytes() * (cut ? ranks : 1), one->type.bytes()) << s->name << " in stage " << stage;
        whole += one->type.bytes();
        held += s->type.bytes();
      }
      // In parts of a parameter. Vectors, which are not cut, are 2% of this model.
      const double parts = stage == 0 ? 3 : stage < 3 ? 1 + 3.0 / double(ranks) : 3.0 / double(ranks);
      EXPECT_NEAR(3 * double(held) / double(whole), parts, 3 * 0.02) << ranks << " ranks, stage " << stage;
    }
}

/// The order between ranks is free: gradients are summed in every micro-step and accumulate as pieces. Adam divides by
/// roots of moments, so that rounding shows; losses before the third update differ by little.
TEST(Ranks, OfStageTwoAccumulatePiecesWhereTheOrderIsFree) {
  const RanksOutcome expected = train({1, 0, 4}, 3);
  for (int64_t stage : {2, 3}) {
    const RankCut cut{.data = 4, .stage = stage, .microBatches = 2, .order = "fast"};
    const RanksOutcome got = train(cut, 3);
    EXPECT_TRUE(train(cut, 3) == got) << "two runs differ";
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-4 * expected.losses[i]) << i;
    RankCut whole = cut;
    whole.stage = 1;
    const std::unique_ptr<Module> m = plannedFor(cut), one = plannedFor(whole);
    int64_t bytes = 0, wholeBytes = 0;
    for (const auto &s : m->states)
      if (s->attrs.getString("kind") == "grad")
        bytes += s->type.bytes(), wholeBytes += one->state(s->name)->type.bytes();
    EXPECT_LT(bytes, 0.3 * double(wholeBytes));
  }
}

TEST(Ranks, CollectivesOfAPlanGiveWhatTheReferenceSays) {
  const EveryRanksResults r = runOnRanks(everyCollective);
  EXPECT_EQ(r.got, r.reference);
}

std::vector<RankCut> cuts() {
  std::vector<RankCut> all = {{1, 0, 8}};
  for (int64_t stage : {0, 1, 2, 3}) {
    all.push_back({2, stage, 2});
    all.push_back({2, stage, 4});
    all.push_back({4, stage, 1});
    all.push_back({4, stage, 2});
  }
  for (int64_t stage : {0, 1, 3})
    all.push_back({4, stage, 2, "tree", "bf16"});
  for (const char *optimizer : {"sgd", "adafactor"}) {
    for (int64_t stage : {0, 1, 2, 3})
      for (int64_t ranks : {2, 4})
        all.push_back({ranks, stage, 4 / ranks, "tree", "fp32", optimizer});
    all.push_back({4, 1, 1, "tree", "bf16", optimizer});
  }
  // Each collective by itself: most go on beside computation.
  for (int64_t stage : {0, 1, 3})
    for (int64_t microBatches : {1, 2})
      all.push_back({.data = 4,
                     .stage = stage,
                     .microBatches = microBatches,
                     .optimizer = stage == 1 ? "adafactor" : "adamw",
                     .bucket = 1});
  return all;
}

TEST(Ranks, CollectivesGoOnBesideComputation) {
  for (int64_t stage : {0, 1, 3}) {
    const std::unique_ptr<Module> m = plannedFor({.data = 4, .stage = stage, .bucket = 1});
    int groups = 0, beside = 0;
    for (const Op &op : m->function("train_step")->body) {
      groups += op.is(OpKind::fused) && op.attrs.getString("kind") == "collective";
      beside += op.is(OpKind::done);
    }
    EXPECT_GT(beside, groups / 2) << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, Ranks, testing::ValuesIn(cuts()), [](const auto &info) {
  const RankCut &c = info.param;
  return fmt::format("{}ranks_zero{}_{}micro_{}_{}_{}{}", c.data, c.stage, c.microBatches, c.order, c.compute,
                     c.optimizer, c.bucket ? "_apart" : "");
});

}  // namespace
}  // namespace gptc

// Plans for several GPUs, a rank on each: in the order of a tree they give the bits of one GPU, in every stage of ZeRO.
#include "tests/support/rank_threads.h"
#include "tests/support/whole_run.h"

#include "ir/graph.h"
#include "ir/mesh.h"
#include "standins.h"

#include <cmath>
#include <map>

namespace gptc::test {
namespace {

constexpr const char *gpu = "cuda:sm_90a";

RankCut onGpus(RankCut c) {
  c.target = gpu;
  return c;
}

/// The second one is with moments.
const int kSteps = sized(2, 3);

/// What one GPU gives, with as many logical shards; computed once.
const RanksOutcome &ofOne(const RankCut &c, int steps) {
  static std::map<std::string, RanksOutcome> known;
  const std::string key = fmt::format("{} {} {}", c.compute, c.optimizer, steps);
  if (auto it = known.find(key); it != known.end())
    return it->second;
  RankCut one{1, 0, logicalShards, "tree", c.compute, c.optimizer};
  return known[key] = train(onGpus(one), steps);
}

void expectSame(const RanksOutcome &got, const RanksOutcome &want, const std::string &what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  for (const auto &[name, bytes] : want.states) {
    auto it = got.states.find(name);
    ASSERT_TRUE(it != got.states.end()) << what << ": " << name;
    EXPECT_TRUE(it->second == bytes) << what << ": " << name << " differs";
  }
}

/// Of runs that add in other orders.
void expectNear(const RanksOutcome &got, const RanksOutcome &want, double most, const std::string &what) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], want.losses[i], most * want.losses[i]) << what << ", step " << i;
}

class PlanRanksTest : public testing::Test {
protected:
  static void SetUpTestSuite() { useStandins(); }
};

TEST_F(PlanRanksTest, GiveTheBitsOfOneGpu) {
  const std::vector<RankCut> cuts = {
      {2, 3, 2},
      {4, 2, 2, "tree", "bf16"},
      {2, 1, 2, "tree", "fp32", "adafactor"},
      // Each collective by itself: most go on beside computation.
      {.data = 4, .stage = 0, .bucket = 1},
  };
  OneIn some(2);
  for (const RankCut &c : cuts)
    if (!some.skips())
      expectSame(
          train(onGpus(c), kSteps), ofOne(c, kSteps),
          fmt::format("{} ranks, stage {}, {} {}, bucket {}", c.data, c.stage, c.compute, c.optimizer, c.bucket));
}

// Kernels but attention have the CPU's bits, and so have sums over ranks.
TEST_F(PlanRanksTest, AreAsNearToTheCpusRanksAsOneGpuToOneCpu) {
  const RankCut c{4, 1, 1};
  const RanksOutcome got = train(onGpus(c), kSteps);
  expectSame(got, ofOne(c, kSteps), "four ranks");
  expectNear(got, train(c, kSteps), 1e-4, "four ranks");
}

TEST_F(PlanRanksTest, CollectivesGiveWhatTheReferenceSays) {
  const EveryRanksResults r = runOnRanks(everyCollective, gpu);
  EXPECT_EQ(r.got, r.reference);
}

TEST_F(PlanRanksTest, TheOrderMayBeNccls) {
  const RankCut c{4, 1, 1, "fast"};
  expectNear(train(onGpus(c), kSteps), ofOne(c, kSteps), 1e-4, "four ranks");
}

TEST_F(PlanRanksTest, ShareLayers) {
  // Another order of sums for each number of ranks along "tensor", the same for any along "data".
  const RankCut two{.data = 1, .microBatches = logicalShards, .tensor = 2};
  const RanksOutcome want = train(onGpus(two), kSteps);
  expectNear(want, ofOne(two, kSteps), 1e-4, "two ranks");
  expectSame(train(onGpus({.data = 2, .stage = 3, .microBatches = 2, .tensor = 2}), kSteps), want, "stage 3");
}

/// A plan's collectives go on a stream of their own, and kernels beside them, on whatever driver's order.
TEST_F(PlanRanksTest, WhateverTheDriversOrder) {
  const RankCut c{.data = 2, .stage = 3, .microBatches = 2, .bucket = 1};
  const RanksOutcome want = ofOne(c, kSteps);
  for (const char *order : {"0", "1"}) {
    setenv("GPTC_STANDIN_ORDER", order, 1);
    expectSame(train(onGpus(c), kSteps), want, std::string("order ") + order);
  }
  unsetenv("GPTC_STANDIN_ORDER");
}

// The workspaces of sums are planned, and live until the collectives are done.
TEST_F(PlanRanksTest, MemoryOfSumsIsPlanned) {
  const std::unique_ptr<Module> tree = plannedFor(onGpus({.data = 4, .stage = 1, .bucket = 1})),
                                fast = plannedFor(onGpus({.data = 4, .stage = 1, .order = "fast", .bucket = 1})),
                                cpu = plannedFor({.data = 4, .stage = 1, .bucket = 1});
  auto workspaces = [](const Module &m) {
    int64_t bytes = 0;
    for (const Op &op : m.function("train_step")->body)
      if (op.is(OpKind::fused) && op.attrs.getString("kind") == "collective")
        for (int64_t ws : op.attrs.getInts("ws"))
          bytes += ws;
    return bytes;
  };
  EXPECT_GT(workspaces(*tree), 0);
  EXPECT_EQ(workspaces(*fast), 0);
  EXPECT_EQ(workspaces(*cpu), 0);
}

}  // namespace
}  // namespace gptc::test

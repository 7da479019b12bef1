// Plans whose ranks meet in outer steps alone: what they compute, and that no timing shows in it.
#include "tests/support/rank_threads.h"

#include "codegen/codegen.h"
#include "ir/facts.h"
#include "runtime/checkpoint/state.h"
#include "runtime/device/executor.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <map>

namespace gptc {
namespace {

constexpr int64_t ranks = 2, every = 3;
constexpr float outerLr = 0.6f, outerMomentum = 0.8f;

std::unique_ptr<Module> planned(const std::string &compute) {
  return plannedFor({.data = ranks, .order = "fast", .compute = compute},
                    attrs({{"reduce_order", std::string("tree")},
                           {"sync_every", every},
                           {"outer_lr", double(outerLr)},
                           {"outer_momentum", double(outerMomentum)}}));
}

/// Who begins a round of inner steps only when the other rank has ended its own: 0, 1, or nobody.
constexpr int nobody = -1;

struct Trained {
  std::vector<Contents> before, after;  // the last outer step, by rank
  std::vector<std::vector<float>> losses = std::vector<std::vector<float>>(ranks);
};

Trained trainApart(const Module &m, int rounds, int late) {
  Trained all;
  all.before.resize(ranks), all.after.resize(ranks);
  std::barrier ended(ranks);
  auto rank = [&](int r, Executor &executor) {
    initializeStates(executor, 7);
    std::vector<int32_t> x, y;
    const int64_t own = sequences / ranks;
    const float targets = float(own * block);
    for (int round = 0; round < rounds; ++round) {
      if (late == r)
        ended.arrive_and_wait();
      for (int64_t i = 0; i < every; ++i) {
        const int64_t sequence = r * own;
        fillBatch(int(round * every + i), sequence, own, x, y);
        executor.run("train_step", {x.data(), y.data(), &sequence, &targets});
        all.losses[size_t(r)].push_back(*static_cast<const float *>(executor.result("train_step", 0)));
      }
      if (late != r && late != nobody)
        ended.arrive_and_wait();
      all.before[size_t(r)] = contentsOf(executor);
      executor.run("outer", {});
      all.after[size_t(r)] = contentsOf(executor);
    }
  };
  onRanks(m, hostTarget(1), rank, &ended);
  return all;
}

bool sameBits(const Trained &a, const Trained &b) { return a.after == b.after && a.losses == b.losses; }

TEST(OuterSteps, DoNotDependOnWhoIsLate) {
  for (const char *compute : {"fp32", "bf16"}) {
    const std::unique_ptr<Module> m = planned(compute);
    const Trained first = trainApart(*m, 3, nobody);
    EXPECT_LT(first.losses[0].back(), first.losses[0].front()) << "it learns nothing";
    EXPECT_NE(first.losses[0], first.losses[1]) << "ranks read the same";
    for (int late : {nobody, 0, 1})
      EXPECT_TRUE(sameBits(trainApart(*m, 3, late), first)) << compute << ", late: " << late;
  }
}

// To the bit: what the kernels of sub, all_reduce and sgd have to compute, in f32.
TEST(OuterSteps, MoveTheAnchorByTheMeanOfTheRanks) {
  const std::unique_ptr<Module> m = planned("fp32");
  Trained t = trainApart(*m, 2, nobody);
  int parameters = 0;
  for (const auto &s : m->states) {
    if (kindOf(*s) != StateKind::anchor)
      continue;
    ++parameters;
    const std::string name = fact<&StateFacts::of>(*s);
    const std::vector<float> &anchor = t.before[0]["anchor." + name], &moment = t.before[0]["outer." + name],
                             &w0 = t.before[0][name], &w1 = t.before[1][name];
    EXPECT_NE(w0, w1) << name;
    for (size_t i = 0; i < anchor.size(); ++i) {
      const float moved = ((anchor[i] - w0[i]) + (anchor[i] - w1[i])) * 0.5f,
                  next = std::fma(moment[i], outerMomentum, moved), ahead = std::fma(next, outerMomentum, moved),
                  expected = std::fma(ahead, -outerLr, anchor[i]);
      for (Contents &rank : t.after) {
        ASSERT_EQ(rank["outer." + name][i], next) << name << " " << i;
        ASSERT_EQ(rank["anchor." + name][i], expected) << name << " " << i;
        ASSERT_EQ(rank[name][i], expected) << name << " " << i;
      }
    }
  }
  EXPECT_GT(parameters, 5);
}

// Nothing goes between ranks in the steps, and all collectives of an outer step are there.
TEST(OuterSteps, AreTheOnlyOnesThatSend) {
  const std::unique_ptr<Module> m = planned("fp32");
  for (const auto &f : m->functions) {
    int collectives = 0;
    for (const Op &op : f->body)
      collectives += op.is(OpKind::fused) && kindOf(op) == RecipeKind::collective;
    EXPECT_EQ(collectives > 0, f->name == "outer") << f->name;
  }
}

}  // namespace
}  // namespace gptc

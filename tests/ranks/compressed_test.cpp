// Plans whose ranks send factors of their gradients: that they learn, to the same bits, and what they send.
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

constexpr int64_t ranks = 2, from = 2;
constexpr int steps = 12;

/// gradientRank 0: nothing is compressed.
std::unique_ptr<Module> planned(int64_t gradientRank, const std::string &order = "tree",
                                const std::string &compute = "fp32") {
  AttrMap more = attrs({{"reduce_order", order}});
  if (gradientRank > 0) {
    more.set("gradient_rank", gradientRank);
    more.set("compress_from", from);
  }
  return plannedFor({.data = ranks, .order = "fast", .compute = compute}, more);
}

struct Trained {
  std::vector<Contents> end = std::vector<Contents>(ranks);
  std::vector<float> losses;
  bool operator==(const Trained &) const = default;
};

/// With `apace` no rank begins a step before the other one has ended the step before.
Trained trainCompressed(const Module &m, bool apace = false) {
  Trained all;
  std::barrier ready(ranks);
  auto rank = [&](int r, Executor &executor) {
    initializeStates(executor, 7);
    std::vector<int32_t> x, y;
    const int64_t own = sequences / ranks, sequence = r * own;
    const float targets = float(sequences * block);
    for (int step = 0; step < steps; ++step) {
      const char *function = step < from && m.function("train_step_whole") ? "train_step_whole" : "train_step";
      fillBatch(step, sequence, own, x, y);
      if (apace)
        ready.arrive_and_wait();
      executor.run(function, {x.data(), y.data(), &sequence, &targets});
      if (r == 0)
        all.losses.push_back(*static_cast<const float *>(executor.result(function, 0)));
    }
    all.end[size_t(r)] = contentsOf(executor);
  };
  onRanks(m, hostTarget(1), rank, &ready);
  return all;
}

TEST(CompressedGradients, AreTheSameBitsTwice) {
  for (const char *compute : {"fp32", "bf16"}) {
    const std::unique_ptr<Module> m = planned(2, "tree", compute);
    const Trained first = trainCompressed(*m);
    EXPECT_TRUE(trainCompressed(*m) == first) << compute;
    EXPECT_TRUE(trainCompressed(*m, true) == first) << compute << ", step by step";
    int errors = 0;
    for (const auto &s : m->states) {
      const std::string &name = s->name;
      if (name.starts_with("error.")) {
        ++errors;
        EXPECT_NE(first.end[0].at(name), first.end[1].at(name)) << name;
      } else if (first.end[0].count(name)) {
        EXPECT_EQ(first.end[0].at(name), first.end[1].at(name)) << name;
      }
    }
    EXPECT_GT(errors, 3);
  }
}

// Factors of rank 4 lose little here, and what they leave out follows.
TEST(CompressedGradients, LearnLikeWholeOnes) {
  const Trained whole = trainCompressed(*planned(0));
  for (const char *order : {"tree", "fast"}) {
    const Trained t = trainCompressed(*planned(4, order));
    ASSERT_EQ(t.losses.size(), whole.losses.size());
    for (int64_t step = 0; order == std::string("tree") && step < from; ++step)
      EXPECT_EQ(t.losses[size_t(step)], whole.losses[size_t(step)]) << "these steps send whole gradients";
    EXPECT_LT(t.losses.back(), t.losses.front());
    EXPECT_LT(std::fabs(t.losses.back() - whole.losses.back()), 0.5 * (whole.losses.front() - whole.losses.back()));
  }
}

/// What the collectives of a function add up between ranks, in elements.
int64_t elementsAdded(const Function &f) {
  int64_t sum = 0;
  for (const Op &op : f.body)
    if (op.is(OpKind::fused) && kindOf(op) == RecipeKind::collective)
      for (const Op &inner : *op.body)
        if (inner.is(OpKind::all_reduce))
          sum += inner.operand(0)->type.elements();
  return sum;
}

TEST(CompressedGradients, SendFactorsAlone) {
  const std::unique_ptr<Module> m = planned(2), whole = planned(0);
  int64_t less = 0;
  for (const auto &s : m->states)
    if (s->name.starts_with("factor.")) {
      const Type &t = m->state(s->name.substr(7))->type;
      less += t.elements() - 2 * (t.dim(0) + t.dim(1));
    }
  const int64_t all = elementsAdded(*whole->function("train_step"));
  EXPECT_GT(less, all / 2);
  EXPECT_EQ(elementsAdded(*m->function("train_step")), all - less);
  EXPECT_EQ(elementsAdded(*m->function("train_step_whole")), all);
}

}  // namespace
}  // namespace gptc

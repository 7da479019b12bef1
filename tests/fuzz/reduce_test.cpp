// Reduction: small results, which still fail and verify.
#include "random_graph.h"

#include "support/diagnostics.h"
#include "tools/check/reduce.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

/// Whether an op of kind `maker` yields what one of kind `user` takes.
bool hasEdge(const Module &m, OpKind maker, OpKind user) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      for (const Value *v : op.operands())
        if (op.is(user) && v->def && v->def->is(maker))
          return true;
  return false;
}

TEST(Reduce, LeavesTheEdgeThatFails) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    auto m = randomModule(seed);
    // An edge somewhere in the middle of the module is what "fails".
    std::vector<std::pair<OpKind, OpKind>> edges;
    for (const auto &f : m->functions)
      for (const Op &op : f->body)
        for (const Value *v : op.operands())
          if (v->def && !op.is(OpKind::ret))
            edges.push_back({v->def->kind, op.kind});
    const auto [maker, user] = edges[edges.size() / 2];
    auto fails = [&, maker = maker, user = user](const Module &c) { return hasEdge(c, maker, user); };
    auto small = reduceModule(*m, fails);
    EXPECT_EQ(verify(*small), std::vector<std::string>());
    EXPECT_TRUE(fails(*small));
    // Attention over heads that are normed needs two views, a projection and what follows it to the loss.
    EXPECT_LE(countOps(*small), 9u) << print(*small);
  }
}

// Passes ask for counters and arguments by name: without them a module is nonsense, and no candidate would fail.
TEST(Reduce, KeepsWhatPassesAskFor) {
  auto m = parseModule(R"(module {
  state @step : i64[] {kind="counter"}
  state @w : f32[4] {kind="param"}
  func @forward(%x: f32[3,4], %seq0: i64[]) -> (f32[3,4]) {
    %0 = read @w : f32[4]
    %1 = add %x, %0 : f32[3,4]
    %2 = silu %1 : f32[3,4]
    %3 = exp %2 : f32[3,4]
    return %3
  }
})",
                       "test");
  auto small = reduceModule(*m, [](const Module &c) {
    bool asked = false, shows = false;
    for (const auto &a : c.functions[0]->body.args)
      asked |= a->name == "seq0";
    for (const Op &op : c.functions[0]->body)
      shows |= op.is(OpKind::silu);
    return asked && shows && c.state("step");
  });
  EXPECT_EQ(countOps(*small), 1u) << print(*small);
}

TEST(Reduce, ShrinksExtentsAndAttributes) {
  auto m = parseModule(R"(module {
  state @p : f32[129->136,64] {kind="param"}
  func @f(%x: f32[3,33,64]) -> (f32[99,129->136]) {
    %0 = reshape %x : f32[99,64]
    %1 = read @p : f32[129->136,64]
    %2 = matmul %0, %1 {fold=0, tb=true} : f32[99,129->136]
    return %2
  }
})",
                       "test");
  auto small = reduceModule(*m, [](const Module &c) {
    for (const Op &op : c.functions[0]->body)
      if (op.is(OpKind::matmul))
        return op.attrs.getBool("tb");
    return false;
  });
  EXPECT_EQ(print(*small), R"(module {
  func @f(%r1: f32[1,1], %r2: f32[1,1]) -> (f32[1,1]) {
    %0 = matmul %r2, %r1 {tb=true} : f32[1,1]
    return %0
  }
}
)");
}

}  // namespace
}  // namespace gptc::test

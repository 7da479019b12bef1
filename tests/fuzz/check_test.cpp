// The checks can fail: each is given something wrong.
#include "tools/check/guarded_memory.h"
#include "tools/check/module_check.h"

#include "codegen/codegen.h"
#include "ir/plan_check.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tools/planner/codegen_passes.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

/// Machine code that stores `count` elements from `begin` on.
CompiledKernel stores(Jit &jit, int64_t begin, int64_t count) {
  kir::Kernel k;
  k.name = "stores";
  kir::Buffer b = kir::makeBuffer("b", DType::f32, kir::Storage::global, 1 << 20, true);
  k.params = {b};
  kir::Var i = kir::makeVar("i");
  k.body = {kir::loop(kir::LoopKind::serial, i, kir::imm(count), {kir::store(b, kir::ref(i), kir::fimm(1))}, 1,
                      kir::imm(begin))};
  return jit.compile({&k})[0];
}

std::optional<std::string> run(const CompiledKernel &k, std::byte *at) {
  void *params[] = {at};
  return faultOf([&] { k.phases[0].run(params, 0, 1); });
}

TEST(GuardedMemory, FindsEveryOverrun) {
  Jit jit(hostTarget(1), "");
  const CompiledKernel exact = stores(jit, 0, 100), long_ = stores(jit, 0, 101), past = stores(jit, 100, 1);
  GuardedMemory memory;
  for (auto edge : {GuardedMemory::end, GuardedMemory::begin}) {
    memory.clear();
    std::byte *at = memory.take(400, edge);
    EXPECT_EQ(run(exact, at), std::nullopt);
    EXPECT_TRUE(memory.intact());
    for (const CompiledKernel *k : {&long_, &past}) {
      memory.clear();
      at = memory.take(400, edge);
      const auto fault = run(*k, at);
      EXPECT_TRUE(fault.has_value() || !memory.intact());
      EXPECT_EQ(fault.has_value(), edge == GuardedMemory::end);
    }
    memory.clear();
    at = memory.take(400, edge);
    // One element too early.
    EXPECT_EQ(run(exact, at - 4).has_value(), edge == GuardedMemory::begin);
    EXPECT_EQ(memory.intact(), edge == GuardedMemory::begin);
  }
}

std::string check(const std::string &text) {
  BoundStats stats;
  return checkModule(*parseModule(text, "test"), {}, stats);
}

std::unique_ptr<Module> planned(const char *text) {
  registerCodegenPasses();
  auto m = parseModule(text, "test");
  const Target target = hostTarget(1);
  PipelineOptions options;
  options.reproFile.clear();
  runPipeline(*m, parsePipeline("fuse,settle-writes,select-recipes,plan-memory", &target), options);
  return m;
}

constexpr const char *turns = R"(module {
  func @f(%x: f32[5,7], %y: f32[5,7]) -> (f32[5,7], f32[7,5]) {
    %0 = tanh %x : f32[5,7]
    %1 = transpose %0 {perm=[1,0]} : f32[7,5]
    %2 = exp %1 : f32[7,5]
    %3 = add %x, %y : f32[5,7]
    return %3, %2
  }
})";

TEST(CheckModule, AcceptsWhatIsRight) {
  EXPECT_EQ(check(turns), "");
  EXPECT_EQ(check(print(*planned(turns))), "");
}

TEST(CheckModule, FindsMemoryThatIsSharedTooEarly) {
  auto m = planned(turns);
  // The sum comes to lie where the transposed values already wait for the end.
  Op *group = nullptr, *sum = nullptr;
  for (Op &op : m->function("f")->body)
    if (op.is(OpKind::fused)) {
      for (Op &inner : *op.body)
        if (inner.is(OpKind::add))
          sum = &op;
        else if (inner.is(OpKind::exp))
          group = &op;
    }
  ASSERT_TRUE(sum && group && sum != group);
  group->attrs.set("at", sum->attrs.getInts("at"));
  EXPECT_NE(check(print(*m)).find("where tensors share memory"), std::string::npos) << check(print(*m));
}

TEST(CheckPlan, KeepsWorkspacesOffOperands) {
  auto m = planned(R"(module {
  func @f(%x: f32[100,100]) -> (f32[]) {
    %0 = sum_squares %x {block=64} : f32[]
    return %0
  }
})");
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
  Function &f = *m->function("f");
  Op *group = f.body.front();
  ASSERT_EQ(group->attrs.getInts("ws_at").size(), 1u);
  group->attrs.set("ws_at", f.attrs.getInts("args_at"));
  ASSERT_EQ(checkPlan(*m).size(), 1u);
  EXPECT_NE(checkPlan(*m)[0].find("workspace 0 overlaps operand 0"), std::string::npos);
}

TEST(CheckModule, FindsAnotherMeaning) {
  // Rows of a plan that is not what its text says: the group computes something else than was asked.
  auto m = planned(turns);
  auto other = planned(turns);
  for (Op &op : other->function("f")->body)
    if (op.is(OpKind::fused))
      for (Op &inner : *op.body)
        if (inner.is(OpKind::add))
          inner.kind = OpKind::sub;
  const Target target = hostTarget(1);
  ThreadPool pool(1);
  BoundStats stats;
  EXPECT_EQ(emittedDifference(*m, *m, nullptr, inputsFor(*m, 0), pool, target, "", stats), "");
  EXPECT_NE(emittedDifference(*other, *m, nullptr, inputsFor(*m, 0), pool, target, "", stats).find("machine code"),
            std::string::npos);
  EXPECT_GT(stats.wholeBounded, 0);
}

}  // namespace
}  // namespace gptc::test

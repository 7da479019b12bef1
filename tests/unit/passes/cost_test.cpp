// The cost model: what a kernel moves, and which of arithmetic and memory decides.
#include "passes/analysis/cost.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <map>

namespace gptc {
namespace {

MachineRates plain() {
  MachineRates r;
  r.fp32 = r.bf16 = 1e12;
  r.dram = 1e10;
  r.cache = 1e11;
  r.cacheBytes = 1e6;
  r.launch = 1e-6;
  r.matmul = r.attention = r.attentionGrad = r.elementwise = r.scatter = 1;
  return r;
}

std::unique_ptr<Module> fused(const char *text) {
  auto m = parseModule(text, "t.gir");
  fuse(*m, {});
  return m;
}

TEST(Cost, AGroupMovesItsOperandsAndResultsOnly) {
  auto m = fused("func @f(%x: f32[100,100], %b: f32[100]) -> (f32[100,100]) {\n"
                 "%0 = add %x, %b : f32[100,100]\n%1 = neg %0 : f32[100,100]\n%2 = mul %1, %x : f32[100,100]\n"
                 "return %2 }");
  KernelCost c = costOf(*m->functions[0], plain());
  EXPECT_EQ(c.bytes, 4 * (10000 + 100 + 10000));
  EXPECT_EQ(c.flops, 30000);
  EXPECT_DOUBLE_EQ(c.seconds, c.bytes / 1e11 + 1e-6);  // small enough for the cache
}

TEST(Cost, ArithmeticDecidesWhereItTakesLonger) {
  auto m = fused("func @f(%x: f32[512,512], %w: f32[512,512]) -> (f32[512,512]) {\n"
                 "%0 = matmul %x, %w : f32[512,512]\nreturn %0 }");
  KernelCost c = costOf(*m->functions[0], plain());
  EXPECT_EQ(c.flops, 2.0 * 512 * 512 * 512);
  const double packing = 2.0 * 2 * 512 * 512 * 4 / 1e10;  // both operands, in and out; a MiB each, past the cache
  MachineRates slow = plain();
  slow.fp32 = 1e10;
  EXPECT_DOUBLE_EQ(costOf(*m->functions[0], slow).seconds, c.flops / 1e10 + packing + 1e-6);
  auto sum = fused("func @f(%x: f32[512,512]) -> (f32[512,512]) { %0 = add %x, %x : f32[512,512] return %0 }");
  EXPECT_DOUBLE_EQ(costOf(*sum->functions[0], plain()).seconds, 2.0 * 512 * 512 * 4 / 1e10 + 1e-6);
}

TEST(Cost, FactorsDecideTheRateOfProducts) {
  MachineRates r = plain();
  r.packs = false;
  r.launch = 0;
  r.dram = r.cache = 1e30;
  r.fp32 = 1e12, r.tf32 = 2e12, r.bf16 = 4e12, r.fp16 = 8e12;
  auto seconds = [&](const char *type, const char *attributes) {
    return costOf(*fused(fmt::format("func @f(%x: {0}[64,64]) -> ({0}[64,64]) {{\n%0 = matmul %x, %x {1} : {0}[64,64]\n"
                                     "return %0 }}",
                                     type, attributes)
                             .c_str())
                       ->functions[0],
                  r)
        .seconds;
  };
  const double fp32 = 2.0 * 64 * 64 * 64 / 1e12;
  EXPECT_DOUBLE_EQ(seconds("f32", ""), fp32);
  EXPECT_DOUBLE_EQ(seconds("f32", "{tf32=true}"), fp32 / 2);
  EXPECT_DOUBLE_EQ(seconds("bf16", ""), fp32 / 4);
  EXPECT_DOUBLE_EQ(seconds("f16", ""), fp32 / 8);
  // The statistics that the gradient of attention reads are f32 whatever its factors are.
  auto m =
      fused("func @f(%d: bf16[1,64,8], %q: bf16[1,64,24], %o: bf16[1,64,8], %l: f32[1,1,64]) -> (bf16[1,64,24]) {\n"
            "%0 = attention_grad %d, %q, %o, %l {n_head=1} : bf16[1,64,24]\nreturn %0 }");
  KernelCost c = costOf(*m->functions[0], r);
  EXPECT_DOUBLE_EQ(c.seconds, c.flops / r.bf16);
}

TEST(Cost, GpusHaveTheRatesOfTheirArchitecture) {
  auto rates = [](const char *arch) {
    Target t;
    t.name = std::string("cuda:") + arch;
    t.cpu = arch;
    t.warp = 32;
    return ratesOf(t);
  };
  EXPECT_EQ(rates("sm_90a").bf16, rates("sm_90").bf16);
  EXPECT_GT(rates("sm_90a").bf16, rates("sm_80").bf16);
  EXPECT_EQ(rates("sm_121a").bf16, rates("sm_120").bf16);  // a relative without a row of its own
  EXPECT_GT(rates("sm_100").bf16, rates("sm_90").bf16);
  EXPECT_EQ(rates("sm_75").bf16, rates("sm_75").fp32);
  EXPECT_FALSE(rates("sm_80").packs);
}

TEST(Cost, AGatherReadsTheRowsItTakes) {
  auto m = fused("func @f(%t: f32[50000,64], %i: i32[8]) -> (f32[8,64]) {\n"
                 "%0 = embedding %t, %i : f32[8,64]\nreturn %0 }");
  EXPECT_EQ(costOf(*m->functions[0], plain()).bytes, 4 * (2 * 8 * 64 + 8));
}

TEST(Cost, AStepAccumulatesAsOftenAsTheModuleSays) {
  auto m = fused("module {accumulate=3} {\n"
                 "func @accumulate(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n"
                 "func @update(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n"
                 "func @eval(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n}");
  EXPECT_EQ(costOfStep(*m, plain()).flops, 40);
}

TEST(Cost, SumsOfShardsFoldAsABinaryTree) {
  auto m = fused("module {accumulate=8, shards=4} {\n"
                 "func @accumulate(%x: f32[1]) -> (f32[1]) { %0 = neg %x : f32[1] return %0 }\n"
                 "func @fold0(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n"
                 "func @fold1(%x: f32[100]) -> (f32[100]) { %0 = neg %x : f32[100] return %0 }\n"
                 "func @fold2(%x: f32[1000]) -> (f32[1000]) { %0 = neg %x : f32[1000] return %0 }\n}");
  // Behind shards 0 and 2 one is put aside, behind shard 1 two become one; shard 3 is the update's.
  EXPECT_EQ(callsPerStep(*m, "fold0"), 2);
  EXPECT_EQ(callsPerStep(*m, "fold1"), 1);
  EXPECT_EQ(callsPerStep(*m, "fold2"), 0);
  EXPECT_EQ(costOfStep(*m, plain()).flops, 8 + 2 * 10 + 100);
}

TEST(Cost, OfAnOuterStepIsSharedByItsSteps) {
  auto m = fused("module {sync_every=5} {\n"
                 "func @train_step(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n"
                 "func @outer(%x: f32[100]) -> (f32[100]) { %0 = neg %x : f32[100] return %0 }\n}");
  EXPECT_EQ(callsPerStep(*m, "outer"), 0.2);
  EXPECT_EQ(costOfStep(*m, plain()).flops, 10 + 20);
}

TEST(Cost, OfStepsAtTheBeginningIsLeftOut) {
  auto m = fused("module {gradient_rank=2, compress_from=100} {\n"
                 "func @train_step(%x: f32[10]) -> (f32[10]) { %0 = neg %x : f32[10] return %0 }\n"
                 "func @train_step_whole(%x: f32[100]) -> (f32[100]) { %0 = neg %x : f32[100] return %0 }\n}");
  EXPECT_EQ(costOfStep(*m, plain()).flops, 10);
}

TEST(Cost, AKernelIsOfItsAnchorsKind) {
  auto m = fused("func @f(%x: f32[64,64]) -> (f32[64,64]) {\n"
                 "%0 = neg %x : f32[64,64]\n%1 = matmul %0, %0 : f32[64,64]\nreturn %1 }");
  std::map<KernelClass, int> kinds;
  for (const Op &op : m->functions[0]->body)
    if (op.is(OpKind::fused))
      ++kinds[classOf(op)];
  EXPECT_EQ(kinds[KernelClass::matmul], 1);
  EXPECT_EQ(nameOf(KernelClass::attention_grad), std::string("attention_grad"));
}

}  // namespace
}  // namespace gptc

// What fusion decides by the model of costs. tests/lit/passes/fuse-*.gir shows the groups.
#include "passes/decisions.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

/// Whether the gradients of a weight [inputs,512] and of its bias over 65536 tokens become one group on a GPU for which
/// cuBLASLt multiplies.
bool joins(int64_t inputs, bool init, std::vector<Decision> &decisions) {
  auto m = parseModule(fmt::format(R"(module {{
  func @train_step(%x: bf16[65536,{0}], %dy: bf16[65536,512], %init: f32[{0},512]) -> (f32[{0},512], f32[512]) {{
    %0 = matmul %x, %dy{1} {{fold=64, out="f32", ta=true}} : f32[{0},512]
    %1 = cast %dy {{dtype="f32"}} : f32[65536,512]
    %2 = reduce_sum %1 {{fold=64, lead=1}} : f32[512]
    return %0, %2
  }}
}})",
                                   inputs, init ? ", %init" : ""),
                       "test");
  Target target;
  target.name = "cuda:sm_90a", target.cpu = "sm_90a", target.features = "cublaslt";
  target.warp = 32, target.architecture = 90, target.processors = 132;
  runPipeline(*m, parsePipeline("fuse", &target), {});
  decisions = decisionsOf(*m);
  int groups = 0;
  for (const Op &op : m->function("train_step")->body)
    groups += op.is(OpKind::fused);
  return groups == 1;
}

TEST(Fuse, SumsBiasGradientsInEpiloguesWhereThatIsFaster) {
  std::vector<Decision> decisions;
  EXPECT_TRUE(joins(64, false, decisions));
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].choice, "1 in epilogues of cuBLASLt, 0 in kernels of their own");
  EXPECT_EQ(decisions[0].rejected.at(0).effect.ms, 0);
  EXPECT_GT(decisions[0].rejected.at(1).effect.ms, 0);

  EXPECT_FALSE(joins(1024, false, decisions));
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].choice, "0 in epilogues of cuBLASLt, 1 in kernels of their own");
  EXPECT_GT(decisions[0].rejected.at(0).effect.ms, 0);
  EXPECT_EQ(decisions[0].rejected.at(1).effect.ms, 0);

  EXPECT_FALSE(joins(64, true, decisions));  // the library has no such epilogue
  EXPECT_TRUE(decisions.empty());
}

}  // namespace
}  // namespace gptc

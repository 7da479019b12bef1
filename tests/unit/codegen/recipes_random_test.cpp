// Random groups, shapes and schedules against the reference; and the same bits on another instruction set.
#include "random_group.h"

#include "ir/access.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gptc::test {
namespace {

/// Within the bound in f64 and f32; with every result that may where an operand lies; and the bits of another schedule.
void compare(const Group &g, const std::vector<Tensor> &operands, const Schedule &schedule, unsigned seed) {
  const std::string what = fmt::format("seed {} {}\n{}", seed, schedule.str(), print(*g.fused));
  for (DType compute : {DType::f64, DType::f32})
    expectWithinBound(g, operands, {.compute = compute, .schedule = schedule}, what);
  const std::vector<Tensor> apart = run(g, operands, {.schedule = schedule});
  expectSame(apart, run(g, operands), what);
  std::vector<std::pair<unsigned, unsigned>> inPlace;
  for (unsigned o = 0; o < g.fused->numOperands(); ++o)
    for (unsigned r = 0; r < g.fused->numResults(); ++r)
      if (mayShare(*g.fused, r, o) && llvm::none_of(inPlace, [&](auto p) { return p.first == r; })) {
        inPlace.push_back({r, o});
        break;
      }
  expectSame(run(g, operands, {.schedule = schedule, .inPlace = inPlace}), apart, what + "\nin place");
}

TEST(RandomGroups, Pointwise) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Source s(seed);
    Group g = randomGroup(s, false);
    std::vector<Tensor> operands = randomOperands(g, seed);
    Schedule schedule;
    schedule.recipe = RecipeKind::pointwise;
    schedule.vec = 1 << s.between(0, 6);
    schedule.task = s.between(0, 3) ? s.between(1, 700) : 0;
    compare(g, operands, schedule, seed);
    ASSERT_FALSE(HasFailure()) << seed;
  }
}

TEST(RandomGroups, Rows) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Source s(1000 + seed);
    Group g = randomGroup(s, true);
    std::vector<Tensor> operands = randomOperands(g, seed);
    Schedule schedule = defaultSchedule(*g.fused, hostTarget());
    schedule.task = s.between(1, 9);
    compare(g, operands, schedule, seed);
    ASSERT_FALSE(HasFailure()) << seed;
  }
}

TEST(RandomGroups, SameBitsWithoutAvx512) {
  ASSERT_EQ(setenv("GPTC_CPU_FEATURES", "-avx512f", 1), 0);
  Target narrow = hostTarget(1);
  unsetenv("GPTC_CPU_FEATURES");
  if (narrow.vectorBytes == hostTarget(1).vectorBytes)
    GTEST_SKIP() << "this machine has no AVX-512 to leave out";
  auto compare = [&](const Group &g, unsigned seed) {
    std::vector<Tensor> operands = randomOperands(g, seed);
    expectSame(run(g, operands, {.target = narrow}), run(g, operands), print(*g.fused));
  };
  for (unsigned seed = 0; seed < 6; ++seed) {
    Source a(seed), b(1000 + seed);
    compare(randomGroup(a, false), seed);
    compare(randomGroup(b, true), seed);
  }
  compare(group("row", "%x: f32[3,1001]; %t: i32[3]", "%a, %b = cross_entropy %x, %t : f32[3], f32[3]\nyield %a, %b"),
          1);
  compare(group("reduce_all", "%x: f32[9,1001]", "%0 = sum_squares %x : f32[]\nyield %0"), 2);
  compare(group("fold", "%x: f32[99,101]; %y: f32[99,101]",
                "%h = gelu_tanh_grad %x, %y : f32[99,101]\n%0 = reduce_sum %h {fold=16, lead=1} : f32[101]\nyield %0"),
          3);
  compare(group("fold", "%x: f32[999]", "%0 = reduce_sum %x {fold=16, lead=1} : f32[]\nyield %0"), 4);
}

}  // namespace
}  // namespace gptc::test

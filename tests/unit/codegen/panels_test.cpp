// Weights in panels: what `pack` leaves in memory, and products that read it. Their bits are those of products that
// pack by themselves, whatever the sizes.
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <functional>

namespace gptc::test {
namespace {

struct Shape {
  int64_t m, n, k, cols;
};
// Tails of every kind: of columns, of vectors, of pairs, of blocks of k; panels of another machine (24, 5).
constexpr Shape shapes[] = {{29, 75, 83, 32}, {7, 17, 64, 16}, {1, 1, 1, 32},    {65, 129, 9, 64}, {15, 65, 17, 64},
                            {6, 50, 35, 24},  {9, 11, 7, 5},   {14, 96, 40, 32}, {1, 200, 83, 16}, {2, 129, 64, 32},
                            {3, 50, 35, 24},  {4, 77, 41, 16}, {1, 300, 9, 5}};

std::string name(DType t) { return nameOf(t).str(); }
std::string dims(int64_t a, int64_t b) { return fmt::format("[{},{}]", a, b); }

Group packOf(const Shape &s, DType stored, bool tb) {
  const Type b(stored, {Dim(tb ? s.n : s.k), Dim(tb ? s.k : s.n)}), panels = *panelsOf(b, s.cols, tb);
  return group("pack", "%b: " + b.str(),
               fmt::format("%p = pack %b {{cols={}, tb={}}} : {}\nyield %p", s.cols, tb, panels.str()));
}

/// A product with an epilogue, whose second operand comes as a matrix or in panels. Odd numbers of rows continue a sum.
Group productOf(const Shape &s, DType stored, bool tb, bool packed) {
  const Type b(stored, {Dim(tb ? s.n : s.k), Dim(tb ? s.k : s.n)}), panels = *panelsOf(b, s.cols, tb);
  const std::string y = "f32" + dims(s.m, s.n), a = name(stored) + dims(s.m, s.k);
  const std::string unpack = packed ? fmt::format("%b = unpack %p {{tb={}}} : {}\n", tb, b.str()) : "";
  const bool init = s.m % 2;
  return group("matmul",
               fmt::format("%a: {}; %{}: {}; %c: f32[{}]{}", a, packed ? "p" : "b", (packed ? panels : b).str(), s.n,
                           init ? "; %i: " + y : ""),
               fmt::format("{}%y = matmul %a, %b{} {{out=\"f32\", tb={}}} : {}\n%z = add %y, %c : {}\nyield %y, %z",
                           unpack, init ? ", %i" : "", tb, y, y));
}

TEST(Pack, SizesAndTargets) {
  OneIn some(5);
  for (const Shape &s : shapes)
    for (DType stored : {DType::f32, DType::bf16, DType::f16})
      for (bool tb : {false, true}) {
        if (some.skips())
          continue;
        Group g = packOf(s, stored, tb);
        const std::vector<Tensor> operands = randomOperands(g, unsigned(s.n));
        check(g, operands);
        const std::vector<Tensor> want = interpretFused(*g.fused, operands);
        for (const char *text : {"pack vec=16 nc=1 kc=1", "pack vec=4 nc=64 kc=16", "pack vec=8 nc=10000 kc=10000"}) {
          Schedule schedule;
          ASSERT_TRUE(Schedule::parse(text, schedule));
          expectSame(run(g, operands, {.schedule = schedule}), want, fmt::format("{} {} {}", name(stored), tb, text));
        }
        if (HasFailure())
          return;
      }
}

TEST(Panels, GiveTheBitsOfProductsThatPack) {
  Target with = hostTarget(), without = hostTarget();
  with.bf16Dot = true, without.bf16Dot = false;
  OneIn some(7);
  for (const Shape &s : shapes)
    for (DType stored : {DType::f32, DType::bf16})
      for (bool tb : {false, true})
        for (const Target &target : {with, without}) {
          if (some.skips())
            continue;
          const std::string what =
              fmt::format("{}x{}x{} in {} {} {} {}", s.m, s.n, s.k, s.cols, name(stored), tb, target.bf16Dot);
          Group plain = productOf(s, stored, tb, false), packed = productOf(s, stored, tb, true);
          std::vector<Tensor> operands = randomOperands(plain, unsigned(s.k));
          // Rows of few are multiplied by another kernel, of the same chains.
          const std::vector<Tensor> want = run(plain, operands, {.target = target});
          operands[1] = run(packOf(s, stored, tb), {operands[1]}, {})[0];
          const Schedule own = defaultSchedule(*packed.fused, target);
          EXPECT_EQ(own.nr, s.cols) << what;
          EXPECT_EQ(own.pairs, target.bf16Dot && stored == DType::bf16) << what;
          expectSame(run(packed, operands, {.target = target}), want, what);
          expectSame(run(packed, operands, {.target = target, .compiled = false}), want, what + " interpreted");
          auto cut = [&](const std::function<void(Schedule &)> &change) {
            Schedule other = own;
            change(other);
            expectSame(run(packed, operands, {.schedule = other, .target = target}), want, what + " " + other.str());
          };
          if (s.m <= 4) {
            for (int beside : {1, 2, 3})
              cut([&](Schedule &o) { o.mc = beside, o.nc = beside * 2 * s.cols, o.unroll = beside; });
          } else {
            for (int64_t kc : {2, 18, 1000})
              for (int64_t rows : {1, 3, 6})
                cut([&](Schedule &o) { o.kc = kc, o.mr = int(rows), o.mc = 2 * rows, o.nc = s.cols; });
          }
          if (target.bf16Dot)
            check(packed, operands);
          if (HasFailure())
            return;
        }
}

// A tuner may change everything but the panels.
TEST(Panels, StayAsTheyAreInEverySchedule) {
  const Target target = hostTarget(2);
  for (DType stored : {DType::f32, DType::bf16}) {
    Group g = productOf({97, 201, 131, 32}, stored, false, true);
    const std::vector<Schedule> space = scheduleSpace(*g.fused, target);
    EXPECT_GE(space.size(), target.vectorBytes == 64 ? 20u : 1u);
    for (const Schedule &s : space)
      EXPECT_EQ(s.nr, 32) << s.str();
  }
}

TEST(Panels, AreRefusedOnGpus) {
  Group g = productOf({65, 129, 9, 64}, DType::f32, false, true);
  EXPECT_THROW(defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a")), UserError);
}

}  // namespace
}  // namespace gptc::test

// Products with weights of 8 and 4 bits: within their bound of the reference, and the same bits in any tile, task and
// company.
#include "ir/ops/op_support.h"
#include "ir/quantized.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::test {
namespace {

struct Shape {
  int64_t m, n, blocks, cols, bits = 8;
};
// Tails of rows and columns; panels of other machines.
constexpr Shape shapes[] = {{1, 75, 3, 32},  {29, 33, 2, 32, 4}, {7, 17, 1, 16},    {4, 64, 5, 32},
                            {13, 129, 2, 8}, {2, 5, 4, 4, 4},    {1, 75, 3, 32, 4}, {14, 40, 2, 16, 4}};

QuantizedType weightOf(const Shape &s) {
  return *quantizedType(Type(DType::f32, {Dim(s.blocks * quantBlock), Dim(s.n)}), s.cols, false, s.bits);
}

/// A product with an epilogue, or one with a narrow result.
Group productOf(const Shape &s, DType stored, DType result = DType::f32) {
  const QuantizedType w = weightOf(s);
  const std::string y = Type(result, {Dim(s.m), Dim(s.n)}).str();
  return group("matmul",
               fmt::format("%a: {}; %w: {}; %d: {}; %c: f32[{}]",
                           Type(stored, {Dim(s.m), Dim(s.blocks * quantBlock)}).str(), w.numbers.str(), w.scales.str(),
                           s.n),
               fmt::format("%y = quantized_matmul %a, %w, %d {{bits={}}} : {}\n", s.bits, y) +
                   (result == DType::f32 ? fmt::format("%z = add %y, %c : {}\nyield %y, %z", y) : "yield %y"));
}

std::vector<Tensor> operandsOf(const Group &g, unsigned seed) {
  std::vector<Tensor> all = randomOperands(g, seed);
  ops::SampleSource source(seed);
  for (double &v : all[1].data)
    v = double(uint32_t(source.bits()));
  return all;
}

TEST(Quantized, StaysWithinItsBound) {
  for (const Shape &s : shapes)
    for (DType stored : {DType::f32, DType::bf16}) {
      const Group g = productOf(s, stored);
      check(g, operandsOf(g, unsigned(s.n)));
      if (HasFailure())
        return;
    }
  const Group narrow = productOf(shapes[1], DType::bf16, DType::bf16);
  check(narrow, operandsOf(narrow, 3));
}

TEST(Quantized, TilesAndTasksNeverShow) {
  OneIn some(5);
  for (const Shape &s : shapes) {
    const Group g = productOf(s, DType::bf16);
    const std::vector<Tensor> operands = operandsOf(g, unsigned(s.m)), want = run(g, operands);
    expectSame(run(g, operands, {.compiled = false}), want, "interpreted");
    Schedule own = defaultSchedule(*g.fused, hostTarget());
    for (int mr : {1, 2, 5})
      for (int64_t tiles : {1, 3})
        for (int64_t panels : {1, 2, 100})
          for (int vec : {4, 16}) {
            if (some.skips())
              continue;
            Schedule cut = own;
            cut.mr = mr, cut.mc = mr * tiles, cut.nc = panels * s.cols;
            cut.vec = std::min<int>(vec, int(s.cols));
            expectSame(run(g, operands, {.schedule = cut}), want, cut.str());
          }
    if (HasFailure())
      return;
  }
}

// What a row gets does not depend on the rows beside it: a sampled token has the bits of a prompt's.
TEST(Quantized, RowsDoNotSeeEachOther) {
  const Shape many{29, 75, 3, 32}, one{1, 75, 3, 32};
  const Group all = productOf(many, DType::f32), alone = productOf(one, DType::f32);
  const std::vector<Tensor> operands = operandsOf(all, 7), together = run(all, operands);
  const int64_t k = many.blocks * quantBlock;
  for (int64_t row = 0; row < many.m; ++row) {
    std::vector<Tensor> single = operands;
    single[0] = Tensor(Type(DType::f32, {Dim(1), Dim(k)}),
                       {operands[0].data.begin() + row * k, operands[0].data.begin() + (row + 1) * k});
    const std::vector<Tensor> got = run(alone, single);
    for (size_t result = 0; result < got.size(); ++result)
      for (int64_t j = 0; j < many.n; ++j)
        ASSERT_EQ(got[result].data[j], together[result].data[row * many.n + j]) << row << " " << j;
  }
}

// Zeros, denormals, the ends of the range, and values that are not finite, which must not be lost.
TEST(Quantized, RoundsAnyBlock) {
  const Shape s{6, 16, 1, 16};
  const Group g = productOf(s, DType::f32);
  std::vector<Tensor> operands = operandsOf(g, 5);
  auto fill = [&](int64_t row, const std::function<double(int64_t)> &f) {
    for (int64_t i = 0; i < quantBlock; ++i)
      operands[0].data[row * quantBlock + i] = double(float(f(i)));
  };
  fill(0, [](int64_t) { return 0; });
  fill(1, [](int64_t i) { return i % 2 ? -1e-42 : 1e-45; });
  fill(2, [](int64_t i) { return i == 7 ? -3.4e38 : 1e30 * double(i); });
  fill(3, [](int64_t i) { return i == 31 ? INFINITY : 1; });
  fill(4, [](int64_t i) { return i == 0 ? NAN : 1; });
  fill(5, [](int64_t i) { return std::ldexp(1.0, int(-i)); });
  const std::vector<Tensor> got = run(g, operands);
  for (int64_t j = 0; j < s.n; ++j) {
    EXPECT_EQ(got[0].data[j], 0) << j;
    EXPECT_EQ(got[0].data[s.n + j], 0) << j;
    EXPECT_TRUE(std::isnan(got[0].data[3 * s.n + j]) && std::isnan(got[0].data[4 * s.n + j])) << j;
  }
  expectSame(run(g, operands, {.compiled = false}), got, "interpreted");

  float x[quantBlock];
  for (int64_t i = 0; i < quantBlock; ++i)
    x[i] = float(std::ldexp(1.0, int(-i)));
  const RoundedBlock r = roundBlock(x);
  EXPECT_EQ(r.q[0], 127);  // 127 * 2^23 / 2^23
  EXPECT_EQ(r.q[1], 64);   // 63.5, away from zero
  EXPECT_EQ(r.q[7], 1);
  EXPECT_EQ(r.q[8], 0);
  EXPECT_EQ(r.scale, 1.0 / 127);
  for (float &v : x)
    v = -v;
  EXPECT_EQ(roundBlock(x).q[1], -64);
}

TEST(Quantized, IsRefusedOnGpus) {
  const Group g = productOf(shapes[0], DType::f32);
  EXPECT_THROW(defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a")), UserError);
}

// A tuner may change neither panels nor vectors.
TEST(Quantized, HasASpace) {
  const Group g = productOf({97, 2001, 9, 32}, DType::bf16);
  const std::vector<Schedule> space = scheduleSpace(*g.fused, hostTarget(2));
  EXPECT_GE(space.size(), 10u);
  for (const Schedule &s : space)
    EXPECT_EQ(s.nr, 32) << s.str();
}

}  // namespace
}  // namespace gptc::test

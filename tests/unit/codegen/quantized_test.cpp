// Products with weights of 8 and 4 bits: within their bound of the reference, and the same bits in any tile, task and
// company. Look-ups of their columns.
#include "codegen/cublaslt_matmul.h"
#include "codegen/cuda/emit.h"
#include "ir/ops/op_support.h"
#include "ir/quantized.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"
#include "tests/unit/codegen/quantized_products.h"
#include "tests/unit/codegen/support.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace gptc::test {
namespace {

constexpr QuantFormat q8_0 = QuantFormat::q8_0, q4_0 = QuantFormat::q4_0, q4_k = QuantFormat::q4_k;

using Shape = QuantizedShape;
// Tails of rows and columns; panels of other machines.
constexpr Shape shapes[] = {{1, 75, 3, 32},       {29, 33, 2, 32, q4_0}, {7, 17, 1, 16},        {4, 64, 5, 32},
                            {13, 129, 2, 8},      {2, 5, 4, 4, q4_0},    {1, 75, 3, 32, q4_0},  {14, 40, 2, 16, q4_0},
                            {1, 75, 8, 32, q4_k}, {9, 33, 24, 32, q4_k}, {3, 17, 16, 16, q4_k}, {14, 5, 8, 4, q4_k}};

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

/// The product as ir/quantized.h says it, one operation of f32 after another. Of Q4_K.
std::vector<float> oneByOne(const Shape &s, const std::vector<Tensor> &operands) {
  const int64_t k = s.blocks * quantBlock;
  std::vector<float> y(size_t(s.m * s.n), 0.f);
  for (int64_t row = 0; row < s.m; ++row)
    for (int64_t block = 0; block < s.blocks; ++block) {
      float x[quantBlock];
      for (int64_t i = 0; i < quantBlock; ++i)
        x[i] = float(operands[0].data[size_t(row * k + block * quantBlock + i)]);
      const RoundedBlock r = roundBlock(x);
      for (int64_t column = 0; column < s.n; ++column) {
        int32_t dot = 0, sum = 0;
        QuantizedPlace p{};
        for (int64_t i = 0; i < quantBlock; ++i) {
          p = quantizedPlace(block * quantBlock + i, column, k, s.cols, s.format);
          dot += r.q[i] * int32_t(uint32_t(operands[1].data[size_t(p.word)]) >> p.shift & 15);
          sum += r.q[i];
        }
        const uint32_t six = uint32_t(operands[2].data[size_t(p.scale)]) >> p.scaleShift;
        const float d = float(operands[4].data[size_t(p.d)]), dmin = float(operands[4].data[size_t(p.dmin)]);
        float &acc = y[size_t(row * s.n + column)];
        acc = std::fma(float(dot), float(r.scale) * (d * float(six & 63)), acc);
        acc = std::fma(float(sum), float(r.scale) * -(dmin * float(six >> 8 & 63)), acc);
      }
    }
  return y;
}

// One order of operations, by every instruction that multiplies bytes: K of one, two and three blocks of 256, odd
// numbers of columns, few rows and many.
TEST(Quantized, Q4KHasOneOrderOnEveryMachine) {
  for (const Shape &s : {Shape{1, 75, 8, 32, q4_k}, Shape{2, 33, 24, 32, q4_k}, Shape{5, 129, 16, 16, q4_k},
                         Shape{37, 31, 24, 32, q4_k}, Shape{3, 7, 8, 4, q4_k}}) {
    const Group g = productOf(s, DType::f32);
    const std::vector<Tensor> operands = operandsOf(g, unsigned(s.n + s.m));
    const std::vector<float> want = oneByOne(s, operands);
    for (const char *mask : {"", "-avx512vnni", "-avx512f", "-avx"}) {
      const std::vector<Tensor> got = run(g, operands, {.target = maskedTarget(mask)});
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_EQ(float(got[0].data[i]), want[i]) << mask << ", " << s.m << " rows of " << s.n << ": " << i;
    }
  }
}

// Without AVX512-VNNI bytes are multiplied by PMADDWD, in vectors of any length.
TEST(Quantized, BytesAreMultipliedInPairs) {
  const Group g = productOf({4, 64, 4, 32, q8_0}, DType::f32);
  for (const char *mask : {"-avx512vnni", "-avx512f", "-avx"}) {
    const Target target = maskedTarget(mask);
    const std::string ir =
        emitLLVM(lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target).kernel, target, true);
    EXPECT_NE(ir.find("pmadd"), std::string::npos) << mask;
  }
}

// The minimum counts, and in the block of its own: with numbers of 0 an element is -dmin * m.
TEST(Quantized, Q4KHasMinima) {
  const Shape s{1, 1, 8, 4, q4_k};
  const Group g = productOf(s, DType::f32);
  std::vector<Tensor> operands = operandsOf(g, 3);
  for (double &v : operands[0].data)
    v = 1;
  for (double &v : operands[1].data)
    v = 0;
  for (int64_t block = 0; block < 8; ++block) {
    for (Tensor *t : {&operands[2], &operands[4]})
      std::fill(t->data.begin(), t->data.end(), 0.0);
    const QuantizedPlace p = quantizedPlace(block * quantBlock, 0, 256, s.cols, q4_k);
    operands[2].data[size_t(p.scale)] = double((uint32_t(block + 1) << 8 | 63u) << p.scaleShift);
    operands[4].data[size_t(p.d)] = 4;
    operands[4].data[size_t(p.dmin)] = 0.5;
    EXPECT_NEAR(run(g, operands)[0].data[0], -32 * 0.5 * double(block + 1), 1e-4) << block;
  }
}

TEST(Quantized, TypesThatDoNotFitAreRefused) {
  const Type b(DType::f32, {Dim(384), Dim(5)});
  EXPECT_TRUE(quantizedType(b, 32, false, q4_0));
  EXPECT_FALSE(quantizedType(b, 32, false, q4_k)) << "384 is no multiple of 256";
  EXPECT_TRUE(quantizedType(Type(DType::f32, {Dim(5), Dim(512)}), 32, true, q4_k));
  const QuantizedType w = *quantizedType(Type(DType::f32, {Dim(256), Dim(5)}), 32, false, q4_k);
  EXPECT_EQ(w.numbers.str() + w.scales.str() + w.supers->str(), "u32[1,32,32]u32[1,4,32]f16[1,2,32]");
  auto problems = [](const char *scales, const char *supers, int bits) {
    const std::string text = fmt::format("func @f(%a: f32[3,256], %w: u32[1,32,32], %d: {}, %s: {}) -> (f32[3,5]) {{\n"
                                         "%y = quantized_matmul %a, %w, %d, %s {{bits={}}} : f32[3,5]\nreturn %y\n}}",
                                         scales, supers, bits);
    try {
      return int(verify(*parseModule(text, "test")).size());
    } catch (const UserError &) {
      return 1;
    }
  };
  EXPECT_EQ(problems("u32[1,4,32]", "f16[1,2,32]", 4), 0);
  EXPECT_GT(problems("u32[1,4,32]", "f16[1,2,32]", 8), 0);
  EXPECT_GT(problems("f16[1,8,32]", "f16[1,2,32]", 4), 0);
  EXPECT_GT(problems("u32[1,4,32]", "f16[1,1,32]", 4), 0);
  EXPECT_GT(problems("u32[1,4,32]", "u32[1,2,32]", 4), 0);
}

/// A look-up of m rows of a table of n rows, with an op behind it.
Group lookUpOf(const Shape &s, const std::string &kind, const std::string &then, DType result = DType::f32) {
  const QuantizedType w = weightOf(s);
  const std::string y = Type(result, {Dim(s.m), Dim(s.blocks * quantBlock)}).str();
  return group(kind,
               fmt::format("%i: i32[{}]; %w: {}; %d: {}{}", s.m, w.numbers.str(), w.scales.str(),
                           w.supers ? "; %s: " + w.supers->str() : ""),
               fmt::format("%y = quantized_embedding %i, %w, %d{} {{bits={}, vocab={}}} : {}\n%z = {} %y : {}\n"
                           "yield %y, %z",
                           w.supers ? ", %s" : "", bitsOf(s.format), s.n, y, then, y));
}

/// Ids from -1 to n.
std::vector<Tensor> lookUpOperands(const Group &g, const Shape &s, unsigned seed) {
  std::vector<Tensor> all = randomOperands(g, seed);
  ops::SampleSource source(seed);
  for (size_t i = 0; i < all[0].data.size(); ++i)
    all[0].data[i] = double(int64_t(7 * i + seed) % (s.n + 2) - 1);
  auto words = [&](Tensor &t, uint32_t mask) {
    for (double &v : t.data)
      v = double(uint32_t(source.bits()) & mask);
  };
  auto halves = [&](Tensor &t) {
    for (double &v : t.data)
      v = double(float(_Float16(source.uniform(-0.02, 0.02))));
  };
  words(all[1], ~0u);
  if (all.size() == 3) {
    halves(all[2]);
    return all;
  }
  words(all[2], 0x3f3f3f3f);
  halves(all[3]);
  return all;
}

/// Element k of row `id` of the table as ir/quantized.h says it, in f32.
float elementOf(const Shape &s, const std::vector<Tensor> &operands, int64_t id, int64_t k) {
  const QuantizedPlace p = quantizedPlace(k, id, s.blocks * quantBlock, s.cols, s.format);
  const uint32_t mask = (1u << bitsOf(s.format)) - 1;
  const auto number =
      float(int64_t(uint32_t(operands[1].data[size_t(p.word)]) >> p.shift & mask) - quantOffset(s.format));
  if (s.format != q4_k)
    return number * float(operands[2].data[size_t(p.scale)]);
  const uint32_t six = uint32_t(operands[2].data[size_t(p.scale)]) >> p.scaleShift;
  return float(operands[3].data[size_t(p.d)]) * float(six & 63) * number -
         float(operands[3].data[size_t(p.dmin)]) * float(six >> 8 & 63);
}

// Rows of the table to the bit, on every machine, and the first or last one for an id beside it.
TEST(Quantized, LookUpsHaveTheNumbersOfProducts) {
  for (const Shape &s : shapes) {
    const Group g = lookUpOf(s, "pointwise", "tanh");
    const std::vector<Tensor> operands = lookUpOperands(g, s, unsigned(s.n));
    const int64_t k = s.blocks * quantBlock;
    for (const char *mask : {"", "-avx512f", "-avx"}) {
      const std::vector<Tensor> got = run(g, operands, {.target = maskedTarget(mask)});
      for (int64_t row = 0; row < s.m; ++row) {
        const int64_t id = std::clamp<int64_t>(int64_t(operands[0].data[size_t(row)]), 0, s.n - 1);
        for (int64_t i = 0; i < k; ++i)
          ASSERT_EQ(float(got[0].data[size_t(row * k + i)]), elementOf(s, operands, id, i))
              << mask << ", row " << id << " of " << s.n << ", element " << i;
      }
    }
  }
}

TEST(Quantized, LookUpsStayWithinTheirBound) {
  for (const Shape &s : shapes) {
    for (const Group &g : {lookUpOf(s, "pointwise", "tanh"), lookUpOf(s, "row", "softmax")})
      check(g, lookUpOperands(g, s, unsigned(s.m + s.n)));
    if (HasFailure())
      return;
  }
}

TEST(Quantized, TablesThatDoNotFitAreRefused) {
  struct Use {
    const char *ids, *numbers, *scales, *supers;
    int bits, vocab;
    const char *y;
  };
  auto problems = [](const Use &u) {
    const std::string supers = u.supers, type = supers.empty() ? "" : ", %s: " + supers;
    const std::string text =
        fmt::format("func @f(%i: {}, %w: {}, %d: {}{}) -> ({}) {{\n%y = quantized_embedding %i, %w, %d{} "
                    "{{bits={}, vocab={}}} : {}\nreturn %y\n}}",
                    u.ids, u.numbers, u.scales, type, u.y, supers.empty() ? "" : ", %s", u.bits, u.vocab, u.y);
    try {
      return int(verify(*parseModule(text, "test")).size());
    } catch (const UserError &) {
      return 1;
    }
  };
  const Use eight{"i32[2,3]", "u32[2,16,32]", "f16[2,2,32]", "", 8, 40, "f32[2,3,64]"},
      four{"i64[5]", "u32[1,32,32]", "u32[1,4,32]", "f16[1,2,32]", 4, 20, "bf16[5,256]"};
  EXPECT_EQ(problems(eight), 0);
  EXPECT_EQ(problems(four), 0);
  for (const int vocab : {-1, 0, 32, 65}) {  // of two panels of 32
    Use u = eight;
    u.vocab = vocab;
    EXPECT_GT(problems(u), 0) << vocab;
  }
  for (const char *ids : {"f32[2,3]", "i32[3,2]", "i32[6]", "u32[2,3]"}) {
    Use u = eight;
    u.ids = ids;
    EXPECT_GT(problems(u), 0) << ids;
  }
  for (const char *y : {"f32[2,3,32]", "f32[2,3,64->96]", "i32[2,3,64]", "f32[6,64]"}) {
    Use u = eight;
    u.y = y;
    EXPECT_GT(problems(u), 0) << y;
  }
  for (const int bits : {4, 16}) {
    Use u = eight;
    u.bits = bits;
    EXPECT_GT(problems(u), 0) << bits;
  }
  Use u = four;
  u.bits = 8;
  EXPECT_GT(problems(u), 0);
  u = four;
  u.supers = "f16[1,1,32]";
  EXPECT_GT(problems(u), 0);
}

// What a row gets does not depend on the rows beside it: a sampled token has the bits of a prompt's.
TEST(Quantized, RowsDoNotSeeEachOther) {
  for (const auto &[many, one] : {std::pair(Shape{29, 75, 3, 32}, Shape{1, 75, 3, 32}),
                                  {Shape{29, 75, 8, 32, q4_k}, Shape{1, 75, 8, 32, q4_k}}}) {
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

// By the interpreter; tests/simt runs the text.
TEST(Quantized, GpusHaveTheBitsOfCpus) {
  OneIn some(3);
  for (const Shape &s : gpuShapes())
    for (const char *gpu : {"cuda:sm_75", "cuda:sm_90a"}) {
      if (some.skips())
        continue;
      const Group g = productOf(s, s.m % 2 ? DType::f32 : DType::bf16);
      const std::vector<Tensor> operands = operandsOf(g, unsigned(s.n + s.m));
      expectSame(run(g, operands, {.target = cudaTarget(gpu), .compiled = false}), run(g, operands),
                 fmt::format("{} rows of {}, {} blocks, {}, {}", s.m, s.n, s.blocks, nameOf(s.format), gpu));
      if (HasFailure())
        return;
    }
}

// Neither slices of K, tiles nor stages show, and all fit the smallest GPU.
TEST(Quantized, SchedulesOfGpusNeverShow) {
  const Target small = cudaTarget("cuda:sm_75");
  for (const Shape &s : {Shape{3, 75, 40, 32, q4_0}, Shape{8, 33, 16, 32, q4_k}, Shape{37, 75, 8, 32, q4_k}}) {
    const Group g = productOf(s, DType::f32);
    const std::vector<Tensor> operands = operandsOf(g, unsigned(s.m)), want = run(g, operands);
    const std::vector<Schedule> space = scheduleSpace(*g.fused, small);
    EXPECT_GE(space.size(), 4u);
    OneIn some(4);
    for (const Schedule &own : space) {
      int64_t bytes = 0;
      for (const CudaPhase &p : emitCuda(lowerGroup(*g.fused, own, small).kernel, "k").phases)
        bytes = std::max(bytes, p.sharedBytes);
      EXPECT_LE(bytes, small.sharedBytes) << own.str();
      if (!some.skips())
        expectSame(run(g, operands, {.schedule = own, .target = small, .compiled = false}), want, own.str());
    }
  }
}

// Threads share out K if columns are few. No library multiplies such weights.
TEST(Quantized, DefaultsOfGpus) {
  const Target target = cudaTarget("cuda:sm_90a");
  auto of = [&](const Shape &s) { return defaultSchedule(*productOf(s, DType::bf16).fused, target); };
  EXPECT_EQ(of({1, 4096, 128, 32}).str(), "matmul threads=256 nc=8");
  EXPECT_EQ(of({1, 32000, 128, 32}).str(), "matmul threads=256 nc=32");
  EXPECT_EQ(of({8, 1024, 128, 32}).str(), "matmul threads=256 nc=16");
  EXPECT_EQ(of({512, 4096, 128, 32}).str(), "matmul threads=256 mr=4 nr=4 mc=64 nc=64 kc=128");
  EXPECT_EQ(of({512, 4096, 3, 32}).kc, 32);
  EXPECT_FALSE(matchCublasLtMatmul(*productOf({512, 4096, 128, 32}, DType::bf16).fused));
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

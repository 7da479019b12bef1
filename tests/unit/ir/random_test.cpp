#include "ir/ops/op_support.h"
#include "ir/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

using namespace gptc;

// Vectors of Random123 (kat_vectors), the authors' own implementation of philox4x32-10.
TEST(Random, PhiloxKnownAnswers) {
  RandomKey zero = randomKey(0, 0, 0, 0);
  EXPECT_EQ(zero.k0, 0x6627e8d5u);
  EXPECT_EQ(zero.k1, 0xe169c58du);
  // Counter and key words as the header says which: {step lo, step hi, stream, sequence lo}, {seed lo, seed hi ^
  // sequence hi}.
  RandomKey ones = randomKey(~uint64_t(0), ~uint64_t(0), ~uint32_t(0), 0xffffffff);
  EXPECT_EQ(ones.k0, 0x408f276du);
  EXPECT_EQ(ones.k1, 0x41c83b0eu);
  RandomKey pi = randomKey(uint64_t(0x299f31d0) << 32 | 0xa4093822, uint64_t(0x85a308d3) << 32 | 0x243f6a88, 0x13198a2e,
                           0x03707344);
  EXPECT_EQ(pi.k0, 0xd16cfe09u);
  EXPECT_EQ(pi.k1, 0x94fdccebu);
}

TEST(Random, EachInputMatters) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (uint64_t v : {uint64_t(0), uint64_t(1), uint64_t(1) << 31, uint64_t(1) << 32, uint64_t(1) << 50}) {
    for (RandomKey k : {randomKey(v, 7, 8, 9), randomKey(6, v, 8, 9), randomKey(6, 7, 8, v)})
      EXPECT_TRUE(keys.insert({k.k0, k.k1}).second) << v;
  }
  RandomKey k = randomKey(1, 2, 3, 4);
  EXPECT_NE(randomBits(k, 5), randomBits(k, 5 + (uint64_t(1) << 32)));
}

// A plan pins its random numbers: a resumed run must draw what the first one would have.
TEST(Random, ValuesStayAsTheyAre) {
  RandomKey k = randomKey(1337, 10, 3, 42);
  EXPECT_EQ(k.k0, 0x5c443254u);
  EXPECT_EQ(k.k1, 0xa478dcaau);
  EXPECT_EQ(randomBits(k, 0), 0x2eb7cb7eu);
  EXPECT_EQ(randomBits(k, 1), 0x8c262ea6u);
  EXPECT_EQ(randomBits(k, 12345), 0x3ec6dc57u);
  EXPECT_EQ(randomBits(k, 0xffffffff), 0x24db2734u);
  EXPECT_EQ(randomBits(k, uint64_t(1) << 32), 0x6a660cfcu);
  EXPECT_NEAR(randomNormal(k, 0), -0.6068007200050205, 1e-14);
  EXPECT_NEAR(randomNormal(k, 7), -1.1090505226570315, 1e-14);
}

// Expressions of immediates fold, so that they can be compared without running anything.
TEST(Random, ExpressionsEqualTheFunctions) {
  auto value = [](const kir::Expr &e) {
    EXPECT_EQ(e->kind, kir::ExprKind::IntImm);
    EXPECT_EQ(e->dtype, DType::u32);
    return uint32_t(e->ival);
  };
  std::vector<uint64_t> words = {0, 1, 1337, 0xffffffff, uint64_t(1) << 32, 0x123456789abcdef0, ~uint64_t(0)};
  for (uint64_t seed : words)
    for (uint64_t step : words)
      for (uint64_t sequence : words)
        for (uint32_t stream : {0u, 77u, 0xffffffffu}) {
          auto word = [](uint64_t v) { return kir::imm(int64_t(v)); };
          RandomKey k = randomKey(seed, step, stream, sequence);
          RandomKeyExpr e = randomKeyExpr(word(seed), word(step), word(stream), word(sequence));
          ASSERT_EQ(value(e.k0), k.k0);
          ASSERT_EQ(value(e.k1), k.k1);
          for (uint64_t index : words) {
            ASSERT_EQ(value(randomBitsExpr(e, word(index))), randomBits(k, index));
            if (index <= 0xffffffff) {
              ASSERT_EQ(value(randomBitsExpr(e, kir::imm(int64_t(index), DType::u32))), randomBits(k, index));
            }
          }
        }
}

TEST(Random, DropoutKeepsExactlyWhereUniformIsAtLeastP) {
  for (double p : {0.0, 0x1p-24, 0.1, 0.25, 0.2 + 1e-9, 0.999999, 1 - 0x1p-25})
    for (int64_t upper : {int64_t(0), int64_t(1), int64_t(std::floor(p * 0x1p24)) - 1, int64_t(std::floor(p * 0x1p24)),
                          int64_t(std::ceil(p * 0x1p24)), int64_t(std::ceil(p * 0x1p24)) + 1, int64_t(0xffffff)})
      for (int64_t low : {0, 255}) {
        if (upper < 0 || upper > 0xffffff)
          continue;
        kir::Expr keeps = ops::dropoutKeeps(kir::imm(upper << 8 | low, DType::u32), p);
        ASSERT_EQ(keeps->kind, kir::ExprKind::IntImm);
        EXPECT_EQ(bool(keeps->ival), double(upper) * 0x1p-24 >= p) << p << " " << upper;
      }
}

TEST(Random, UniformHasItsMoments) {
  RandomKey k = randomKey(3, 1, 4, 1);
  constexpr int n = 1 << 18;
  double sum = 0, squares = 0, neighbours = 0, before = 0;
  for (int i = 0; i < n; ++i) {
    double u = randomUniform(k, uint64_t(i));
    ASSERT_TRUE(u >= 0 && u < 1 && u * 0x1p24 == std::floor(u * 0x1p24));
    sum += u, squares += u * u, neighbours += (u - 0.5) * (before - 0.5), before = u;
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 * (1.0 / 12) / std::sqrt(double(n)));
}

TEST(Random, KeysAreIndependentOfEachOther) {
  // Masks of neighbouring sequences, steps and streams agree as often as chance has it.
  constexpr int n = 1 << 16;
  RandomKey base = randomKey(1, 1, 1, 1);
  for (RandomKey other : {randomKey(1, 1, 1, 2), randomKey(1, 2, 1, 1), randomKey(1, 1, 2, 1), randomKey(2, 1, 1, 1)}) {
    int same = 0;
    for (int i = 0; i < n; ++i)
      same += (randomUniform(base, uint64_t(i)) < 0.5) == (randomUniform(other, uint64_t(i)) < 0.5);
    EXPECT_NEAR(same / double(n), 0.5, 5 * 0.5 / std::sqrt(double(n)));
  }
}

TEST(Random, NormalHasItsMoments) {
  RandomKey k = randomKey(5, 0, 0, 0);
  constexpr int n = 1 << 18;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    double z = randomNormal(k, uint64_t(i));
    ASSERT_TRUE(std::isfinite(z));
    sum += z, squares += z * z, fourth += z * z * z * z;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(double(n)));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0 / n));
}

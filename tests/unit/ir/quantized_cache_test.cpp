// Caches of 8 bits: how blocks are rounded, where elements are, and which ops have such caches.
#include "ir/opdef.h"
#include "ir/ops/op_support.h"
#include "ir/quantized_cache.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace gptc {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Of a block that begins with these elements, behind which are zeros.
CacheBlock rounded(std::initializer_list<float> x) {
  float all[quantBlock] = {};
  std::copy(x.begin(), x.end(), all);
  return roundCacheBlock(all);
}

std::vector<int> firsts(const CacheBlock &block, size_t n) { return {block.q, block.q + n}; }

TEST(QuantizedCache, NumbersAreTheNearestAndTiesGoAwayFromZero) {
  const float belowHalf = std::nextafter(1.f, 0.f), belowTwoAndAHalf = std::nextafter(5.f, 0.f);
  const CacheBlock block = rounded({254, 1, -1, 3, 5, -5, belowHalf, -belowHalf, belowTwoAndAHalf, -253});
  EXPECT_EQ(block.scale, 2);
  EXPECT_EQ(firsts(block, 11), (std::vector<int>{127, 1, -1, 2, 3, -3, 0, 0, 2, -127, 0}));
}

TEST(QuantizedCache, BlocksWithoutAScaleAreZeros) {
  for (const CacheBlock &block : {rounded({}), rounded({-0.f, 0.f, -0.f}), rounded({1e-30f, -1e-45f})}) {
    EXPECT_EQ(block.scale, 0);
    EXPECT_FALSE(std::signbit(block.scale));
    EXPECT_EQ(firsts(block, 3), std::vector<int>(3, 0));
  }
  for (const CacheBlock &block : {rounded({1, -infinity}), rounded({3e38f, 1}), rounded({1, -8.33e6f})}) {
    EXPECT_EQ(block.scale, infinity);
    EXPECT_EQ(firsts(block, 2), std::vector<int>(2, 0));
  }
  for (const CacheBlock &block : {rounded({1, std::nanf("")}), rounded({-std::nanf(""), infinity})}) {
    EXPECT_TRUE(std::isnan(block.scale));
    EXPECT_EQ(firsts(block, 2), std::vector<int>(2, 0));
  }
}

TEST(QuantizedCache, ScalesAtTheEndsOfF16) {
  const CacheBlock largest = rounded({65504.f * 127, -65504.f});
  EXPECT_EQ(largest.scale, 65504);
  EXPECT_EQ(firsts(largest, 2), (std::vector<int>{127, -1}));
  // 1.4 of the smallest scale becomes 1, of which the element is 178.
  const CacheBlock smallest = rounded({1.4f * 127 * 0x1p-24f, -0x1p-24f});
  EXPECT_EQ(smallest.scale, 0x1p-24f);
  EXPECT_EQ(firsts(smallest, 2), (std::vector<int>{127, -1}));
}

TEST(QuantizedCache, ElementsAreNear) {
  ops::SampleSource s(1);
  for (int n = 0; n < 4000; ++n) {
    float x[quantBlock];
    const double size = std::ldexp(1, int(s.between(-32, 20)));
    for (float &v : x)
      v = float(s.normal() * size);
    const CacheBlock block = roundCacheBlock(x);
    const double step = block.scale;
    int most = 0;
    for (int i = 0; i < quantBlock; ++i) {
      EXPECT_LE(std::fabs(x[i] - block.q[i] * step), std::max(step / 2 * (1 + 1e-6), 127 * 0x1p-25)) << x[i];
      EXPECT_EQ(float(block.q[i]) * block.scale, block.q[i] * step) << "f32 holds an element";
      // In f64, as the interpreter computes it.
      if (step > 0) {
        const double steps = std::min(std::fabs(double(x[i])) / step, 127.0);
        EXPECT_EQ(std::abs(block.q[i]), int(std::floor(steps)) + (steps - std::floor(steps) >= 0.5)) << x[i];
      }
      most = std::max(most, std::abs(block.q[i]));
    }
    if (step >= 0x1p-14) {
      EXPECT_EQ(most, 127) << step;
    }
    if (HasFailure())
      return;
  }
}

TEST(QuantizedCache, EachElementHasAPlaceOfItsOwn) {
  for (const int64_t size : {32, 64, 96, 256}) {
    std::set<std::pair<int64_t, unsigned>> places;
    for (int64_t e = 0; e < size; ++e) {
      const CachePlace p = cachePlace(e, size);
      EXPECT_TRUE(p.word >= 0 && p.word < size / 4 && p.shift % 8 == 0 && p.shift < 32) << e;
      EXPECT_TRUE(places.emplace(p.word, p.shift).second) << e;
      EXPECT_EQ(p.scale, e / 32);
      if ((e + 1) % (size / 4)) {
        EXPECT_EQ(cachePlace(e + 1, size).word, p.word + 1) << "neighbours are neighbours";
        EXPECT_EQ(cachePlace(e + 1, size).shift, p.shift);
      }
    }
  }
  EXPECT_EQ(cacheNumber(0x80ff0001, 0), -127);
  EXPECT_EQ(cacheNumber(0x80ff0001, 16), 127);
  EXPECT_EQ(cacheNumber(0x80ff0001, 24), 0);
}

TEST(QuantizedCache, TypesHaveWholeBlocks) {
  const auto t = quantizedCacheType(Type(DType::bf16, {3, 2, 5, 96}));
  ASSERT_TRUE(t);
  EXPECT_EQ(t->numbers.str(), "u32[3,2,5,24]");
  EXPECT_EQ(t->scales.str(), "f16[3,2,5,3]");
  EXPECT_FALSE(quantizedCacheType(Type(DType::f32, {2, 5, 48})));
  EXPECT_FALSE(quantizedCacheType(Type(DType::f32, {Dim(2), Dim(5), Dim(32, 64)})));
  EXPECT_FALSE(quantizedCacheType(Type::scalar(DType::f32)));
}

/// What is wrong with attention of one head to this cache; "" if nothing is.
std::string problemOf(const Type &qkv, const Type &k, const Type &v, const std::vector<Type> &scales) {
  Module m;
  Function *f = m.addFunction("f");
  Op *op = f->body.insert(OpKind::attention_cached);
  op->attrs = attrs({{"n_head", int64_t(1)}});
  for (const Type &t : {qkv, k, v, Type::scalar(DType::i64)})
    op->addOperand(f->body.addArg(t));
  for (const Type &t : scales)
    op->addOperand(f->body.addArg(t));
  std::vector<Type> types;
  std::string error = checkSignature(*op);
  if (error.empty() && op->def().infer(*op, types, error)) {
    EXPECT_EQ(types.size(), k.dtype == DType::u32 ? 5u : 3u);
  }
  op->dropOperands();
  return error;
}

TEST(QuantizedCache, OpsThatDoNotFitAreExplained) {
  const Type qkv(DType::f32, {1, 2, 96}), numbers(DType::u32, {1, 4, 8}), scales(DType::f16, {1, 4, 1}),
      wide(DType::f32, {1, 4, 32}), scalar = Type::scalar(DType::i64);
  EXPECT_EQ(problemOf(qkv, numbers, numbers, {scales, scales}), "");
  EXPECT_EQ(problemOf(qkv, wide, wide, {}), "");
  auto says = [](const std::string &error, const char *what) {
    EXPECT_NE(error.find(what), std::string::npos) << error << " does not say " << what;
  };
  says(problemOf(qkv, numbers, numbers, {}), "needs the operands k_scales and v_scales");
  says(problemOf(qkv, numbers, numbers, {scales}), "needs the operands k_scales and v_scales");
  says(problemOf(qkv, numbers, numbers, {scales, scales.withDType(DType::f32)}), "a scale for each block");
  says(problemOf(qkv, numbers, Type(DType::u32, {1, 5, 8}), {scales, scales}), "caches of keys and values");
  says(problemOf(qkv, wide, wide, {scales, scales}), "scales are of a cache of u32");
  says(problemOf(qkv, wide, wide, {scalar, scalar, scalar}), "scales are of a cache of u32");
  says(problemOf(Type(DType::f32, {1, 2, 144}), Type(DType::u32, {1, 4, 12}), Type(DType::u32, {1, 4, 12}),
                 {scales, scales}),
       "heads of 48 elements have no cache of 8 bits");
  says(problemOf(qkv, Type(DType::u32, {1, 4, 32}), Type(DType::u32, {1, 4, 32}), {scales, scales}),
       "have no cache of 8 bits");
}

}  // namespace
}  // namespace gptc

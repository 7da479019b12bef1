// Attention to a cache of 8 bits: rows are rounded as ir/quantized_cache.h says, and what reads them has the bits of
// attention to an f32 cache of the same elements, which conformance compares with the reference.
#include "ir/element.h"
#include "ir/quantized_cache.h"
#include "tests/support/recipe_harness.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc::test {
namespace {

struct Shape {
  int64_t tokens, heads, keyHeads, size, rows, pos;
  int64_t slots = 0;  // 0: one sequence
  bool alibi = false;
  int64_t window = 0;
  double softcap = 0;
};
// Rows that no vector divides, heads whose quarters have 8, 16, 24 and 32 words, grouped queries.
constexpr Shape shapes[] = {
    {1, 2, 2, 32, 37, 30},           {3, 4, 2, 64, 70, 64},   {1, 6, 2, 96, 50, 49},
    {2, 3, 1, 128, 40, 20, 0, true}, {5, 4, 2, 64, 33, 3, 3}, {2, 2, 1, 32, 80, 70, 0, false, 19, 2.5},
};

Type cacheOf(const Shape &s) {
  Type t(DType::f32, {s.keyHeads, s.rows, s.size});
  if (s.slots)
    t.dims.insert(t.dims.begin(), Dim(s.slots));
  return t;
}

Group attentionOf(const Shape &s, bool eightBits) {
  const Type cache = cacheOf(s);
  const QuantizedCacheType kept = *quantizedCacheType(cache);
  std::vector<Type> types = {Type(DType::f32, {1, s.tokens, (s.heads + 2 * s.keyHeads) * s.size}),
                             eightBits ? kept.numbers : cache, eightBits ? kept.numbers : cache,
                             s.slots ? Type(DType::i64, {s.tokens, 2}) : Type::scalar(DType::i64)};
  if (eightBits)
    types.insert(types.end(), 2, kept.scales);
  AttrMap at = attrs({{"n_head", s.heads}, {"n_kv_head", s.keyHeads}, {"alibi", s.alibi}, {"window", s.window}});
  at.set("softcap", s.softcap);
  return groupOf(OpKind::attention_cached, types, at, {});
}

/// The row of token i, counted over all slots and for the first head; -1 if it is none.
int64_t rowOf(const Shape &s, int64_t i, int64_t keyHead) {
  if (!s.slots)
    return keyHead * s.rows + s.pos + i;
  return i == 1 ? -1 : (i % s.slots * s.keyHeads + keyHead) * s.rows + s.pos + i;
}

std::vector<Tensor> operandsOf(const Shape &s, const Group &g, unsigned seed) {
  std::vector<Tensor> all = randomOperands(g, seed, int64_t(1) << 32);
  for (unsigned i : {4, 5})
    for (double &v : all[i].data)
      v = roundTo(DType::f16, std::fabs(v) * 0.02);
  if (!s.slots)
    all[3].data[0] = double(s.pos);
  for (int64_t i = 0; s.slots && i < s.tokens; ++i) {
    all[3].data[size_t(2 * i)] = double(i % s.slots);
    all[3].data[size_t(2 * i + 1)] = i == 1 ? -1 : double(s.pos + i);
  }
  return all;
}

/// The elements of keys (side 0) or values (1) in the results of attention.
Tensor elementsOf(const Shape &s, const std::vector<Tensor> &results, size_t side) {
  Tensor all(cacheOf(s));
  for (size_t at = 0; at < all.data.size(); ++at) {
    const auto size = size_t(s.size), row = at / size;
    const CachePlace p = cachePlace(int64_t(at % size), s.size);
    const auto word = uint32_t(results[1 + side].data[row * (size / 4) + size_t(p.word)]);
    all.data[at] = cacheNumber(word, p.shift) * results[3 + side].data[row * (size / 32) + size_t(p.scale)];
  }
  return all;
}

TEST(QuantizedCache, BitsAreThoseOfAWideCacheOfItsElements) {
  for (const Shape &s : shapes) {
    const Group bytes = attentionOf(s, true), wide = attentionOf(s, false);
    const std::vector<Tensor> operands = operandsOf(s, bytes, unsigned(s.size)), got = run(bytes, operands);
    std::vector<Tensor> others = {operands[0], elementsOf(s, got, 0), elementsOf(s, got, 1), operands[3]};
    for (int64_t i = 0; i < s.tokens; ++i)
      for (int64_t side = 0; side < 2; ++side)
        for (int64_t h = 0; h < s.keyHeads; ++h)
          if (const int64_t row = rowOf(s, i, h); row >= 0)
            std::copy_n(
                &others[size_t(1 + side)].data[size_t(row * s.size)], s.size,
                &others[0].data[size_t(((s.heads + 2 * s.keyHeads) * i + s.heads + side * s.keyHeads + h) * s.size)]);
    expectSame({got[0]}, {run(wide, others)[0]}, fmt::format("{} elements, {} slots", s.size, s.slots));
    for (double v : got[0].data)
      ASSERT_TRUE(std::isfinite(v));
    Schedule narrow = defaultSchedule(*bytes.fused, hostTarget());
    for (int vec : {4, 8, 16}) {
      narrow.vec = vec;
      expectSame(run(bytes, operands, {.schedule = narrow}), got, narrow.str());
    }
    if (HasFailure())
      return;
  }
}

TEST(QuantizedCache, RowsThatStayAreNotTouched) {
  for (const Shape &s : {shapes[1], shapes[4]}) {
    Group g = attentionOf(s, true);
    const std::vector<Tensor> operands = operandsOf(s, g, 7), copied = run(g, operands);
    g.fused->attrs.set("in_place", std::vector<int64_t>{-1, 1, 2, 4, 5});
    expectSame(run(g, operands, {.inPlace = {{1, 1}, {2, 2}, {3, 4}, {4, 5}}}), copied, "in place");
    // Those of new tokens are other ones, all others are those before.
    std::vector<bool> isNew(copied[3].data.size() / size_t(s.size / 32), false);
    for (int64_t i = 0; i < s.tokens; ++i)
      for (int64_t h = 0; h < s.keyHeads; ++h)
        if (const int64_t row = rowOf(s, i, h); row >= 0)
          isNew[size_t(row)] = true;
    const size_t words = size_t(s.size / 4);
    for (size_t row = 0; row < isNew.size(); ++row)
      EXPECT_EQ(std::equal(&copied[2].data[row * words], &copied[2].data[row * words] + words,
                           &operands[2].data[row * words]),
                !isNew[row])
          << row;
  }
}

TEST(QuantizedCache, BlocksAreRoundedAsTheReferenceRounds) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<double>> blocks = {{},
                                                   {-0.0, 0.0},
                                                   {254, 1, -1, 3, 5, -5, 0.99999994, -0.99999994, 4.9999995, -253},
                                                   {1e-30, -1e-45},
                                                   {1.4 * 127 * 0x1p-24, -0x1p-24},
                                                   {65504.0 * 127, -65504},
                                                   {1, -infinity, -3},
                                                   {NAN, 1, -2, infinity},
                                                   {float(3e38), -1},
                                                   {-1, 0.5, 0.25, 1e-3},
                                                   {1e4, 1e-4, -33.3f},
                                                   {-127.5, 63.75, 0.5}};
  const Shape s{1, 1, 1, int64_t(blocks.size()) * 32, 3, 1};
  const Group g = attentionOf(s, true);
  std::vector<Tensor> operands = operandsOf(s, g, 1);
  for (size_t side = 0; side < 2; ++side)
    for (size_t b = 0; b < blocks.size(); ++b)
      for (size_t i = 0; i < 32; ++i)  // of values, the blocks in another order
        operands[0].data[size_t(s.size) * (1 + side) + (side ? blocks.size() - 1 - b : b) * 32 + i] =
            i < blocks[b].size() ? double(float(blocks[b][i])) : 0;
  for (DType compute : {DType::f32, DType::f64})
    for (bool compiled : {true, false})
      for (int vec : {4, 8, 16}) {
        Schedule schedule = defaultSchedule(*g.fused, hostTarget());
        schedule.vec = vec;
        const std::vector<Tensor> got =
            run(g, operands, {.compute = compute, .schedule = schedule, .compiled = compiled});
        for (size_t side = 0; side < 2; ++side)
          for (int64_t first = 0; first < s.size; first += 32) {
            float x[32];
            for (int64_t i = 0; i < 32; ++i)
              x[i] = float(operands[0].data[size_t(s.size * int64_t(1 + side) + first + i)]);
            const CacheBlock want = roundCacheBlock(x);
            const double scale = got[3 + side].data[size_t((s.size + first) / 32)];
            EXPECT_TRUE(scale == want.scale || (std::isnan(scale) && std::isnan(want.scale)))
                << scale << " and " << want.scale << ", block " << first / 32 << ", vectors of " << vec;
            for (int64_t i = 0; i < 32; ++i) {
              const CachePlace p = cachePlace(first + i, s.size);
              EXPECT_EQ(cacheNumber(uint32_t(got[1 + side].data[size_t(s.size / 4 + p.word)]), p.shift), want.q[i])
                  << x[i] << " of " << want.scale << ", block " << first / 32 << ", vectors of " << vec;
            }
          }
        if (HasFailure())
          return;
      }
}

// With scores off by at most d, probabilities are off by a factor within e^(-2d) and e^(2d).
TEST(QuantizedCache, IsAsNearToAWideCacheAsItsBlocks) {
  const Shape s{40, 4, 2, 64, 40, 0};
  const Group bytes = attentionOf(s, true), wide = attentionOf(s, false);
  const std::vector<Tensor> operands = operandsOf(s, bytes, 3), got = run(bytes, operands);
  const Tensor none(cacheOf(s));
  const std::vector<Tensor> want = run(wide, {operands[0], none, none, operands[3]});
  // The most that an element of a row is off, in a block.
  auto error = [&](size_t side, int64_t row, int64_t block) {
    return std::max(got[3 + side].data[size_t(row * 2 + block)] / 2, 127 * 0x1p-25);
  };
  double largest = 0;
  for (int64_t i = 0; i < s.tokens; ++i)
    for (int64_t h = 0; h < s.heads; ++h) {
      const double *query = &operands[0].data[size_t((i * (s.heads + 2 * s.keyHeads) + h) * s.size)];
      double sums[2] = {}, scores = 0;
      for (int64_t d = 0; d < s.size; ++d)
        sums[d / 32] += std::fabs(query[d]);
      const int64_t first = h / 2 * s.rows;
      for (int64_t j = 0; j <= i; ++j)
        scores = std::max(scores, (sums[0] * error(0, first + j, 0) + sums[1] * error(0, first + j, 1)) / 8);
      for (int64_t d = 0; d < s.size; ++d) {
        double most = 0, value = 0;
        for (int64_t j = 0; j <= i; ++j) {
          most = std::max(most, std::fabs(want[2].data[size_t((first + j) * s.size + d)]));
          value = std::max(value, error(1, first + j, d / 32));
        }
        const size_t at = size_t((i * s.heads + h) * s.size + d);
        const double is = std::fabs(got[0].data[at] - want[0].data[at]);
        ASSERT_LE(is, std::expm1(2 * scores) * most + value + 1e-5 * most) << i << " " << h << " " << d;
        largest = std::max(largest, is);
      }
    }
  EXPECT_GT(largest, 1e-4);
}

TEST(QuantizedCache, GpusHaveNone) {
  const Group g = attentionOf(shapes[0], true);
  try {
    defaultSchedule(*g.fused, cudaTarget("cuda:sm_90a"));
    ADD_FAILURE() << "a schedule";
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::NotBuiltYet);
    EXPECT_NE(std::string(e.diagnostics[0].help[0]).find("precision.cache"), std::string::npos);
  }
}

}  // namespace
}  // namespace gptc::test

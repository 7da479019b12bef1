// Attention to a cache at sizes that no vector divides, at the ends of the cache, and in slots of every length: against
// the reference in float64, and against the token's own value where it sees no other key.
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace gptc::test {
namespace {

struct Cached {
  int64_t heads, keyHeads, size, capacity;
  /// The slot and the position of each token; position -1: it is none. Without slots the first position counts.
  std::vector<std::pair<int64_t, int64_t>> places;
  int64_t slots = 0;  // 0: one sequence
  int64_t window = 0;
  bool alibi = false;
  DType stored = DType::f32;

  int64_t tokens() const { return int64_t(places.size()); }
  std::string str() const {
    return fmt::format("T{} H{}/{} D{} S{} slots {} window {} alibi {} {} from {}", tokens(), heads, keyHeads, size,
                       capacity, slots, window, alibi, nameOf(stored).str(), places[0].second);
  }
};

Group groupOf(const Cached &c) {
  Type cache(c.stored, {c.keyHeads, c.capacity, c.size});
  if (c.slots)
    cache.dims.insert(cache.dims.begin(), Dim(c.slots));
  return test::groupOf(
      OpKind::attention_cached,
      {Type(c.stored, {1, c.tokens(), (c.heads + 2 * c.keyHeads) * c.size}), cache, cache,
       c.slots ? Type(DType::i64, {c.tokens(), 2}) : Type::scalar(DType::i64)},
      attrs({{"n_head", c.heads}, {"n_kv_head", c.keyHeads}, {"alibi", c.alibi}, {"window", c.window}}), {});
}

std::vector<Tensor> operandsOf(const Cached &c, const Group &g) {
  std::vector<Tensor> all = randomOperands(g, unsigned(c.size + c.capacity));
  if (!c.slots)
    all[3].data[0] = double(c.places[0].second);
  for (size_t i = 0; c.slots && i < c.places.size(); ++i) {
    all[3].data[2 * i] = double(c.places[i].first);
    all[3].data[2 * i + 1] = double(c.places[i].second);
  }
  return all;
}

/// What a token yields that sees no key but its own: its value, but for three roundings, of its product with a
/// probability and of that with the probability's inverse, which none of a narrow type shows. A token that is none
/// yields 0.
void expectOwnValues(const Cached &c, const std::vector<Tensor> &operands, const Tensor &got) {
  const int64_t all = c.heads + 2 * c.keyHeads;
  for (int64_t i = 0; i < c.tokens(); ++i) {
    const int64_t position = c.slots ? c.places[size_t(i)].second : c.places[0].second + i;
    if (position > 0 && c.window != 1)
      continue;
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t x = 0; x < c.size; ++x) {
        const int64_t head = c.heads + c.keyHeads + h / (c.heads / c.keyHeads);
        const double value = position < 0 ? 0 : operands[0].data[size_t((i * all + head) * c.size + x)];
        EXPECT_NEAR(got.data[size_t((i * c.heads + h) * c.size + x)], value,
                    c.stored == DType::f32 ? 0x1p-22 * std::fabs(value) : 0)
            << c.str() << ": token " << i << " head " << h << " element " << x;
      }
  }
}

/// Everything within its bound of the reference. Of bf16, with dot products of pairs and without.
void compare(const Cached &c) {
  const Group g = groupOf(c);
  const std::vector<Tensor> operands = operandsOf(c, g);
  if (c.stored == DType::f32)
    check(g, operands);
  for (const bool pairs : {false, true}) {
    if (pairs && c.stored != DType::bf16)
      continue;
    Options o{.target = hostTarget()};
    o.target->bf16Dot = pairs;
    if (c.stored != DType::f32)
      expectWithinBound(g, operands, o, fmt::format("{} pairs {}", c.str(), pairs));
    expectOwnValues(c, operands, run(g, operands, o)[0]);
  }
}

TEST(CachedAttention, OneKey) {
  for (const DType stored : {DType::f32, DType::bf16})
    for (const int64_t size : {1, 3, 8, 15, 17, 33}) {
      compare({.heads = 2, .keyHeads = 1, .size = size, .capacity = 1, .places = {{0, 0}}, .stored = stored});
      if (::testing::Test::HasFailure())
        return;
    }
}

TEST(CachedAttention, HeadsThatNoVectorDivides) {
  OneIn some(4);
  for (const DType stored : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : {1, 2, 7, 12, 15, 17, 31, 33, 49})
      for (const int64_t position : {0, 15, 38}) {
        if (some.skips())
          continue;
        compare({.heads = 4,
                 .keyHeads = 2,
                 .size = size,
                 .capacity = 41,
                 .places = {{0, position}, {}, {}},
                 .alibi = size % 2 == 0,
                 .stored = stored});
        if (::testing::Test::HasFailure())
          return;
      }
}

TEST(CachedAttention, WindowsOfOneKeyAndMore) {
  OneIn some(2);
  for (const DType stored : {DType::f32, DType::bf16})
    for (const int64_t window : {1, 2, 16, 17})
      for (const int64_t position : {0, 14, 35}) {
        if (window > 1 && some.skips())
          continue;
        compare({.heads = 2,
                 .keyHeads = 2,
                 .size = 13,
                 .capacity = 37,
                 .places = {{0, position}, {}},
                 .window = window,
                 .stored = stored});
        if (::testing::Test::HasFailure())
          return;
      }
}

// An empty slot and a full one, some that are begun, one without a token, and a position behind the last.
TEST(CachedAttention, SlotsOfEveryLength) {
  const std::vector<std::pair<int64_t, int64_t>> places = {{0, 0},  {1, 39}, {2, -1}, {3, 15}, {3, 16},
                                                           {3, 17}, {0, 1},  {4, 22}, {5, 47}};
  for (const DType stored : {DType::f32, DType::bf16})
    for (const int64_t size : {5, 16, 33})
      for (const int64_t window : {0, 1, 17}) {
        const Cached c{.heads = 4,
                       .keyHeads = 2,
                       .size = size,
                       .capacity = 40,
                       .places = places,
                       .slots = 6,
                       .window = window,
                       .alibi = size == 5,
                       .stored = stored};
        compare(c);
        // The slot without a token stays as it is.
        const Group g = groupOf(c);
        const std::vector<Tensor> operands = operandsOf(c, g), got = run(g, operands);
        const size_t slot = size_t(c.keyHeads * c.capacity * size);
        for (size_t x = 2 * slot; x < 3 * slot; ++x)
          for (size_t side : {1, 2})
            ASSERT_EQ(got[side].data[x], operands[side].data[x]) << c.str();
        if (::testing::Test::HasFailure())
          return;
      }
}

}  // namespace
}  // namespace gptc::test

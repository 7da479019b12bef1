// The choice recipe with a real vocabulary, and what it has that no other recipe does: sums of integers, bisection.
#include "ir/choose_token.h"
#include "ir/random.h"
#include "support/diagnostics.h"
#include "tests/support/recipe_harness.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gptc::test {
namespace {

constexpr int64_t columns = choose_token::columns;
constexpr double inf = std::numeric_limits<double>::infinity();

Tensor logitsOf(int64_t rows, int64_t vocab, unsigned seed) {
  Tensor t(Type(DType::f32, {rows, Dim(vocab, vocab + 47)}));
  const RandomKey key = randomKey(seed, 0, 1, 0);
  for (size_t i = 0; i < t.data.size(); ++i)
    t.data[i] = float(3 * randomNormal(key, i));
  return t;
}

Tensor howOf(int64_t rows, std::vector<double> how) {
  Tensor t(Type(DType::f32, {rows, columns}));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < columns; ++c)
      t.data[row * columns + c] = float(how[c]);
  return t;
}

std::vector<double> choose(const Tensor &logits, const Tensor &how, const Options &o = {}) {
  const Group g = groupOf(OpKind::choose_token, {logits.type, how.type}, {}, {});
  return run(g, {logits, how}, o)[0].data;
}
std::vector<double> meant(const Tensor &logits, const Tensor &how) {
  const Group g = groupOf(OpKind::choose_token, {logits.type, how.type}, {}, {});
  const Tensor *operands[] = {&logits, &how};
  return opDef(OpKind::choose_token).reference(*g.fused->body->front(), operands)[0].data;
}

// A weight of f32 is off by less than 2^-20 of itself, and by 1 where it is cut, which makes 50257 / 2^30 of all: a
// position, a part of two such sums, may be off by less than 2^-13.
TEST(Choice, IsThatOfFloat64UpToTheRoundingOfWeights) {
  constexpr int64_t rows = 16, vocab = 50257;
  const Tensor logits = logitsOf(rows, vocab, 1);
  for (const auto &[topK, topP] : {std::pair(0., 1.), {40., 1.}, {3000., 0.9}, {0., 0.5}}) {
    Tensor how = howOf(rows, {0.8, topK, topP, 0, 0}), below = how, above = how;
    const double slack = 0x1p-13;
    for (int64_t row = 0; row < rows; ++row) {
      const double u = (double(row) + 0.5) / rows;
      how.data[row * columns + choose_token::position] = u;
      below.data[row * columns + choose_token::position] = float(u - slack);
      above.data[row * columns + choose_token::position] = float(u + slack);
    }
    const std::vector<double> got = choose(logits, how), least = meant(logits, below), most = meant(logits, above);
    auto place = [](double id) { return std::pair(int64_t(id) % choose_token::slots, int64_t(id)); };
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_LE(place(least[row]), place(got[row])) << topK << ", " << topP << ", row " << row;
      EXPECT_LE(place(got[row]), place(most[row])) << topK << ", " << topP << ", row " << row;
    }
  }
}

TEST(Choice, DoesNotDependOnLanes) {
  const Tensor logits = logitsOf(8, 4999, 2);
  Tensor how = howOf(8, {1, 700, 0.8, 4900, 0});
  for (int64_t row = 0; row < 8; ++row)
    how.data[row * columns + choose_token::position] = float(row) / 8;
  const std::vector<double> expected = choose(logits, how);
  for (const char *schedule : {"choice vec=1", "choice vec=4", "choice vec=32"}) {
    Options o;
    o.schedule.emplace();
    ASSERT_TRUE(Schedule::parse(schedule, *o.schedule));
    EXPECT_EQ(choose(logits, how, o), expected) << schedule;
  }
}

// Ranks, not weights, decide who is kept: among ids whose weights are 0 too, and among equal ones the smaller id.
TEST(Choice, CutsBetweenEqualLogits) {
  Tensor logits(Type(DType::f32, {1, 5000}));
  for (size_t i = 0; i < logits.data.size(); ++i)
    logits.data[i] = double(i % 3);
  // 1666 ids have a logit of 2, from 2 on. The last of the first n of them in the order of slots:
  auto lastOf = [](int n) {
    int last = 2;
    for (int id = 2; id < 2 + 3 * n; id += 3)
      last = id % choose_token::slots >= last % choose_token::slots ? id : last;
    return last;
  };
  auto last = [&](double topK, double topP) { return choose(logits, howOf(1, {1, topK, topP, 0, 1 - 0x1p-24}))[0]; };
  for (int n : {1, 2, 341, 342, 600, 1666})
    EXPECT_EQ(last(n, 1), lastOf(n)) << n;
  EXPECT_EQ(last(1666, 0.25), lastOf(417));  // 416.5 of them are a quarter
  EXPECT_EQ(last(0, 1e-9), 2);
  // Slot 0 has 2048 with a logit of 2, slot 1 first the best id of the next rank, then 1025 with a logit of 2.
  auto second = [&](double topK) { return choose(logits, howOf(1, {1, topK, 1, 0, 1.2 / 1666}))[0]; };
  EXPECT_EQ(second(1666), 1025);
  EXPECT_EQ(second(1667), 1);
}

TEST(Choice, TakesAnyNumbers) {
  const double nan = std::nan("");
  struct Case {
    std::vector<double> logits, how;
    double id;
  };
  const std::vector<Case> cases = {
      {{nan, nan, nan}, {0, 0, 1, 0, 0}, 0},
      {{nan, nan, nan}, {1, 2, 0.5, 0, 0.7}, 0},
      {{nan, 1, 2}, {0, 0, 1, 0, 0}, 2},
      {{nan, -inf, -inf}, {0, 0, 1, 0, 0}, 1},
      {{-inf, -inf, nan}, {1, 0, 1, 0, 0.9}, 1},
      {{0, inf, 1e30, inf}, {1, 0, 1, 0, 0.9}, 3},
      {{0, inf, 1e30, inf}, {1, 1, 1, 0, 0.9}, 1},
      {{-0.0, 0, -0.0}, {0, 0, 1, 0, 0}, 0},
      {{-0.0, 0, -0.0}, {1, 1, 1, 0, 0.9}, 0},
      {{1, 2, 3}, {nan, 0, 1, 0, 0.9}, 2},
      {{1, 2, 3}, {-1, 0, 1, 0, 0.9}, 2},
      {{1, 2, 3}, {1e-30, 0, 1, 0, 0.9}, 2},
      {{1, 2, 3}, {inf, 0, 1, 0, 0.5}, 1},
      {{1, 2, 3}, {1, nan, nan, nan, 0}, 0},
      {{1, 2, 3}, {1, -5, -5, -5, 0.9}, 2},
      {{1, 2, 3}, {1, 1e30, 1e30, 1e30, 0}, 0},
      {{1, 2, 3}, {0, 0, 1, 2, 0}, 1},
      {{1, 2, 3}, {1, 0, 1, 1, 0.9}, 0},
      {{1, 2, 3}, {1, 0, 1, 0, 5}, 0},
      {{1, 2, 3}, {1, 0, 1, 0, -5}, 0},
  };
  for (const Case &c : cases) {
    const Tensor logits(Type(DType::f32, {1, int64_t(c.logits.size())}), c.logits), how = howOf(1, c.how);
    const std::string what = fmt::format("{} by {}", fmt::join(c.logits, " "), fmt::join(c.how, " "));
    EXPECT_EQ(choose(logits, how)[0], c.id) << what;
    EXPECT_EQ(meant(logits, how)[0], c.id) << what;
    EXPECT_EQ(choose(logits, how, {.target = cudaTarget("cuda:sm_90a"), .compiled = false})[0], c.id) << what;
  }
}

TEST(Choice, StandsAlone) {
  const char *args = "%l: f32[2,9]; %h: f32[2,5]";
  EXPECT_EQ(groupProblem(*group("choice", args, "%i = choose_token %l, %h : i32[2]\nyield %i").fused), "");
  EXPECT_NE(groupProblem(*group("choice", args,
                                "%m = neg %l : f32[2,9]\n%i = choose_token %m, %h : i32[2]\n"
                                "yield %i")
                              .fused),
            "");
}

}  // namespace
}  // namespace gptc::test

#include "runtime/serve/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace gptc;

namespace {

constexpr float never = -std::numeric_limits<float>::infinity();

std::vector<int32_t> ids(const TokenScores &s) {
  std::vector<int32_t> out;
  for (const auto &[id, score] : s.top)
    out.push_back(id);
  return out;
}

TEST(TokenScores, AreLogarithmsOfTheSoftmax) {
  const std::vector<float> p = {0.1f, 0.4f, 0.2f, 0.3f};
  std::vector<float> logits;
  for (float x : p)
    logits.push_back(std::log(x) + 90);  // whose exponential is no float
  const TokenScores s = scoresOf(logits, 2, 4);
  EXPECT_EQ(s.id, 2);
  EXPECT_NEAR(s.logProbability, std::log(0.2), 1e-5);
  EXPECT_EQ(ids(s), (std::vector<int32_t>{1, 3, 2, 0}));
  for (const auto &[id, score] : s.top)
    EXPECT_NEAR(score, std::log(p[size_t(id)]), 1e-5);
}

TEST(TokenScores, TheTokenIsAlwaysAmongTheTopWithTheSameNumber) {
  const std::vector<float> logits = {1, 5, 3, 4, 2};
  EXPECT_EQ(ids(scoresOf(logits, 3, 2)), (std::vector<int32_t>{1, 3}));
  const TokenScores s = scoresOf(logits, 0, 2);
  EXPECT_EQ(ids(s), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(s.top.back().second, s.logProbability);
  EXPECT_TRUE(scoresOf(logits, 0, 0).top.empty());
  EXPECT_EQ(scoresOf(logits, 0, 9).top.size(), 5u);
}

TEST(TokenScores, EqualOnesGoByNumberAndWhatIsNoNumberIsNever) {
  EXPECT_EQ(ids(scoresOf({{2.0f, 3.0f, 3.0f, 3.0f}}, 1, 2)), (std::vector<int32_t>{1, 2}));
  const TokenScores s = scoresOf({{std::nanf(""), 0.0f, never, 0.0f}}, 0, 2);
  EXPECT_EQ(s.logProbability, never);
  EXPECT_EQ(ids(s), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_FLOAT_EQ(s.top[0].second, std::log(0.5f));
}

}  // namespace

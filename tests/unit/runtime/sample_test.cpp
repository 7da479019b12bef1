#include "runtime/train/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

using namespace gptc;

namespace {

int32_t chosen(const std::vector<float> &logits, const SampleOptions &o, double u) {
  return chooseToken(logits, howToChoose(o, u));
}

std::map<int, double> frequencies(const std::vector<float> &logits, SampleOptions o) {
  std::map<int, double> f;
  const int n = 10000;
  for (int i = 0; i < n; ++i)
    f[chosen(logits, o, (i + 0.5) / n)] += 1.0 / n;
  return f;
}

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

TEST(ChooseToken, FollowsTheDistribution) {
  auto f = frequencies(kLogits, {.temperature = 1});
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(f[i], std::exp(kLogits[i]), 1e-3);
}

TEST(ChooseToken, TemperatureSharpensAndZeroIsGreedy) {
  auto f = frequencies(kLogits, {.temperature = 0.5});
  EXPECT_NEAR(f[1], 0.16 / 0.30, 1e-3);
  f = frequencies(kLogits, {.temperature = 0});
  EXPECT_EQ(f.size(), 1u);
  EXPECT_NEAR(f[1], 1, 1e-9);
}

TEST(ChooseToken, TopKAndTopP) {
  auto f = frequencies(kLogits, {.temperature = 1, .topK = 2});
  EXPECT_EQ(f.size(), 2u);
  EXPECT_NEAR(f[1], 4.0 / 7, 1e-3);
  f = frequencies(kLogits, {.temperature = 1, .topP = 0.65});
  EXPECT_EQ(f.size(), 2u);
  EXPECT_NEAR(f[1], 4.0 / 7, 1e-3);  // the weights of those kept are what is shared out
  f = frequencies(kLogits, {.temperature = 1, .topP = 0.75});
  EXPECT_EQ(f.size(), 3u);
  f = frequencies(kLogits, {.temperature = 1, .topK = 3, .topP = 1e-6});
  EXPECT_EQ(f.size(), 1u);
}

TEST(ChooseToken, NeverOneThatTheTokenizerLacks) {
  auto f = frequencies(kLogits, {.temperature = 1, .tokens = 3});
  EXPECT_EQ(f.size(), 3u);
  EXPECT_NEAR(f[1], 4.0 / 7, 1e-3);
  f = frequencies({0, 1, 2, 3}, {.temperature = 0, .tokens = 2});
  EXPECT_EQ(f.size(), 1u);
  EXPECT_EQ(f.begin()->first, 1);
  f = frequencies(kLogits, {.temperature = 1, .topK = 2, .tokens = 3});
  EXPECT_NEAR(f[1], 4.0 / 6, 1e-3);
  EXPECT_EQ(frequencies(kLogits, {.temperature = 1, .tokens = 5}).size(), 4u);
}

TEST(ChooseToken, ManyTokensAreCutWhereAFullSortWouldCut) {
  std::vector<float> logits;
  for (int i = 0; i < 5000; ++i)
    logits.push_back(float(i * 2654435761u >> 16 & 1023) / 256);  // many are equal
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  double total = 0, sum = 0;
  for (float l : logits)
    total += std::exp(l);
  size_t kept = 0;
  while (sum < 0.7 * total)
    sum += std::exp(logits[order[kept++]]);
  // Weights are added up by slot.
  auto bySlot = [](int a, int b) {
    return std::pair(a % choose_token::slots, a) < std::pair(b % choose_token::slots, b);
  };
  auto ends = [&](size_t n) { return std::minmax_element(order.begin(), order.begin() + long(n), bySlot); };
  EXPECT_EQ(chosen(logits, {.temperature = 1, .topP = 0.7}, 0), *ends(kept).first);
  EXPECT_EQ(chosen(logits, {.temperature = 1, .topP = 0.7}, 1 - 1e-12), *ends(kept).second);
  EXPECT_EQ(chosen(logits, {.temperature = 1, .topK = 300}, 0), *ends(300).first);
  EXPECT_EQ(chosen(logits, {.temperature = 1, .topK = 300}, 1 - 1e-12), *ends(300).second);
  EXPECT_EQ(chosen(logits, {.temperature = 1, .topK = 300, .topP = 1e-9}, 0.5), order[0]);
  EXPECT_EQ(chosen(logits, {.temperature = 1}, 0), 0);
  EXPECT_EQ(chosen(logits, {.temperature = 1}, 1 - 1e-12), 4095);
}

TEST(ChooseToken, EqualLogitsGoByNumber) {
  std::vector<float> same(5, 1.0f);
  EXPECT_EQ(chosen(same, {.temperature = 0}, 0.9), 0);
  EXPECT_EQ(chosen(same, {.temperature = 1, .topK = 2}, 0.9), 1);
}

}  // namespace

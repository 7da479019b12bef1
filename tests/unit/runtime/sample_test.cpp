#include "runtime/serve/sample.h"

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

/// Frequencies by chooseOnHost.
std::map<int, double> onHost(const std::vector<float> &logits, SampleOptions o,
                             const std::vector<unsigned> &seen = {}) {
  llvm::BitVector occurred(unsigned(logits.size()));
  for (unsigned token : seen)
    occurred.set(token);
  EXPECT_TRUE(choosesOnHost(o));
  std::map<int, double> f;
  const int n = 10000;
  for (int i = 0; i < n; ++i)
    f[chooseOnHost(logits, howToChoose(o, (i + 0.5) / n), o, occurred)] += 1.0 / n;
  return f;
}

TEST(ChooseOnHost, MinPLeavesOutWhatIsLessLikelyThanAPartOfTheLikeliest) {
  auto f = onHost(kLogits, {.temperature = 1, .minP = 0.6});
  EXPECT_EQ(f.size(), 2u);  // 0.3 of 0.4 is more than 0.6, 0.2 is less
  EXPECT_NEAR(f[1], 4.0 / 7, 1e-3);
  EXPECT_EQ(onHost(kLogits, {.temperature = 1, .minP = 0.4}).size(), 3u);
  EXPECT_EQ(onHost(kLogits, {.temperature = 1, .minP = 1}).size(), 1u);
  EXPECT_EQ(onHost(kLogits, {.temperature = 2, .minP = 0.6}).size(), 3u)
      << "by the probabilities after the temperature";
  EXPECT_EQ(onHost(kLogits, {.temperature = 1, .tokens = 1, .minP = 0.9}).size(), 1u) << "the likeliest of the first";
  f = onHost(kLogits, {.temperature = 1, .topK = 2, .minP = 0.4});
  EXPECT_EQ(f.size(), 2u);
  EXPECT_FALSE(choosesOnHost({.temperature = 0, .minP = 0.5})) << "the likeliest is never left out";
  EXPECT_FALSE(choosesOnHost({}));
}

TEST(ChooseOnHost, APenaltyMakesWhatOccurredLessLikely) {
  auto f = onHost({2, 2, -1, -1}, {.temperature = 1, .repetitionPenalty = 2}, {0, 2});
  const double sum = std::exp(1) + std::exp(2) + std::exp(-2) + std::exp(-1);
  EXPECT_NEAR(f[0], std::exp(1) / sum, 1e-3);
  EXPECT_NEAR(f[1], std::exp(2) / sum, 1e-3);
  EXPECT_NEAR(f[2], std::exp(-2) / sum, 1e-3);
  f = onHost({3, 2}, {.temperature = 0, .repetitionPenalty = 2}, {0});
  EXPECT_EQ(f.begin()->first, 1);
}

}  // namespace

#include "runtime/train/label_measures.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace gptc;

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

/// "accuracy 0.5, ..." of texts with these logits and targets.
std::string measured(ProblemType problem, std::vector<std::vector<float>> logits,
                     std::vector<std::vector<int32_t>> targets, std::vector<float> numbers = {}) {
  LabelMeasures m(problem, int64_t(logits[0].size()));
  for (size_t i = 0; i < logits.size(); ++i) {
    SequenceRow row{};
    if (numbers.empty())
      row.y = targets[i].data();
    else
      row.number = &numbers[i];
    m.add(m.recordOf(logits[i].data(), row));
  }
  EXPECT_EQ(m.texts(), int64_t(logits.size()));
  std::string all;
  for (const Measure &one : m.result())
    all += fmt::format("{}{} {:.6g}", all.empty() ? "" : ", ", one.name, std::isnan(one.value) ? NAN : one.value);
  return all;
}

TEST(LabelMeasures, OneRightLabel) {
  EXPECT_EQ(
      measured(ProblemType::single_label_classification, {{1, 2}, {1, 2}, {3, 2}, {nan, 1}}, {{1}, {0}, {0}, {1}}),
      "accuracy 0.5");
  const auto right = [](const std::vector<float> &logits, int32_t target) {
    return measured(ProblemType::single_label_classification, {logits}, {{target}}) == "accuracy 1";
  };
  EXPECT_TRUE(right({-1, 2, 0}, 1));
  EXPECT_FALSE(right({-1, 2, 0}, 0));
  EXPECT_TRUE(right({2, 2}, 0)) << "of equal ones the first";
  EXPECT_FALSE(right({2, 2}, 1));
  EXPECT_FALSE(right({1, 2}, -1)) << "there is no text";
  EXPECT_FALSE(right({nan, nan}, 0));
  EXPECT_FALSE(right({nan, 1}, 0));
  EXPECT_FALSE(right({1, nan}, 0));
  EXPECT_FALSE(right({inf, 1}, 0));
  EXPECT_FALSE(right({1, -inf}, 0));
}

// By hand: 2 hits, 1 false alarm, 2 missed.
TEST(LabelMeasures, SeveralRightLabels) {
  const auto problem = ProblemType::multi_label_classification;
  EXPECT_EQ(measured(problem, {{1, -1, 2}, {-1, 3, -2}}, {{1, 1, 0}, {1, 1, 0}}), "micro_f1 0.571429, accuracy 0.5");
  EXPECT_EQ(measured(problem, {{1, -1}}, {{1, 0}}), "micro_f1 1, accuracy 1");
  EXPECT_EQ(measured(problem, {{-1, -1}}, {{0, 0}}), "micro_f1 0, accuracy 1") << "none is, nor is said to be";
  EXPECT_EQ(measured(problem, {{0, 0}}, {{1, 0}}), "micro_f1 0, accuracy 0.5") << "0 is not above 0";
  EXPECT_EQ(measured(problem, {{nan, inf}}, {{1, 0}}), "micro_f1 0, accuracy 0");
}

TEST(LabelMeasures, NumbersOfARegression) {
  const auto problem = ProblemType::regression;
  // Means 2.5 and 3: sums of squares 5 and 8, of products 6.
  EXPECT_EQ(measured(problem, {{1}, {2}, {3}, {4}}, {}, {1, 3, 3, 5}), "mse 0.5, pearson 0.948683");
  EXPECT_EQ(measured(problem, {{1}, {2}}, {}, {-1, -2}), "mse 10, pearson -1");
  EXPECT_EQ(measured(problem, {{1}, {1}}, {}, {1, 2}), "mse 0.5, pearson nan") << "all logits are equal";
  EXPECT_EQ(measured(problem, {{1}, {2}}, {}, {2, 2}), "mse 0.5, pearson nan") << "all targets are equal";
  // Far from 0 sums of squares would cancel.
  EXPECT_EQ(measured(problem, {{16777214}, {16777215}, {16777216}}, {}, {16777214, 16777215, 16777216}),
            "mse 0, pearson 1");
}

}  // namespace

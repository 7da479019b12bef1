#include "support/median.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

TEST(Median, OfAnEvenNumberIsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(medianOf(std::vector<double>()), 0);
  EXPECT_EQ(medianOf(std::vector<double>{3}), 3);
  EXPECT_EQ(medianOf(std::vector<double>{73.15, 59.21}), (73.15 + 59.21) / 2);
  EXPECT_EQ(medianOf(std::vector<double>{9, 1, 5}), 5);
  EXPECT_EQ(medianOf(std::vector<double>{4, 1, 9, 2}), 3);
  EXPECT_EQ(medianOf(std::vector<float>{2, 2, 8, 1}), 2);
}

}  // namespace
}  // namespace gptc

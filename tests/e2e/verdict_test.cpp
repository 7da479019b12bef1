// What is said of measurements: medians of few, and whether a tuned plan is better.
#include "tools/study/tune_verdict.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

TEST(Verdict, TwoStepsHaveAMedianBetweenThem) {
  const Spread s = spreadOf({73.15, 59.21});
  EXPECT_DOUBLE_EQ(s.median, (73.15 + 59.21) / 2);
  EXPECT_EQ(s.least, 59.21);
  EXPECT_EQ(s.most, 73.15);
  EXPECT_EQ(spreadOf({}).median, 0);
}

TEST(Verdict, SaysBetterOrWorse) {
  struct Case {
    std::vector<double> base, tuned;
    bool better, beyondNoise;
    const char *words;
  };
  const Case cases[] = {
      {{100, 100, 100}, {88, 88, 88}, true, true, "(0.880x, 0.880..0.880): faster by 12.0%"},
      {{100, 100, 100}, {80, 99, 130}, true, false, ": faster by 1.0%, which is within the noise of 25.0%"},
      {{100, 100, 100}, {80, 101, 130}, false, false, ": no faster within the noise of 25.0%, so the default"},
      {{100, 100, 100}, {100, 100, 100}, false, false, ": no faster within the noise of 0.0%, so the default"},
      {{59.21, 59.21, 59.21},
       {73.15, 73.2, 73.1},
       false,
       true,
       "59.21 ms a step by default, 73.15 ms as tuned (1.235x, 1.235..1.236): slower by 23.5%, so the default"},
      // Of many, what came into one or two of them is no noise.
      {{100, 100, 100, 100, 100, 100, 100, 100},
       {90, 91, 300, 90, 91, 90, 20, 91},
       true,
       true,
       "(0.905x, 0.200..3.000): faster by 9.5%"},
  };
  for (const Case &c : cases) {
    const StepVerdict v = verdictOf(c.base, c.tuned);
    EXPECT_EQ(v.better, c.better) << c.words;
    EXPECT_EQ(v.beyondNoise, c.beyondNoise) << c.words;
    EXPECT_NE(inWords(v).find(c.words), std::string::npos) << inWords(v);
  }
}

}  // namespace
}  // namespace gptc

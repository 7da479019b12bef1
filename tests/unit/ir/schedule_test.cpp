#include "ir/kernel/schedule.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

TEST(Schedule, RoundTrip) {
  Schedule s{.recipe = RecipeKind::matmul,
             .vec = 16,
             .unroll = 2,
             .task = 64,
             .threads = 128,
             .mr = 14,
             .nr = 32,
             .mc = 140,
             .nc = 4096,
             .kc = 256,
             .qb = 64,
             .kb = 128,
             .stream = true,
             .packB = true,
             .pairs = true,
             .library = true,
             .algorithm = 2147483647};
  EXPECT_EQ(
      s.str(),
      "matmul vec=16 unroll=2 task=64 threads=128 mr=14 nr=32 mc=140 nc=4096 kc=256 qb=64 kb=128 stream=1 packB=1 "
      "pairs=1 library=1 algorithm=2147483647");
  Schedule back;
  ASSERT_TRUE(Schedule::parse(s.str(), back));
  EXPECT_EQ(back, s);
}

TEST(Schedule, ZerosAreLeftOut) {
  Schedule s{.recipe = RecipeKind::row};
  EXPECT_EQ(s.str(), "row");
  Schedule back{.recipe = RecipeKind::fold, .vec = 3};
  ASSERT_TRUE(Schedule::parse("row", back));
  EXPECT_EQ(back, s);
}

TEST(Schedule, Rejects) {
  Schedule s{.recipe = RecipeKind::pack};
  for (const char *text : {"",
                           "  ",
                           "mr=4",
                           "Matmul",
                           "matmuls mr=4",
                           "reduce vec=8",
                           "matmul mr",
                           "matmul mr=",
                           "matmul mr=0",
                           "matmul mr=-4",
                           "matmul mr=4x",
                           "matmul mr=4 mr=5",
                           "matmul what=4",
                           "matmul mr=2147483648",
                           "matmul mc=9223372036854775808",
                           "matmul packB=2",
                           "matmul packB=true",
                           "../matmul",
                           "matmul algorithm=5",
                           "attention library=1 algorithm=5",
                           "matmul library=1 algorithm=2147483648",
                           "row vec=128",
                           "row threads=48",
                           "row threads=1056",
                           "row vec=48",
                           "fold unroll=1025",
                           "matmul nr=1073741824 vec=1",
                           "matmul mr=1025",
                           "matmul nc=4611686018427387904",
                           "pointwise task=70368744177665",
                           "matmul vec=1 mr=12 nr=12"})
    EXPECT_FALSE(Schedule::parse(text, s)) << text;
  EXPECT_EQ(s, Schedule{.recipe = RecipeKind::pack});
}

}  // namespace

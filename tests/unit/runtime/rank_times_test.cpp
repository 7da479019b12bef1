#include "runtime/train/rank_times.h"

#include "runtime/train/trainer.h"

#include <gtest/gtest.h>

namespace gptc {

TEST(RankTimes, WhoWaitsLeastIsTheSlowest) {
  // In collectives 2 s at least; ranks 0 and 2 waited 3 and 1 s for rank 1.
  EXPECT_EQ(describeWaiting({5.0, 2.0, 3.0}, 20),
            "rank 1 was the slowest: the others waited for it 2.0 s each, 10.0% of the time, rank 0 most (3.0 s); "
            "collectives took 10.0%");
}

TEST(RunTimes, FewStepsAreObserved) {
  RunTimes times;
  std::vector<int> observed;
  for (int i = 0; i < 5000; ++i)
    if (times.watches(i)) {
      observed.push_back(i);
      ++times.watched;
    }
  EXPECT_EQ(observed, (std::vector<int>{3, 131, 259, 387, 515, 643, 771, 899}));
}

// An observed outer step is slower than others: its time is not counted among theirs.
TEST(RunTimes, FewOuterStepsAreObserved) {
  RunTimes times;
  std::vector<int> observed;
  for (int i = 0; i < 1000; ++i) {
    const bool watched = times.watchesOuter();
    if (watched)
      observed.push_back(i);
    times.addOuter(watched, watched ? 100 : 0.5);
  }
  EXPECT_EQ(observed, (std::vector<int>{1, 17, 33, 49, 65, 81, 97, 113}));
  EXPECT_EQ(times.outerWatched, 8);
  EXPECT_EQ(times.outer, 992);
  EXPECT_EQ(times.outerSeconds, 496);
}

}  // namespace gptc

#include "runtime/train/rank_times.h"

#include <gtest/gtest.h>

namespace gptc {

TEST(RankTimes, WhoWaitsLeastIsTheSlowest) {
  // In collectives 2 s at least; ranks 0 and 2 waited 3 and 1 s for rank 1.
  EXPECT_EQ(describeWaiting({5.0, 2.0, 3.0}, 20),
            "rank 1 was the slowest: the others waited for it 2.0 s each, 10.0% of the time, rank 0 most (3.0 s); "
            "collectives took 10.0%");
}

}  // namespace gptc

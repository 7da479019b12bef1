// Signals that ask to stop: which are one request.
#include "runtime/launch/stops.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

using namespace gptc;

namespace {

TEST(Stops, ASecondSigtermIsTheSameRequest) {
  Stops stops;
  EXPECT_EQ(stops.count(), 0);
  EXPECT_TRUE(stops.note(SIGTERM));
  EXPECT_FALSE(stops.note(SIGTERM)) << "of the launcher, and of systemd";
  EXPECT_EQ(stops.count(), 1);
  stops.clear();
  EXPECT_TRUE(stops.note(SIGHUP));
  EXPECT_EQ(stops.count(), 1);
}

// A process may have many threads that take signals.
TEST(Stops, OfSignalsThatComeTogetherOneCounts) {
  constexpr int threads = 4, rounds = 2000;
  Stops stops;
  std::atomic<int> counted{0};
  std::barrier meet(threads, [&]() noexcept { stops.clear(); });
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        meet.arrive_and_wait();
        counted += stops.note(SIGTERM);
      }
    });
  for (std::thread &t : all)
    t.join();
  EXPECT_EQ(counted, rounds);
}

}  // namespace

// Which ranks are stuck, and which are slow, from their heartbeats alone.
#pragma once

#include "runtime/launch/crew.h"

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class RankWatch {
public:
  using Clock = std::chrono::steady_clock;
  struct Limits {
    /// A rank without a heartbeat for so long is stuck...
    std::chrono::milliseconds silence{4000};
    /// ... and so is one that gets nowhere for so long and for so many of its steps.
    int steps = 4;
    /// A process that has not given its first heartbeat by then will not: programs on a cold disk take a while. So it
    /// is where all ranks wait for each other, and how long a step takes is not known.
    std::chrono::milliseconds start{30000};
    /// Over what time ranks are compared to see which is slow; two steps at least.
    std::chrono::milliseconds window{10000};
  };
  struct Finding {
    int rank;
    std::string what;  // "has given no heartbeat for 5.0 s"
  };

  RankWatch(size_t ranks, const Limits &limits) : limits(limits), seen(ranks) {}

  /// Takes in what is known of all ranks now; to be called several times a second.
  void look(const std::vector<RankStatus> &ranks, Clock::time_point now);

  /// A rank that will not go on by itself: it gives no heartbeat, or it spins within a step, or while it saves or
  /// evaluates. One that waits for others in a collective is not, nor one that is busy with something else, or has not
  /// done a step yet: how long these take is not known. Nor is one that saves and waits for a disk, computing nothing.
  /// But where all wait and none gets anything, it is the one that the others wait for.
  std::optional<Finding> stuck() const;
  /// The rank with the oldest heartbeat, where that is older than `least`.
  std::optional<Finding> silent(std::chrono::milliseconds least) const;
  /// A rank for which the others wait most of their time. Each is told once, and again after it has kept up.
  std::optional<Finding> slow();

private:
  struct Seen {
    bool alive = false;
    PulseView pulse;
    Clock::time_point startAt, beatAt, progressAt, stepAt;
    int64_t cpuAtProgress = 0;          // ms
    std::deque<Clock::duration> steps;  // how long the last ones took
    Clock::time_point placeAt;
    // In the window:
    int behind = 0;  // looks
    int64_t firstStep = -1;
    bool tolerated = false;  // slow, and told
  };
  const Limits limits;
  std::optional<Finding> standstill() const;
  Clock::duration longestStep() const;
  bool computes(const Seen &s) const;
  void compare(const std::vector<RankStatus> &ranks, Clock::time_point now);
  std::vector<Seen> seen;
  std::optional<Clock::time_point> last;
  Clock::time_point windowAt;
  int looks = 0;  // of the window, in which ranks could be compared
};

}  // namespace gptc

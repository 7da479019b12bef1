// Finds stuck and slow ranks by their heartbeats alone.
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
    /// A rank is stuck if it has sent no heartbeat for this long.
    std::chrono::milliseconds silence{4000};
    /// A rank that sends heartbeats is stuck, too, if it has made no progress for longer than `silence` and for longer
    /// than this many steps take.
    int steps = 4;
    /// Time for the first heartbeat: starting a program from a cold disk takes a while. Also the limit when all ranks
    /// wait for each other and the duration of a step is unknown.
    std::chrono::milliseconds start{30000};
    /// Period over which ranks are compared to find slow ones; at least two steps.
    std::chrono::milliseconds window{10000};
  };
  struct Finding {
    int rank;
    std::string what;  // "has given no heartbeat for 5.0 s"
  };

  RankWatch(size_t ranks, const Limits &limits) : limits(limits), seen(ranks) {}

  /// Takes the current status of all ranks. Call it several times a second.
  void look(const std::vector<RankStatus> &ranks, Clock::time_point now);

  /// A rank that will not go on by itself: it sends no heartbeat, or it spins within a step, a save or an evaluation.
  /// Not a rank that waits in a collective, is busy with work of unknown duration, has not done a step yet, or waits
  /// for a disk without using the CPU. If all ranks wait and no message arrives, it is the rank that the others wait
  /// for.
  std::optional<Finding> stuck() const;
  /// The rank with the oldest heartbeat, if that is older than `least`.
  std::optional<Finding> silent(std::chrono::milliseconds least) const;
  /// A rank for which the others wait most of their time. Reported once, and again after it has kept up.
  std::optional<Finding> slow();

private:
  struct Seen {
    bool alive = false;
    PulseView pulse;
    Clock::time_point startAt, beatAt, progressAt, stepAt;
    int64_t cpuAtProgress = 0;          // milliseconds
    std::deque<Clock::duration> steps;  // durations of the last steps
    Clock::time_point placeAt;
    // Within the window:
    int behind = 0;  // number of looks at which it was behind
    int64_t firstStep = -1;
    bool tolerated = false;  // slow, and reported
  };
  const Limits limits;
  std::optional<Finding> standstill() const;
  Clock::duration longestStep() const;
  bool computes(const Seen &s) const;
  void compare(const std::vector<RankStatus> &ranks, Clock::time_point now);
  std::vector<Seen> seen;
  std::optional<Clock::time_point> last;
  Clock::time_point windowAt;
  int looks = 0;  // looks in the window at which ranks could be compared
};

}  // namespace gptc

// Where the time of a run with several ranks went.
#pragma once

#include "runtime/collectives/communicator.h"

#include <string>

namespace gptc {

class RankTimes {
public:
  /// From now on. Beside all ranks there may be the groups that this one meets along each axis of a mesh (null: none).
  RankTimes(Communicator &ranks, const std::vector<Communicator *> &axes);
  /// Runs a step, and notes what it sends: checkpoints and evaluations send more, now and then.
  template <class F> auto step(F run) {
    const Totals before = totals();
    auto result = run();
    const Totals now = totals();
    sent += now.sent - before.sent;
    least += now.least - before.least;
    ++steps;
    return result;
  }
  /// Who was the slowest, how long the others waited for it, and what a step sends beside the least that could be. All
  /// ranks call it together, and all get the same text.
  std::string report();

private:
  struct Totals {
    int64_t sent = 0, least = 0;
    std::chrono::nanoseconds inside{0};
  };
  Totals totals() const;
  Communicator &ranks;
  std::vector<Communicator *> groups;  // all that are used
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds inside;
  int64_t steps = 0, sent = 0, least = 0;
};

/// The same of what ranks say, in their order: seconds within collectives, and in all.
std::string describeWaiting(llvm::ArrayRef<double> inside, double seconds);

}  // namespace gptc

// Reports where a run with several ranks spent its time.
#pragma once

#include "runtime/collectives/communicator.h"

#include <string>

namespace gptc {

class RankTimes {
public:
  /// Starts measuring. `axes`: this rank's groups along each mesh axis (null: none).
  RankTimes(Communicator &ranks, const std::vector<Communicator *> &axes);
  /// Runs a step and counts the bytes it sends, apart from those of checkpoints and evaluations.
  template <class F> auto step(F run) {
    const Totals before = totals();
    auto result = run();
    const Totals now = totals();
    sent += now.sent - before.sent;
    least += now.least - before.least;
    ++steps;
    return result;
  }
  /// The same for what belongs to the last step.
  template <class F> void beside(F run) {
    --steps;
    step([&] { return run(), 0; });
  }
  /// Reports the slowest rank, how long the others waited for it, and the bytes sent per step relative to the lower
  /// bound. All ranks must call it together; all get the same text.
  std::string report();

private:
  struct Totals {
    int64_t sent = 0, least = 0;         // bytes, and their lower bound
    std::chrono::nanoseconds inside{0};  // within collectives
  };
  Totals totals() const;
  Communicator &ranks;
  std::vector<Communicator *> groups;  // all distinct communicators
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds inside;
  int64_t steps = 0, sent = 0, least = 0;
};

/// The first part of the report: `inside`, per rank, are seconds within collectives; `seconds` is the total.
std::string describeWaiting(llvm::ArrayRef<double> inside, double seconds);

}  // namespace gptc

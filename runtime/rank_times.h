// Where the time of a run with several ranks went.
#pragma once

#include "runtime/collectives/communicator.h"

#include <string>

namespace gptc {

class RankTimes {
public:
  /// From now on.
  explicit RankTimes(Communicator &ranks);
  /// Since then, for `steps` steps: who was the slowest, how long the others waited for it, and what each has sent
  /// beside the least that could be. All ranks call it together, and all get the same text.
  std::string report(int64_t steps);

private:
  Communicator &ranks;
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds inside;
  const int64_t sent, least;
};

/// The same of what ranks say, in their order: seconds within collectives, and in all.
std::string describeWaiting(llvm::ArrayRef<double> inside, double seconds);

}  // namespace gptc

// Catches signals that stop a training run in good order, and answers them at once.
#pragma once

#include <csignal>
#include <cstdint>

namespace gptc {

/// Catches SIGTERM, SIGINT and SIGHUP (a closed terminal) as long as it lives; only one object may exist. The first
/// signal asks the run to stop. A later one that counts as another request (runtime/launch/stops.h) ends the process
/// with 130.
class StopSignals {
public:
  /// `answers`: whether the handler itself answers the first signal on standard error, because a step, an evaluation or
  /// the compilation of kernels may go on for a while. Set it to false under a launcher that answers for all ranks.
  explicit StopSignals(bool answers);
  ~StopSignals();
  StopSignals(const StopSignals &) = delete;

  /// Whether a stop was asked for.
  static bool asked();

  /// Set what the answer says: inStep, that this step is finished first; after, that only the save is left. Before
  /// either call it says that the run is starting.
  void inStep(int64_t number);
  void after(int64_t step);

private:
  struct sigaction oldTerm{}, oldInt{}, oldHup{};
};

}  // namespace gptc

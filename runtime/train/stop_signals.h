// Signals that end a training run in good order, and the line that says so the moment they come.
#pragma once

#include <csignal>
#include <cstdint>

namespace gptc {

/// Catches SIGTERM, SIGINT and SIGHUP (a closed terminal) for as long as it lives; one at a time. The first asks the
/// run to stop; one that comes later and means more (runtime/launch/stops.h) ends the process, 130.
class StopSignals {
public:
  /// `answers`: whether the first is answered on standard error, from within its handler, as a step, an evaluation or
  /// the compilation of kernels may go on for a while. Not where a launcher answers for all ranks.
  explicit StopSignals(bool answers);
  ~StopSignals();
  StopSignals(const StopSignals &) = delete;

  static bool asked();

  /// What the answer says: that the step of this number is finished first, or that nothing is but the save of it. In
  /// the beginning a run is starting.
  void inStep(int64_t number);
  void after(int64_t step);

private:
  struct sigaction oldTerm {
  }, oldInt{}, oldHup{};
};

}  // namespace gptc

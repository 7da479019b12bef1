// Counts signals that ask a run to stop, as their sender meant them.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace gptc {

/// The first SIGINT, SIGTERM or SIGHUP asks to save and end, a later one to end at once. One request may arrive as
/// several signals: Slurm sends SIGTERM twice at its time limit, and `timeout` signals its child and immediately the
/// child's group. So a later SIGTERM does not count, nor does any signal within half a second.
class Stops {
public:
  /// Async-signal-safe.
  void note(int number) {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t now = int64_t(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
    if (stops > 0 && (number == SIGTERM || now - counted < sameMs))
      return;
    counted = now;
    ++stops;
  }
  int count() const { return stops; }
  void clear() { stops = 0; }

private:
  static constexpr int64_t sameMs = 500;
  std::atomic<int> stops{0};
  std::atomic<int64_t> counted{0};
  static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
};

}  // namespace gptc

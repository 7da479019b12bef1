// Counts signals that ask a run or a server to stop, as their sender meant them.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace gptc {

/// The first SIGINT, SIGTERM or SIGHUP asks to end in good order, a later one to end at once. One request may arrive as
/// several signals: Slurm sends SIGTERM twice at its time limit, `timeout` signals its child and immediately the
/// child's group, and systemd signals all processes of a unit, of which a launcher passes it on to its ranks. So a
/// later SIGTERM does not count, nor does any signal within half a second.
class Stops {
public:
  /// Whether the signal counts. Async-signal-safe; handlers on several threads may call it at once.
  bool note(int number) {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t now = int64_t(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
    int before = stops;
    if (before > 0 && (number == SIGTERM || now - counted < sameMs))
      return false;
    counted = now;                                             // before others can see that one has counted
    return stops.compare_exchange_strong(before, before + 1);  // else another thread has counted the same request
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

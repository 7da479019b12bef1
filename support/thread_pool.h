// A pool of pinned threads. Idle workers spin briefly, then sleep. Results never depend on which thread runs a task.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

class ThreadPool {
public:
  /// Starts threads - 1 workers, each pinned to a CPU of the process's affinity mask if the mask has at least
  /// `threads`. Throws UserError(OutOfMemory) if the system refuses a thread. `sysfs`: as for nodesOf (support/cpus.h).
  explicit ThreadPool(unsigned threads, const std::string &sysfs = "/sys");
  ~ThreadPool();
  unsigned size() const;
  /// The memory nodes of the CPUs that the threads run on, ascending. Which thread runs a task is open, so memory that
  /// all tasks use belongs on all of these.
  const std::vector<int> &nodes() const;
  /// Runs fn(arg, begin, end) over [0, tasks), split dynamically into ranges of `grain` tasks (0: an eighth of a
  /// thread's share), and returns when all are done. The calling thread takes part. fn must not throw. Only one thread
  /// at a time may call run; a call from within a task runs all its tasks in that thread.
  void run(int64_t tasks, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg, int64_t grain = 0);
  /// Runs fn(i) for every task i, one at a time per thread. It may throw: one of the exceptions comes out when all
  /// tasks have ended.
  void each(int64_t tasks, const std::function<void(int64_t)> &fn);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc

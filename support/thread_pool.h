// One pinned pool for everything: workers spin briefly, then sleep. Which thread runs a task never changes a result.
#pragma once

#include <cstdint>
#include <memory>

namespace gptc {

class ThreadPool {
public:
  /// Starts threads - 1 workers, each pinned to a CPU of the process's affinity mask where there is one for each.
  /// UserError(OutOfMemory) when the system refuses one.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  unsigned size() const;
  /// Runs fn(arg, begin, end) over [0, tasks), split dynamically in ranges of `grain` tasks (0: an eighth of a thread's
  /// share); returns when all are done. The caller takes part. fn must not throw. One thread at a time may call run; a
  /// call from within a task runs in that thread.
  void run(int64_t tasks, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg, int64_t grain = 0);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc

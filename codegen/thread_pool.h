// One pinned pool for everything: workers spin briefly, then sleep. Which thread runs a task never changes a result.
#pragma once

#include <cstdint>
#include <memory>

namespace gptc {

class ThreadPool {
public:
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  unsigned size() const;
  /// Runs fn(arg, begin, end) over [0, tasks) split dynamically in small ranges; returns when all are done. The caller takes part.
  void run(int64_t tasks, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc

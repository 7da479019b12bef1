// The other ranks of a machine while the kernels of one are measured, as ranks share caches and memory bandwidth.
#pragma once

#include "support/thread_pool.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace gptc {

/// Groups of threads on CPUs of their own, one group for each other rank. They sleep between two calls.
class Neighbours {
public:
  /// A group of `threads` threads for each list of CPUs. Throws UserError(OutOfMemory) if the system refuses a thread.
  Neighbours(const std::vector<std::vector<int>> &cpus, unsigned threads);
  ~Neighbours();
  size_t size() const;

  /// What group `i` does, with its own pool.
  using Work = std::function<void(size_t i, ThreadPool &pool)>;
  /// All groups do `work` once, at the same time. An exception of one comes out when all have ended.
  void each(const Work &work);
  /// All groups do `work` again and again while `mine` runs in this thread. `mine` begins once all have begun; returns
  /// when all have ended their last call. Exceptions as in each().
  void beside(const Work &work, const std::function<void()> &mine);
  /// Calls of `work` by beside() that have ended, of all groups.
  int64_t calls() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc

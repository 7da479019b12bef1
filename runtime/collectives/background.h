// Runs buckets of collectives on one thread, in the order of their start, while the caller computes.
#pragma once

#include "runtime/collectives/communicator.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace gptc {

/// For one caller, which may use the communicator itself only while no bucket is under way.
class Background {
public:
  /// The communicator must outlive this.
  explicit Background(Communicator &ranks);
  /// Waits for a running bucket, at most the communicator's time-out; drops the buckets that have not begun.
  ~Background();
  Background(const Background &) = delete;

  /// Starts a bucket and returns its number, from 1. The memory of the calls must not be touched until wait() has
  /// returned.
  int64_t start(llvm::ArrayRef<Collective> calls, SumOrder order);
  /// Waits until all buckets up to this number have run. Throws a bucket's error, at this and every later call.
  void wait(int64_t number);

private:
  struct Bucket {
    std::vector<Collective> calls;
    SumOrder order;
  };
  void loop();

  Communicator &ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Bucket> todo;
  int64_t started = 0, ended = 0;
  std::exception_ptr failure;
  bool stop = false;
  std::thread thread;
};

}  // namespace gptc

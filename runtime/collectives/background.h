// Buckets that run while the caller computes: one thread, in the order in which they were started.
#pragma once

#include "runtime/collectives/communicator.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace gptc {

/// For one caller, who uses the communicator meanwhile only where nothing is under way.
class Background {
public:
  /// The communicator must outlive this.
  explicit Background(Communicator &ranks);
  /// What has begun is waited for, no longer than the communicator's time-out; what has not, is left out.
  ~Background();
  Background(const Background &) = delete;

  /// The memory of the calls is theirs until wait() has returned. Returns the bucket's number, from 1.
  int64_t start(llvm::ArrayRef<Collective> calls, SumOrder order);
  /// Until all buckets up to this number have run; throws what one of them threw, now and from then on.
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

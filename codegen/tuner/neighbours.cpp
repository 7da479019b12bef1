#include "codegen/tuner/neighbours.h"

#include "support/cpus.h"
#include "support/diagnostics.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace gptc {

// A group's first thread waits for a job with a new number, does it and counts itself out.
struct Neighbours::Impl {
  using Job = std::function<void(size_t)>;
  std::mutex mutex;
  std::condition_variable changed;
  const Job *job = nullptr;
  uint64_t number = 0;  // of the job
  size_t busy = 0;      // groups that have not ended it
  bool stop = false;
  std::exception_ptr failure;
  std::atomic<int64_t> calls = 0;
  std::vector<std::unique_ptr<ThreadPool>> pools;  // by group
  std::vector<std::thread> threads;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    for (std::thread &t : threads)
      t.join();
  }

  void serve(size_t i, const std::vector<int> &cpus) noexcept {
    bindTo(cpus);
    std::unique_lock lock(mutex);
    for (uint64_t seen = 0;;) {
      changed.wait(lock, [&] { return stop || number != seen; });
      if (stop)
        return;
      seen = number;
      const Job &mine = *job;
      lock.unlock();
      std::exception_ptr wrong;
      try {
        mine(i);
      } catch (...) {
        wrong = std::current_exception();
      }
      lock.lock();
      if (wrong)
        failure = wrong;
      if (--busy == 0)
        changed.notify_all();
    }
  }

  /// `j` must live until finish() returns.
  void start(const Job &j) {
    {
      const std::lock_guard lock(mutex);
      job = &j;
      busy = threads.size();
      failure = nullptr;
      ++number;
    }
    changed.notify_all();
  }

  void finish() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return busy == 0; });
    if (failure)
      std::rethrow_exception(failure);
  }
};

Neighbours::Neighbours(const std::vector<std::vector<int>> &cpus, unsigned threads) : impl(std::make_unique<Impl>()) {
  impl->pools.resize(cpus.size());
  impl->threads.reserve(cpus.size());
  try {
    for (size_t i = 0; i < cpus.size(); ++i)
      impl->threads.emplace_back([p = impl.get(), i, own = cpus[i]] { p->serve(i, own); });
  } catch (const std::system_error &e) {
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("the system runs {} of {} other ranks as threads: {}", impl->threads.size(),
                                cpus.size(), e.code().message()),
                    "give a smaller number of --ranks-per-node");
  }
  // A pool takes the CPUs of the thread that makes it.
  const Impl::Job make = [&](size_t i) { impl->pools[i] = std::make_unique<ThreadPool>(threads); };
  impl->start(make);
  impl->finish();
}

Neighbours::~Neighbours() = default;

size_t Neighbours::size() const { return impl->threads.size(); }
int64_t Neighbours::calls() const { return impl->calls; }

void Neighbours::each(const Work &work) {
  const Impl::Job once = [&](size_t i) { work(i, *impl->pools[i]); };
  impl->start(once);
  impl->finish();
}

void Neighbours::beside(const Work &work, const std::function<void()> &mine) {
  std::atomic<size_t> begun = 0;
  std::atomic<bool> over = false;
  const Impl::Job again = [&](size_t i) {
    ++begun;
    begun.notify_one();
    do {
      work(i, *impl->pools[i]);
      ++impl->calls;
    } while (!over);
  };
  impl->start(again);
  for (size_t n; (n = begun) < size();)
    begun.wait(n);
  std::exception_ptr wrong;
  try {
    mine();
  } catch (...) {
    wrong = std::current_exception();
  }
  over = true;
  impl->finish();
  if (wrong)
    std::rethrow_exception(wrong);
}

}  // namespace gptc

#include "support/thread_pool.h"

#include "support/cpus.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <immintrin.h>
#include <linux/futex.h>
#include <mutex>
#include <sched.h>
#include <string>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace gptc {

namespace {

// Longer than the caller's work between two kernels, short enough not to burn a core while the caller does other work.
constexpr auto spinTime = std::chrono::microseconds(50);

void futexWait(std::atomic<uint32_t> &word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void futexWakeAll(std::atomic<uint32_t> &word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

thread_local bool insideTask = false;

}  // namespace

// A job starts when the gate opens and ends when the gate closes. Workers count themselves in through the gate, so that
// the caller waits only for those that take part: a worker that sleeps through a short job delays nobody.
struct ThreadPool::Impl {
  static constexpr uint64_t open = uint64_t(1) << 31;
  static constexpr uint64_t insideMask = open - 1;

  // gate: job number << 32 | open | workers inside
  alignas(64) std::atomic<uint64_t> gate{0};
  alignas(64) std::atomic<uint32_t> bell{0};  // counts rings (jobs and the stop); sleepers wait on it
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int64_t> next{0};
  // Written only while the gate is closed and no worker is inside:
  alignas(64) int64_t tasks = 0;
  int64_t grain = 1;
  void (*fn)(void *, int64_t, int64_t) = nullptr;
  void *arg = nullptr;
  std::vector<std::thread> workers;
  std::vector<int> nodes;

  void work() noexcept {
    insideTask = true;
    for (int64_t b; (b = next.fetch_add(grain, std::memory_order_relaxed)) < tasks;)
      fn(arg, b, std::min(tasks, b + grain));
    insideTask = false;
  }

  /// Waits for a job newer than `seen` and works on it. Returns after that, or when the pool stops.
  void serve(uint32_t &seen) noexcept {
    auto until = std::chrono::steady_clock::now() + spinTime;
    for (unsigned turn = 1;; ++turn) {
      uint64_t g = gate.load(std::memory_order_acquire);
      if ((g & open) && uint32_t(g >> 32) != seen) {
        if (!gate.compare_exchange_weak(g, g + 1, std::memory_order_acq_rel))
          continue;
        seen = uint32_t(g >> 32);
        work();
        gate.fetch_sub(1, std::memory_order_release);
        return;
      }
      if (stop.load(std::memory_order_relaxed))
        return;
      _mm_pause();
      if (turn % 64 == 0 && std::chrono::steady_clock::now() > until) {
        uint32_t rung = bell.load(std::memory_order_relaxed);
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        g = gate.load(std::memory_order_seq_cst);
        bool fresh = (g & open) && uint32_t(g >> 32) != seen;
        if (!fresh && !stop.load(std::memory_order_seq_cst))
          futexWait(bell, rung);  // returns at once when the bell rang since we read it
        sleepers.fetch_sub(1, std::memory_order_relaxed);
        until = std::chrono::steady_clock::now() + spinTime;
      }
    }
  }

  void finish() {
    stop.store(true, std::memory_order_seq_cst);
    ring();
    for (std::thread &t : workers)
      t.join();
    workers.clear();
  }

  void ring() {
    bell.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst))
      futexWakeAll(bell);
  }

  void worker(int cpu) noexcept {
    if (cpu >= 0) {
      const cpu_set_t set = setOf(cpu);
      sched_setaffinity(0, sizeof set, &set);  // if this fails, the thread runs unpinned
    }
    uint32_t seen = 0;
    while (!stop.load(std::memory_order_acquire))
      serve(seen);
  }
};

ThreadPool::ThreadPool(unsigned threads, const std::string &sysfs) : impl(std::make_unique<Impl>()) {
  std::vector<int> cpus = usableCpus();  // of the calling thread, which no pool pins
  bool pin = threads <= cpus.size();
  if (pin)
    cpus.resize(threads);
  impl->nodes = nodesOf(cpus, sysfs);
  std::sort(impl->nodes.begin(), impl->nodes.end());
  impl->nodes.erase(std::unique(impl->nodes.begin(), impl->nodes.end()), impl->nodes.end());
  impl->workers.reserve(threads);
  try {
    for (unsigned i = 1; i < threads; ++i)
      impl->workers.emplace_back([p = impl.get(), cpu = pin ? cpus[i] : -1] { p->worker(cpu); });
  } catch (const std::system_error &e) {
    const unsigned started = size();
    impl->finish();  // frees memory that the message may need
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("the system runs {} of {} threads: {}", started, threads, e.code().message()),
                    "give a smaller number of --threads");
  }
}

ThreadPool::~ThreadPool() { impl->finish(); }

unsigned ThreadPool::size() const { return impl->workers.size() + 1; }
const std::vector<int> &ThreadPool::nodes() const { return impl->nodes; }

void ThreadPool::run(int64_t tasks, void (*fn)(void *, int64_t, int64_t), void *arg, int64_t grain) {
  if (tasks <= 0)
    return;
  Impl &p = *impl;
  if (tasks == 1 || p.workers.empty() || insideTask)
    return fn(arg, 0, tasks);
  p.tasks = tasks;
  p.grain = grain ? grain : std::max<int64_t>(1, tasks / (8 * size()));
  p.fn = fn;
  p.arg = arg;
  p.next.store(0, std::memory_order_relaxed);
  uint64_t job = (p.gate.load(std::memory_order_relaxed) >> 32) + 1;
  p.gate.store(job << 32 | Impl::open, std::memory_order_seq_cst);
  p.ring();
  p.work();
  uint64_t g = p.gate.fetch_and(~Impl::open, std::memory_order_acq_rel);
  for (unsigned turn = 1; g & Impl::insideMask; ++turn) {
    _mm_pause();
    if (turn % 4096 == 0)
      sched_yield();  // a worker that lost its CPU needs one
    g = p.gate.load(std::memory_order_acquire);
  }
}

void ThreadPool::each(int64_t tasks, const std::function<void(int64_t)> &fn) {
  struct Tasks {
    const std::function<void(int64_t)> &fn;
    std::mutex mutex;
    std::exception_ptr failure;
  } all{fn, {}, nullptr};
  auto some = [](void *arg, int64_t begin, int64_t end) {
    Tasks &all = *static_cast<Tasks *>(arg);
    for (int64_t i = begin; i < end; ++i)
      try {
        all.fn(i);
      } catch (...) {
        const std::lock_guard lock(all.mutex);
        all.failure = std::current_exception();
      }
  };
  run(tasks, some, &all, 1);
  if (all.failure)
    std::rethrow_exception(all.failure);
}

}  // namespace gptc

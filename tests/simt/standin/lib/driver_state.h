// The state of the stand-in driver: handles, memory, what waits to run, and how it is run.
#pragma once

#include "runtime/cuda/driver.h"
#include "tests/simt/simt.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace gptc::cuda {

inline int64_t setting(const char *name, int64_t otherwise) {
  const char *v = std::getenv((std::string("GPTC_STANDIN_") + name).c_str());
  return v && *v ? std::atoll(v) : otherwise;
}

/// Something that runs later; "" or why it failed.
using Action = std::function<std::string()>;
/// The same of what may have to wait for others than the driver: false where it must be tried again.
using Attempt = std::function<bool(std::string &problem)>;

struct Op {
  Attempt run;
  std::vector<std::shared_ptr<Op>> after;
  bool done = false;
};
using OpPtr = std::shared_ptr<Op>;

struct Node {
  Attempt run;  // each launch has a copy of its own
  std::vector<int> after;
  bool isKernel = false;  // that cuLaunchKernel has put there, and no library
};

struct ContextImpl {
  int device;  // in the machine
};
struct GraphImpl {
  std::vector<Node> nodes;
};
struct GraphExecImpl {
  std::vector<Node> nodes;
  OpPtr last;  // of its launches, which never overlap
};

/// What is being captured, by the stream where it began and those that joined.
struct Capture {
  std::unique_ptr<GraphImpl> graph = std::make_unique<GraphImpl>();
  Stream origin;
  std::thread::id thread = std::this_thread::get_id();  // where it began
  bool invalid = false;
  std::map<const void *, int> chains;  // the last node of each chain
};

struct StreamImpl {
  Context context;
  OpPtr last;
  std::vector<OpPtr> waits;
  std::shared_ptr<Capture> capture;
  std::vector<int> tail;  // of the capture: what the next node comes after
};
struct EventImpl {
  Context context;
  bool timed;
  OpPtr op;
  std::shared_ptr<double> ms;  // when the last recording happened
  std::shared_ptr<Capture> capture;
  std::vector<int> nodes;
};
struct ModuleImpl {
  Context context;
  void *library = nullptr;
  std::map<std::string, int> threads;  // of each kernel at most
  std::map<std::string, std::unique_ptr<FunctionImpl>> functions;
};
struct FunctionImpl {
  ModuleImpl *module;
  simt::HostModule::Thread code;
  std::string name;
  int threads, dynamicShared = 0;
  std::vector<bool> written;
};

struct Allocation {
  size_t bytes;
  std::unique_ptr<std::byte, decltype(&std::free)> data{nullptr, std::free};
  Context context;
};

constexpr int sharedBytes = 48 << 10;

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": of shared memory per block at most.
inline int sharedOptin() {
  const int64_t arch = setting("ARCH", 90);
  const int kib = arch < 80                                ? 64
                  : arch == 80 || arch == 87 || arch == 88 ? 163
                  : arch < 90 || arch / 10 == 12           ? 99
                                                           : 227;
  return kib << 10;
}

inline std::mutex lock;
inline bool ready = false;
inline std::vector<std::unique_ptr<ContextImpl>> contexts;
inline thread_local Context current = nullptr;
inline std::map<DevicePtr, Allocation> allocations;
inline size_t allocated = 0;
inline DevicePtr nextAddress = 0x200000000000;
// Never destroyed, so that LeakSanitizer finds what they hold: behind a sticky failure nothing can be freed.
inline auto &pinned = *new std::map<std::byte *, size_t>;
inline auto &streams = *new std::set<Stream>;
inline auto &events = *new std::set<Event>;
inline auto &modules = *new std::set<LoadedModule>;
inline auto &functions = *new std::set<LoadedFunction>;
inline auto &graphs = *new std::set<Graph>;
inline auto &execs = *new std::set<GraphExec>;
inline std::vector<std::shared_ptr<Capture>> captures;
inline std::vector<OpPtr> pending;
inline std::map<const void *, OpPtr> chains;  // what runs in the order in which it was enqueued, whatever the stream
inline std::mt19937 chance;
inline double lost = 0;  // milliseconds that libraries say they took
inline Result sticky = success;
inline Result lastCode = success;
inline std::string complaint;

template <typename... A> Result refuse(Result code, fmt::format_string<A...> f, A &&...a) {
  lastCode = code;
  complaint = fmt::format(f, std::forward<A>(a)...);
  return code;
}

// ---- running --------------------------------------------------------------------------------------------------------

inline size_t choose(size_t n) {
  const int64_t order = setting("ORDER", 2);
  return order == 0 ? 0 : order == 1 ? n - 1 : chance() % n;
}

enum class Drove { done, one, nothing };

/// Runs at most one thing, of those that come before the target or not, in an order that is allowed: `nothing` where
/// all that may run waits for other ranks.
inline Drove driveOnce(const OpPtr &target) {
  if (!target || target->done)
    return Drove::done;
  std::vector<OpPtr> may;
  for (const OpPtr &p : pending)
    if (std::all_of(p->after.begin(), p->after.end(), [](const OpPtr &o) { return o->done; }))
      may.push_back(p);
  while (!may.empty()) {
    const size_t at = choose(may.size());
    const OpPtr op = may[at];
    std::string problem;
    if (sticky == success && !op->run(problem)) {
      may.erase(may.begin() + at);
      continue;
    }
    if (!problem.empty())
      sticky = refuse(problem.find("address") != std::string::npos ? illegalAddress : launchFailed, "{}", problem);
    pending.erase(std::find(pending.begin(), pending.end(), op));
    op->done = true;
    op->after.clear();
    op->run = nullptr;
    return Drove::one;
  }
  return Drove::nothing;
}

/// Runs things until this one is done: perhaps more than it needs, never out of order. Other threads get their turn
/// while nothing can go on.
inline Result drive(const OpPtr &target) {
  for (Drove d; (d = driveOnce(target)) != Drove::done;)
    if (d == Drove::nothing) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
    }
  return sticky;
}
inline Result driveAll() {
  while (!pending.empty())
    drive(OpPtr(pending.back()));
  return sticky;
}

/// `chain`: of several that have one, each comes after the one before, whatever their streams.
inline Result enqueue(Stream s, Attempt run, const void *chain = nullptr) {
  if (s->capture) {
    if (s->capture->invalid)
      return refuse(captureInvalidated, "the capture has become invalid");
    std::vector<Node> &nodes = s->capture->graph->nodes;
    nodes.push_back({std::move(run), s->tail});
    s->tail = {int(nodes.size()) - 1};
    if (chain) {
      if (auto [it, first] = s->capture->chains.try_emplace(chain, s->tail[0]); !first) {
        nodes.back().after.push_back(it->second);
        it->second = s->tail[0];
      }
    }
    return success;
  }
  auto op = std::make_shared<Op>();
  op->run = std::move(run);
  op->after = std::move(s->waits);
  s->waits.clear();
  if (s->last)
    op->after.push_back(s->last);
  s->last = op;
  if (chain) {
    OpPtr &before = chains[chain];
    if (before)
      op->after.push_back(before);
    before = op;
  }
  pending.push_back(op);
  return success;
}
inline Result enqueue(Stream s, Action run) {
  return enqueue(s, Attempt([run = std::move(run)](std::string &problem) {
                   problem = run();
                   return true;
                 }));
}

/// Whether GPTC_STANDIN_NO_MEMORY names this call.
inline bool toldNoMemory(const char *call) {
  const char *named = std::getenv("GPTC_STANDIN_NO_MEMORY");
  return named && std::string_view(named) == call;
}

// ---- what may be asked ----------------------------------------------------------------------------------------------

/// At the beginning of every call that needs a context.
inline Result enter(const char *what) {
  if (!ready)
    return refuse(notInitialized, "{} before cuInit", what);
  if (sticky != success)
    return sticky;
  if (!current)
    return refuse(invalidContext, "{} without a current context", what);
  if (toldNoMemory(what))
    return refuse(outOfMemory, "{} was told so", what);
  return success;
}
/// The same for calls that may not be made while a stream captures in this thread: those that would end it.
inline Result enterUncaptured(const char *what) {
  if (Result r = enter(what))
    return r;
  bool any = false;
  for (const auto &c : captures)
    if (c->thread == std::this_thread::get_id())
      any = c->invalid = true;
  return any ? refuse(captureUnsupported, "{} while a stream captures", what) : success;
}

template <class T> Result known(const std::set<T> &all, T handle, const char *what) {
  if (!all.count(handle))
    return refuse(invalidHandle, "{} is none, or was destroyed", what);
  if constexpr (requires { handle->context; })
    if (handle->context != current)
      return refuse(invalidHandle, "{} belongs to another context", what);
  return success;
}

/// The memory from `at` on and the bytes to its end, or null.
inline std::byte *resolve(DevicePtr at, size_t bytes, size_t *room = nullptr) {
  auto it = allocations.upper_bound(at);
  if (it == allocations.begin())
    return nullptr;
  const Allocation &a = (--it)->second;
  const size_t offset = at - it->first;
  if (offset > a.bytes || bytes > a.bytes - offset)
    return nullptr;
  if (room)
    *room = a.bytes - offset;
  return a.data.get() + offset;
}

inline bool isPinned(const void *at, size_t bytes) {
  auto it = pinned.upper_bound(static_cast<std::byte *>(const_cast<void *>(at)));
  if (it == pinned.begin())
    return false;
  --it;
  return static_cast<const std::byte *>(at) + bytes <= it->first + it->second;
}

inline std::string noAddress(DevicePtr at, size_t bytes, const char *what) {
  return fmt::format("{} of {} bytes at address {:#x}, where nothing is allocated", what, bytes, at);
}

}  // namespace gptc::cuda

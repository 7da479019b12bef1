// GroupBench: each buffer lies between red zones, and results and workspaces are poisoned before a check, so that
// check() finds writes outside of the buffers and elements that a candidate does not write.
#include "codegen/tuner/group_bench.h"

#include "codegen/recipes/pointwise.h"
#include "codegen/tuner/group_operands.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sys/mman.h>

namespace gptc {

namespace {

constexpr size_t redZone = 4096;  // bytes before and after each buffer
constexpr unsigned char redByte = 0xa5, poisonByte = 0xff;
constexpr size_t largePage = 2 << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Memory between red zones, in large pages like the runtime's arena.
class Guarded {
public:
  explicit Guarded(size_t bytes) : bytes(bytes), mapped(roundUp(int64_t(bytes + 2 * redZone), int64_t(largePage))) {
    void *p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw UserError(ErrorCode::OutOfMemory, fmt::format("no {} to measure a kernel in", formatBytes(double(mapped))),
                      "a smaller train.micro_batch has smaller kernels");
    base = static_cast<unsigned char *>(p);
    (void)madvise(p, mapped, MADV_HUGEPAGE);
    paint();
  }
  ~Guarded() { munmap(base, mapped); }
  Guarded(const Guarded &) = delete;
  unsigned char *data() const { return base + redZone; }
  size_t size() const { return bytes; }
  void paint() const {
    std::memset(base, redByte, redZone);
    std::memset(base + redZone + bytes, redByte, redZone);
  }
  bool intact() const {
    auto red = [](const unsigned char *p) {
      return llvm::all_of(llvm::ArrayRef(p, redZone), [](unsigned char c) { return c == redByte; });
    };
    return red(base) && red(base + redZone + bytes);
  }
  uint64_t hash() const { return llvm::xxh3_64bits(llvm::ArrayRef<uint8_t>(data(), bytes)); }

private:
  const size_t bytes, mapped;
  unsigned char *base;
};

struct Candidate {
  LoweredGroup lowered;
  CompiledKernel code;  // after build()
};

/// What the kernels of one rank read and write.
struct Buffers {
  std::vector<std::unique_ptr<Guarded>> memory;  // operands and results
  std::vector<std::unique_ptr<Guarded>> workspaces;
  std::vector<char> swept;  // twice as large as the last-level cache; empty if caches stay as they are

  Buffers(const Op &fused, int64_t sweptBytes) : swept(size_t(sweptBytes), 0) {
    for (unsigned i = 0; i < fused.numOperands() + fused.numResults(); ++i) {
      const Value *v = i < fused.numOperands() ? fused.operand(i) : fused.result(i - fused.numOperands());
      memory.push_back(std::make_unique<Guarded>(size_t(v->type.bytes())));
    }
  }

  std::vector<void *> params(const Candidate &c, std::vector<int64_t> &streams) {
    std::vector<void *> all;
    for (const auto &m : memory)
      all.push_back(m->data());
    const std::vector<int64_t> &bytes = c.lowered.workspaceBytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (workspaces.size() <= i)
        workspaces.emplace_back();
      if (!workspaces[i] || workspaces[i]->size() != size_t(bytes[i]))
        workspaces[i] = std::make_unique<Guarded>(size_t(bytes[i]));
      all.push_back(workspaces[i]->data());
    }
    for (int64_t &s : streams)
      all.push_back(&s);
    return all;
  }

  /// Evicts the caches: touches `swept` on all threads.
  void sweep(ThreadPool &pool) {
    struct Call {
      char *at;
      int64_t each;
    } call{swept.data(), int64_t(swept.size()) / 64};
    if (call.each)
      pool.run(
          64,
          [](void *c, int64_t begin, int64_t end) {
            auto &call = *static_cast<Call *>(c);
            for (int64_t i = begin * call.each; i < end * call.each; i += 64)
              ++call.at[i];
          },
          &call);
  }
};

/// Runs all phases. Returns false if `until` (in the time of now()) came first and tasks were left out.
bool runPhases(const CompiledKernel &code, void *const *params, ThreadPool &pool, double until = HUGE_VAL) {
  std::atomic<bool> late = false;
  for (const CompiledPhase &phase : code.phases) {
    struct Call {
      const CompiledPhase &phase;
      void *const *params;
      double until;
      std::atomic<bool> &late;
    } call{phase, params, until, late};
    auto all = [](void *c, int64_t begin, int64_t end) {
      auto &call = *static_cast<Call *>(c);
      call.phase.run(call.params, begin, end);
    };
    auto whileThereIsTime = [](void *c, int64_t begin, int64_t end) {
      auto &call = *static_cast<Call *>(c);
      for (int64_t i = begin; i < end && !call.late; ++i) {
        call.phase.run(call.params, i, i + 1);
        if (now() > call.until)
          call.late = true;
      }
    };
    if (until == HUGE_VAL)
      pool.run(phase.tasks, all, &call);
    else
      pool.run(phase.tasks, whileThereIsTime, &call);
  }
  return !late;
}

}  // namespace

struct GroupBench::Impl {
  const Op &fused;
  const Target target;
  ThreadPool &pool;
  const Lowering lowering;
  Jit jit;
  Neighbours *const neighbours;
  Buffers own;
  std::vector<std::unique_ptr<Buffers>> others;  // of neighbours
  std::vector<int64_t> streams;
  std::vector<uint64_t> operands;                  // hash of the content of each operand
  std::vector<std::vector<unsigned char>> wanted;  // the default's bytes of each result
  Trial base;
  std::map<std::string, Candidate> candidates;  // by the text of the schedule
  std::set<std::string> kernels;                // the text of each candidate's kernel

  Impl(const Op &fused, const Target &target, ThreadPool &pool, bool cold, Lowering lowering, Neighbours *neighbours)
      : fused(fused), target(target), pool(pool), lowering(std::move(lowering)), jit(target, ""),
        neighbours(neighbours), own(fused, cold ? 2 * target.l3Bytes : 0), streams(streamsOf(fused).size(), 3) {
    for (unsigned i = 0; i < fused.numOperands(); ++i) {
      fillOperand(fused, i, own.memory[i]->data(), pool);
      operands.push_back(own.memory[i]->hash());
    }
    if (!neighbours)
      return;
    others.resize(neighbours->size());
    neighbours->each([&](size_t n, ThreadPool &) {  // there, so that memory lies where it is used
      others[n] = std::make_unique<Buffers>(fused, int64_t(own.swept.size()));
      for (unsigned i = 0; i < fused.numOperands(); ++i)
        std::memcpy(others[n]->memory[i]->data(), own.memory[i]->data(), own.memory[i]->size());
    });
  }

  LoweredGroup lower(const Schedule &s) const {
    return lowering ? lowering(fused, s, target) : lowerGroup(fused, s, target);
  }

  const Candidate &of(const Trial &t) const { return candidates.at(t.schedule.str()); }

  std::vector<void *> params(const Candidate &c) { return own.params(c, streams); }

  /// Seconds of one call, while the neighbours make the same call.
  double timeOnce(const CompiledKernel &code, void *const *params,
                  const std::vector<std::vector<void *>> &paramsOfOthers) {
    double seconds = 0;
    auto call = [&] {
      const double begin = now();
      runPhases(code, params, pool);
      seconds = now() - begin;
    };
    if (neighbours)
      neighbours->each([&](size_t n, ThreadPool &theirs) { others[n]->sweep(theirs); });
    own.sweep(pool);
    if (neighbours)
      neighbours->beside([&](size_t n, ThreadPool &theirs) { runPhases(code, paramsOfOthers[n].data(), theirs); },
                         call);
    else
      call();
    return seconds;
  }

  void poison() {
    for (size_t i = fused.numOperands(); i < own.memory.size(); ++i)
      std::memset(own.memory[i]->data(), poisonByte, own.memory[i]->size());
    for (const auto &w : own.workspaces)
      std::memset(w->data(), poisonByte, w->size());
  }

  /// Whether only results and workspaces were written. Restores red zones and operands that were written too.
  bool intact() {
    bool all = true;
    for (auto *list : {&own.memory, &own.workspaces})
      for (const auto &m : *list)
        if (!m->intact()) {
          all = false;
          m->paint();
        }
    for (unsigned i = 0; i < operands.size(); ++i)
      if (own.memory[i]->hash() != operands[i]) {
        all = false;
        fillOperand(fused, i, own.memory[i]->data(), pool);
      }
    return all;
  }
};

GroupBench::GroupBench(const Op &fused, const Target &target, ThreadPool &pool, bool cold, Lowering lowering,
                       Neighbours *neighbours)
    : impl(std::make_unique<Impl>(fused, target, pool, cold, std::move(lowering), neighbours)) {
  GPTC_CHECK(!target.isCuda(), "kernels for {} are not measured here", target.name);
  impl->base = propose({defaultSchedule(fused, target)}).at(0);
  build({&impl->base});
  GPTC_CHECK(impl->base.outcome == Trial::Outcome::timed, "the default kernel of {}: {}", fused.loc, impl->base.why);
  const auto &c = impl->of(impl->base);
  const std::vector<void *> params = impl->params(c);
  impl->poison();
  runPhases(c.code, params.data(), impl->pool);
  GPTC_CHECK(impl->intact(), "the default kernel of {} writes outside of its memory", fused.loc);
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    const Guarded &g = *impl->own.memory[fused.numOperands() + i];
    impl->wanted.emplace_back(g.data(), g.data() + g.size());
  }
}

GroupBench::~GroupBench() = default;

const Trial &GroupBench::base() const { return impl->base; }

std::vector<Trial> GroupBench::propose(llvm::ArrayRef<Schedule> candidates) {
  std::vector<Trial> trials;
  for (const Schedule &s : candidates) {
    Trial t;
    t.schedule = s;
    try {
      LoweredGroup g = impl->lower(s);
      if (!impl->kernels.insert(kir::print(g.kernel)).second)
        continue;
      impl->candidates[s.str()].lowered = std::move(g);
    } catch (const InternalError &e) {
      t.outcome = Trial::Outcome::notCompiled;
      t.why = e.what();
    }
    trials.push_back(std::move(t));
  }
  std::vector<Trial *> good;
  std::vector<const kir::Kernel *> kernels;
  for (Trial &t : trials)
    if (t.outcome == Trial::Outcome::timed) {
      good.push_back(&t);
      kernels.push_back(&impl->of(t).lowered.kernel);
    }
  try {
    const std::vector<std::string> sources = impl->jit.sources(kernels);
    for (size_t i = 0; i < good.size(); ++i)
      good[i]->source = sources[i];
  } catch (const InternalError &) {  // at least one kernel fails; try each alone to find out which
    for (size_t i = 0; i < good.size(); ++i)
      try {
        good[i]->source = impl->jit.sources({kernels[i]})[0];
      } catch (const InternalError &e) {
        good[i]->outcome = Trial::Outcome::notCompiled;
        good[i]->why = e.what();
      }
  }
  return trials;
}

void GroupBench::build(llvm::ArrayRef<Trial *> trials) {
  std::vector<const kir::Kernel *> kernels;
  for (const Trial *t : trials)
    kernels.push_back(&impl->of(*t).lowered.kernel);
  const double begin = now();
  std::vector<CompiledKernel> code;
  try {
    code = impl->jit.compile(kernels);
  } catch (const InternalError &e) {
    if (trials.size() == 1) {
      trials[0]->outcome = Trial::Outcome::notCompiled;
      trials[0]->why = e.what();
      return;
    }
    for (Trial *t : trials)
      build({t});
    return;
  }
  const double each = (now() - begin) / double(std::max<size_t>(1, trials.size()));
  for (size_t i = 0; i < trials.size(); ++i) {
    trials[i]->compileSeconds = each;
    impl->candidates.at(trials[i]->schedule.str()).code = code[i];
  }
}

Trial::Outcome GroupBench::check(const Trial &trial, double seconds) {
  const auto &c = impl->of(trial);
  const std::vector<void *> params = impl->params(c);
  impl->poison();
  const bool ended = runPhases(c.code, params.data(), impl->pool, now() + seconds);
  if (!impl->intact())
    return Trial::Outcome::wroteOutside;
  if (!ended)
    return Trial::Outcome::tooSlow;
  for (size_t i = 0; i < impl->wanted.size(); ++i)
    if (std::memcmp(impl->wanted[i].data(), impl->own.memory[impl->fused.numOperands() + i]->data(),
                    impl->wanted[i].size()) != 0)
      return Trial::Outcome::wrongBits;
  return Trial::Outcome::timed;
}

Timing GroupBench::time(const Trial &trial, int runs, double seconds, double hopeless) {
  const auto &c = impl->of(trial);
  const std::vector<void *> params = impl->params(c);
  std::vector<std::vector<void *>> ofOthers;
  for (const auto &b : impl->others)
    ofOthers.push_back(b->params(c, impl->streams));
  std::vector<double> times;
  const double begin = now();
  int bad = 0;
  while (int(times.size()) < runs && (times.empty() || now() - begin < seconds) && bad < 2) {
    times.push_back(impl->timeOnce(c.code, params.data(), ofOthers));
    bad += times.back() > hopeless;
  }
  return timingOf(std::move(times));
}

}  // namespace gptc

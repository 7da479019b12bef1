#include "codegen/tuner.h"

#include "codegen/recipes/pointwise.h"
#include "ir/diagnostics.h"
#include "ir/kernel_eval.h"
#include "ir/random.h"
#include "ir/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
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
constexpr double slower = 1.25;  // than the best so far: not worth another look
constexpr int finalists = 4;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// Memory between red zones, in large pages as the runtime's arena has.
class Guarded {
public:
  explicit Guarded(size_t bytes) : bytes(bytes), mapped(roundUp(int64_t(bytes + 2 * redZone), int64_t(largePage))) {
    void *p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw UserError(ErrorCode::OutOfMemory, fmt::format("no {} to measure a kernel in", formatBytes(double(mapped))),
                      "a smaller train.micro_batch has smaller kernels");
    base = static_cast<unsigned char *>(p);
    (void)madvise(p, mapped, MADV_HUGEPAGE);
    std::memset(base, redByte, redZone);
    std::memset(base + redZone + bytes, redByte, redZone);
  }
  ~Guarded() { munmap(base, mapped); }
  Guarded(const Guarded &) = delete;
  unsigned char *data() const { return base + redZone; }
  size_t size() const { return bytes; }
  bool intact() const {
    auto red = [](const unsigned char *p) {
      return llvm::all_of(llvm::ArrayRef(p, redZone), [](unsigned char c) { return c == redByte; });
    };
    return red(base) && red(base + redZone + bytes);
  }

private:
  const size_t bytes, mapped;
  unsigned char *base;
};

/// How many different values the integers of an operand may have: what they index. 1 where nothing is known.
int64_t boundOf(const Op &fused, const Value *arg) {
  int64_t bound = INT64_MAX;
  for (const Op &op : *fused.body)
    for (const Value *v : op.operands()) {
      if (v != arg)
        continue;
      if (op.is(OpKind::embedding))
        bound = std::min(bound, op.operand(0)->type.dim(0));
      else if (op.is(OpKind::embedding_grad))
        bound = std::min(bound, op.result()->type.dim(0));
      else if (op.isOneOf(OpKind::cross_entropy, OpKind::cross_entropy_grad))
        bound = std::min(bound, op.operand(0)->type.dim(-1));
      else
        return 1;
    }
  return bound == INT64_MAX ? 1 : bound;
}

void fill(const Guarded &to, const Type &type, int64_t bound, uint64_t seed) {
  const RandomKey key = randomKey(seed, 0, 0, 0);
  const int64_t n = type.paddedElements();
  auto each = [&](auto *p, auto value) {
    for (int64_t i = 0; i < n; ++i)
      p[i] = value(randomBits(key, i));
  };
  auto unit = [](uint32_t bits) { return float(bits) * 0x1p-31f - 1.0f; };
  switch (type.dtype) {
  case DType::f32:
    return each(reinterpret_cast<float *>(to.data()), unit);
  case DType::bf16:
    return each(reinterpret_cast<uint16_t *>(to.data()),
                [&](uint32_t b) { return kir::bitsOfBF16(kir::roundBF16(unit(b))); });
  case DType::f16:
    return each(reinterpret_cast<uint16_t *>(to.data()),
                [&](uint32_t b) { return kir::bitsOfF16(kir::roundF16(unit(b))); });
  case DType::i32:
    return each(reinterpret_cast<int32_t *>(to.data()), [&](uint32_t b) { return int32_t(b % uint64_t(bound)); });
  case DType::i64:
    return each(reinterpret_cast<int64_t *>(to.data()), [&](uint32_t b) { return int64_t(b % uint64_t(bound)); });
  default:
    std::memset(to.data(), 0, to.size());
  }
}

}  // namespace

struct GroupBench::Impl {
  const Op &fused;
  const Target target;
  ThreadPool &pool;
  const bool cold;
  Jit jit;
  std::vector<std::unique_ptr<Guarded>> memory;  // operands and results
  std::vector<std::unique_ptr<Guarded>> workspaces;
  std::vector<int64_t> streams;
  std::vector<std::vector<unsigned char>> wanted;  // of results
  Trial base;
  struct Compiled {
    CompiledKernel code;
    std::vector<int64_t> workspaceBytes;
  };
  std::map<std::string, Compiled> compiled;  // by the text of the schedule
  std::set<std::string> kernels;             // texts of those
  std::vector<char> swept;

  Impl(const Op &fused, const Target &target, ThreadPool &pool, bool cold)
      : fused(fused), target(target), pool(pool), cold(cold), jit(target, ""), streams(streamsOf(fused).size(), 3),
        swept(cold ? size_t(2 * target.l3Bytes) : 0) {
    for (unsigned i = 0; i < fused.numOperands(); ++i) {
      const Type &t = fused.operand(i)->type;
      memory.push_back(std::make_unique<Guarded>(size_t(t.bytes())));
      fill(*memory.back(), t, boundOf(fused, fused.body->args[i].get()), i);
    }
    for (unsigned i = 0; i < fused.numResults(); ++i)
      memory.push_back(std::make_unique<Guarded>(size_t(fused.result(i)->type.bytes())));
  }

  std::vector<void *> params(const Compiled &c) {
    std::vector<void *> all;
    for (const auto &m : memory)
      all.push_back(m->data());
    for (size_t i = 0; i < c.workspaceBytes.size(); ++i) {
      if (workspaces.size() <= i)
        workspaces.emplace_back();
      if (!workspaces[i] || workspaces[i]->size() != size_t(c.workspaceBytes[i]))
        workspaces[i] = std::make_unique<Guarded>(size_t(c.workspaceBytes[i]));
      all.push_back(workspaces[i]->data());
    }
    for (int64_t &s : streams)
      all.push_back(&s);
    return all;
  }

  void run(const CompiledKernel &code, void *const *params) {
    for (const CompiledPhase &phase : code.phases) {
      struct Call {
        const CompiledPhase &phase;
        void *const *params;
      } call{phase, params};
      pool.run(
          phase.tasks,
          [](void *c, int64_t begin, int64_t end) {
            static_cast<Call *>(c)->phase.run(static_cast<Call *>(c)->params, begin, end);
          },
          &call);
    }
  }

  /// Reads more than caches hold, on every thread.
  void sweep() {
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

  void poison() {
    for (size_t i = fused.numOperands(); i < memory.size(); ++i)
      std::memset(memory[i]->data(), poisonByte, memory[i]->size());
    for (const auto &w : workspaces)
      std::memset(w->data(), poisonByte, w->size());
  }

  bool intact() const {
    auto whole = [](const std::unique_ptr<Guarded> &g) { return g->intact(); };
    return llvm::all_of(memory, whole) && llvm::all_of(workspaces, whole);
  }
};

GroupBench::GroupBench(const Op &fused, const Target &target, ThreadPool &pool, bool cold)
    : impl(std::make_unique<Impl>(fused, target, pool, cold)) {
  GPTC_CHECK(!target.isCuda(), "kernels for {} are not measured here", target.name);
  impl->base = compile({defaultSchedule(fused, target)}).at(0);
  const auto &c = impl->compiled.at(impl->base.schedule.str());
  const std::vector<void *> params = impl->params(c);
  impl->poison();
  impl->run(c.code, params.data());
  GPTC_CHECK(impl->intact(), "the default kernel of {} writes outside of its memory", fused.loc);
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    const Guarded &g = *impl->memory[fused.numOperands() + i];
    impl->wanted.emplace_back(g.data(), g.data() + g.size());
  }
}

GroupBench::~GroupBench() = default;

const Trial &GroupBench::base() const { return impl->base; }

std::vector<Trial> GroupBench::compile(llvm::ArrayRef<Schedule> candidates) {
  std::vector<Trial> trials;
  std::vector<LoweredGroup> lowered;
  for (const Schedule &s : candidates) {
    LoweredGroup g = lowerGroup(impl->fused, s, impl->target);
    if (!impl->kernels.insert(kir::print(g.kernel)).second)
      continue;
    lowered.push_back(std::move(g));
    trials.emplace_back().schedule = s;
  }
  std::vector<const kir::Kernel *> kernels;
  for (const LoweredGroup &g : lowered)
    kernels.push_back(&g.kernel);
  const double begin = now();
  const std::vector<CompiledKernel> code = impl->jit.compile(kernels);
  const double each = (now() - begin) / double(std::max<size_t>(1, trials.size()));
  const std::vector<std::string> sources = impl->jit.sources(kernels);
  for (size_t i = 0; i < trials.size(); ++i) {
    trials[i].compileSeconds = each;
    trials[i].source = sources[i];
    impl->compiled[trials[i].schedule.str()] = {code[i], lowered[i].workspaceBytes};
  }
  return trials;
}

Trial::Outcome GroupBench::check(const Trial &trial) {
  const auto &c = impl->compiled.at(trial.schedule.str());
  const std::vector<void *> params = impl->params(c);
  impl->poison();
  impl->run(c.code, params.data());
  if (!impl->intact())
    return Trial::Outcome::wroteOutside;
  for (size_t i = 0; i < impl->wanted.size(); ++i)
    if (std::memcmp(impl->wanted[i].data(), impl->memory[impl->fused.numOperands() + i]->data(),
                    impl->wanted[i].size()) != 0)
      return Trial::Outcome::wrongBits;
  return Trial::Outcome::timed;
}

Timing GroupBench::time(const Trial &trial, int runs, double seconds, double hopeless) {
  const auto &c = impl->compiled.at(trial.schedule.str());
  const std::vector<void *> params = impl->params(c);
  std::vector<double> times;
  const double begin = now();
  int bad = 0;
  while (int(times.size()) < runs && (times.empty() || now() - begin < seconds) && bad < 2) {
    impl->sweep();
    const double t = now();
    impl->run(c.code, params.data());
    times.push_back(now() - t);
    bad += times.back() > hopeless;
  }
  return {median(times), *llvm::min_element(times), *llvm::max_element(times), int(times.size())};
}

SearchResult searchSchedules(const Op &fused, const Target &target, ThreadPool &pool, const SearchLimits &limits) {
  constexpr size_t batch = 8;
  constexpr int runs = 5, rounds = 9;
  SearchResult r;
  const double end = now() + limits.seconds;
  std::vector<Schedule> space = scheduleSpace(fused, target);
  r.candidates = space.size();
  GroupBench bench(fused, target, pool, limits.cold);
  r.trials.push_back(bench.base());
  r.trials[0].time = bench.time(r.trials[0], runs, limits.seconds / 10, HUGE_VAL);
  double best = r.trials[0].time.median;

  // A race needs so long; the search may have the rest.
  const double race = std::min(limits.seconds / 3, 2.0 * finalists * rounds * best);
  auto over = [&](double until) { return now() > until; };
  // The first batch is tried in any case: who begins a search wants more than the default from it.
  for (size_t at = 0; at < space.size() && !(at && over(end - race)); at += batch) {
    for (Trial &t : bench.compile(llvm::ArrayRef(space).slice(at, std::min(batch, space.size() - at)))) {
      if (at && over(end - race))
        break;
      t.outcome = bench.check(t);
      if (t.outcome == Trial::Outcome::timed) {
        t.time = bench.time(t, runs, 0.1, slower * best);
        best = std::min(best, t.time.median);
      }
      r.trials.push_back(std::move(t));
    }
  }

  std::vector<size_t> order;
  for (size_t i = 1; i < r.trials.size(); ++i)
    if (r.trials[i].outcome == Trial::Outcome::timed && r.trials[i].time.median < slower * best)
      order.push_back(i);
  llvm::stable_sort(order, [&](size_t a, size_t b) { return r.trials[a].time.median < r.trials[b].time.median; });
  if (order.size() > finalists)
    order.resize(finalists);
  if (order.empty())
    return r;
  // Each round: the default, every finalist, the default again, whose two times tell what a ratio is worth.
  std::vector<std::vector<double>> ratios(order.size());
  std::vector<double> same;
  for (int round = 0; round < rounds && (round < 3 || !over(end)); ++round) {
    auto once = [&](size_t i) { return bench.time(r.trials[i], 1, 0, HUGE_VAL).median; };
    const double before = once(0);
    std::vector<double> times;
    for (size_t i : order)
      times.push_back(once(i));
    const double after = once(0), base = (before + after) / 2;
    same.push_back(std::abs(after - before) / (2 * base));
    for (size_t i = 0; i < order.size(); ++i)
      ratios[i].push_back(times[i] / base);
  }
  r.noise = median(same);
  r.trials[0].raced = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    Trial &t = r.trials[order[i]];
    t.raced = median(ratios[i]);
    if (t.raced < r.trials[r.best].raced && t.raced < 1 - r.noise)
      r.best = order[i];
  }
  return r;
}

}  // namespace gptc

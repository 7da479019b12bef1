#include "runtime/device/cpu_executor.h"

#include "codegen/cpu/peak.h"
#include "ir/facts.h"
#include "runtime/device/fault_place.h"
#include "runtime/device/profile.h"
#include "runtime/device/waves.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <cstring>
#include <deque>

namespace gptc {

static Collective::Kind kindOf(OpKind kind) {
  switch (kind) {
  case OpKind::all_reduce:
    return Collective::Kind::all_reduce;
  case OpKind::reduce_scatter:
    return Collective::Kind::reduce_scatter;
  case OpKind::all_gather:
    return Collective::Kind::all_gather;
  case OpKind::broadcast_from:
    return Collective::Kind::broadcast;
  default:
    GPTC_UNREACHABLE("'{}' is no collective", nameOf(kind).str());
  }
}

void CpuKernel::Meeting::add(const Meeting &more) {
  if (!more.collectives.empty())
    ranks = more.ranks, order = more.order;
  collectives.insert(collectives.end(), more.collectives.begin(), more.collectives.end());
  paddings.insert(paddings.end(), more.paddings.begin(), more.paddings.end());
  copies.insert(copies.end(), more.copies.begin(), more.copies.end());
}

struct CpuExecutor::Bound {
  const Function *function;
  std::vector<CpuKernel> kernels;
  std::vector<std::byte *> args, results;
  /// Kernels in waves, then one bucket: consecutive collectives with no kernel in between. The bucket may go on beside
  /// the following parts.
  struct Part {
    const Part *after = nullptr;  // its bucket must have ended before this part starts
    std::unique_ptr<Waves> waves;
    CpuKernel::Meeting bucket;
    bool beside = false;
    size_t position = 0;                                               // index among the parts
    mutable int64_t number = 0;                                        // of the bucket, if under way
    std::vector<std::pair<const char *, const char *>> read, written;  // memory of the bucket
  };
  std::deque<Part> parts;
  llvm::DenseMap<const Op *, const Part *> startedBy;

  void add(CpuKernel &kernel, const BoundGroup &group, unsigned threads);
};

/// Appends a kernel whose params are set.
void CpuExecutor::Bound::add(CpuKernel &k, const BoundGroup &g, unsigned threads) {
  auto newPart = [&] {
    Part &part = parts.emplace_back();
    part.waves = std::make_unique<Waves>(threads);
    part.position = parts.size() - 1;
  };
  if (parts.empty() || !g.waitsFor.empty() || parts.back().beside)
    newPart();
  for (const Op *group : g.waitsFor) {
    const Part *started = startedBy.lookup(group);
    // Buckets end in the order in which they started.
    if (const Part *&after = parts.back().after; !after || after->position < started->position)
      after = started;
  }
  if (k.meeting.empty()) {
    if (!parts.back().bucket.empty())
      newPart();
    std::vector<int64_t> bytes;
    for (const Place &p : g.memory)
      bytes.push_back(p.bytes);
    bytes.insert(bytes.end(), k.streams.size(), sizeof(int64_t));
    parts.back().waves->add({&k.code, k.params, bytes, k.op->numOperands()});
    return;
  }
  // The collectives of a bucket must not touch what another one writes.
  const unsigned reads = k.op->numOperands();
  auto range = [&](size_t i) {
    const char *at = static_cast<const char *>(k.params[i]);
    return std::pair(at, at + g.memory[i].bytes);
  };
  auto meets = [&](size_t i, const auto &ranges) {
    return llvm::any_of(ranges, [r = range(i)](auto &o) { return r.first < o.second && o.first < r.second; });
  };
  const CpuKernel::Meeting &before = parts.back().bucket;
  bool apart = (g.beside && !before.empty()) || (!before.collectives.empty() && !k.meeting.collectives.empty() &&
                                                 (before.ranks != k.meeting.ranks || before.order != k.meeting.order));
  for (size_t i = 0; i < g.memory.size(); ++i)
    apart |= meets(i, parts.back().written) || (i >= reads && meets(i, parts.back().read));
  if (apart)
    newPart();
  Part &part = parts.back();
  part.beside = g.beside;
  if (g.beside)
    startedBy[g.op] = &part;
  part.bucket.add(k.meeting);
  for (size_t i = 0; i < g.memory.size(); ++i)
    (i < reads ? part.read : part.written).push_back(range(i));
}

CpuExecutor::CpuExecutor(const Module &planned, const Target &target, const Target &host, Arena &arena,
                         ThreadPool &pool, const std::string &cacheDir)
    : Executor(planned, target, host, pool, cacheDir), arena(arena), binder(module, target, host) {
  GPTC_CHECK(arena.bytes() == fact<&MemoryFacts::arenaBytes>(module), "arena of {} bytes for a plan of {}",
             arena.bytes(), fact<&MemoryFacts::arenaBytes>(module));
}

CpuExecutor::~CpuExecutor() = default;

void CpuExecutor::prepare(llvm::ArrayRef<llvm::StringRef> names) {
  std::vector<std::pair<Bound *, BoundFunction>> pending;
  std::vector<const kir::Kernel *> kernels;
  for (llvm::StringRef name : names) {
    const Function *f = module.function(name);
    if (!f || functions.count(name))
      continue;
    BoundFunction b = binder.bind(*f);
    auto bound = std::make_unique<Bound>();
    bound->function = f;
    for (const Place &p : b.args)
      bound->args.push_back(arena.at(p.at));
    for (const Place &p : b.results)
      bound->results.push_back(arena.at(p.at));
    bound->kernels.reserve(b.groups.size());  // pointers into it are kept
    for (const BoundGroup &g : b.groups) {
      if (!g.lowered->collectives)
        kernels.push_back(&g.lowered->kernel);
      CpuKernel &k = bound->kernels.emplace_back();
      k.name = g.name;
      k.op = g.op;
      k.streams = g.streams;
      for (const Place &p : g.memory)
        k.params.push_back(arena.at(p.at));
      for (int64_t &stream : k.streams)
        k.params.push_back(&stream);
    }
    pending.push_back({bound.get(), std::move(b)});
    functions[name] = std::move(bound);
  }
  std::vector<CompiledKernel> code = jit.compile(kernels);
  size_t next = 0;
  for (auto &[bound, b] : pending)
    for (size_t i = 0; i < b.groups.size(); ++i) {
      CpuKernel &k = bound->kernels[i];
      if (const std::optional<Collectives> &c = b.groups[i].lowered->collectives) {
        k.meeting = meetingOf(k, *c);
      } else {
        k.code = std::move(code[next++]);
      }
      bound->add(k, b.groups[i], pool.size());
    }
}

/// The collectives of a group with their addresses. Each segment of a piece is a separate collective in the bucket.
CpuKernel::Meeting CpuExecutor::meetingOf(const CpuKernel &k, const Collectives &what) {
  CpuKernel::Meeting m;
  m.ranks = along(what.axis);
  m.order = what.tree ? SumOrder::tree : SumOrder::fast;
  GPTC_CHECK(what.ranks == (m.ranks ? m.ranks->world : 1), "{}: {} ranks along {} for a plan of {}", k.name,
             m.ranks ? m.ranks->world : 1, what.axis, what.ranks);
  for (const CollectiveCall &call : what.calls) {
    char *const to = static_cast<char *>(k.params[k.op->numOperands() + call.to]);
    if (call.kind == OpKind::axis_index) {
      m.copies.push_back({&(places[what.axis] = index(what.axis)), to, sizeof(int64_t)});
      continue;
    }
    char *const from = static_cast<char *>(k.params[call.from]);
    const size_t piece = call.count * sizeOf(call.dtype), whole = piece * what.ranks;
    if (call.padding)
      m.paddings.push_back({from + call.paddingFrom * sizeOf(call.dtype), call.padding * sizeOf(call.dtype)});
    for (int64_t s = 0; s < call.segments; ++s) {
      if (call.kind == OpKind::own_part || !m.ranks) {
        m.copies.push_back({from + s * whole + index(what.axis) * piece, to + s * piece, piece});
        continue;
      }
      const bool gathers = call.kind == OpKind::all_gather;
      m.collectives.push_back({kindOf(call.kind), from + s * (gathers ? piece : whole),
                               to + s * (gathers ? whole : piece), size_t(call.count), call.dtype, call.root});
    }
  }
  return m;
}

void CpuExecutor::waitFor(int64_t bucket) {
  if (bucket == 0)
    return;
  background->wait(bucket);
  if (bucket >= underWay)
    underWay = 0;
}

void CpuExecutor::prepareFor(const CpuKernel::Meeting &m) {
  for (const CpuKernel::Meeting::Copy &c : m.copies)
    std::memcpy(c.to, c.from, c.bytes);
  for (auto [at, bytes] : m.paddings)
    std::memset(at, 0, bytes);
}

void CpuExecutor::meet(const CpuKernel::Meeting &m) {
  prepareFor(m);
  if (m.collectives.empty())
    return;
  if (m.ranks == ranks)
    waitFor(underWay);
  m.ranks->run(m.collectives, m.order);
}

const CpuExecutor::Bound &CpuExecutor::bound(llvm::StringRef function) const {
  auto it = functions.find(function);
  GPTC_CHECK(it != functions.end(), "@{} is not prepared", function.str());
  return *it->second;
}

void CpuExecutor::run(llvm::StringRef function, llvm::ArrayRef<const void *> args) {
  if (!functions.count(function))
    prepare(function);
  const Bound &f = bound(function);
  GPTC_CHECK(args.size() == f.args.size(), "@{} takes {} arguments, given {}", function.str(), f.args.size(),
             args.size());
  for (size_t i = 0; i < args.size(); ++i)
    std::memcpy(f.args[i], args[i], f.function->body.args[i]->type.bytes());
  if (!observer) {
    for (const Bound::Part &part : f.parts) {
      if (part.after)
        waitFor(part.after->number);
      part.waves->run(pool);
      part.number = 0;
      // If tensor-parallel ranks wait for each other within the step, a second concurrent communication would only slow
      // it.
      if (!part.beside || part.bucket.ranks != ranks || !ranks->beside() || tensorRanks) {
        meet(part.bucket);
        continue;
      }
      prepareFor(part.bucket);
      if (!background)
        background = std::make_unique<Background>(*ranks);
      underWay = part.number = background->start(part.bucket.collectives, part.bucket.order);
    }
    waitFor(underWay);
    return;
  }
  for (const CpuKernel &k : f.kernels) {
    observer->willRun(k);
    const FaultPlace place(fmt::format("kernel {}, {}", k.name, describe(*k.op)));
    const int64_t begin = monotonicNow();
    for (const CompiledPhase &phase : k.code.phases) {
      WavePhase alone;
      alone.add(phase, k.params.data(), pool.size());
      alone.run(pool);
    }
    meet(k.meeting);
    observer->ran(k, begin, monotonicNow());
  }
}

const void *CpuExecutor::result(llvm::StringRef function, unsigned i) { return bound(function).results.at(i); }

PeakRecord CpuExecutor::peak(llvm::StringRef compute) {
  return peakOfCpu(pool, host, compute == "bf16" ? DType::bf16 : DType::f32, cacheDir);
}

void *CpuExecutor::state(llvm::StringRef name) const {
  const State *s = module.state(name);
  return s ? arena.at(fact<&StateFacts::at>(*s)) : nullptr;
}

}  // namespace gptc

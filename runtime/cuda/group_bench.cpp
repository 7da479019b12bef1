#include "runtime/cuda/group_bench.h"

#include "codegen/cuda/device_text.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/libraries.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/object_cache.h"
#include "codegen/tuner/group_operands.h"
#include "ir/facts.h"
#include "runtime/cuda/cublaslt.h"
#include "support/diagnostics.h"
#include "support/helper_threads.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace gptc::cuda {

namespace {

constexpr char candidateSymbol[] = "candidate";
constexpr size_t redZone = 4096;  // bytes before and after each buffer; keeps the buffer's alignment
constexpr unsigned char redByte = 0xa5, poisonByte = 0xff;
constexpr size_t sweptBytes = 256 << 20;  // more than any GPU's second-level cache

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Guarded {
public:
  Guarded(const Gpu &gpu, size_t bytes) : gpu(gpu), bytes(bytes), memory(gpu, bytes + 2 * redZone) { paint(); }
  DevicePtr at() const { return memory.at + redZone; }
  void fill(unsigned char c) const { gpu.d.check(gpu.d.memsetBytes(at(), c, bytes, gpu.stream), "cuMemsetD8Async"); }
  void put(const std::vector<std::byte> &from) const {
    gpu.d.check(gpu.d.copyToDevice(at(), from.data(), bytes, gpu.stream), "cuMemcpyHtoDAsync");
    gpu.wait();
  }
  std::vector<std::byte> get() const { return fetch(at(), bytes); }
  void paint() const {
    for (DevicePtr p : {memory.at, at() + bytes})
      gpu.d.check(gpu.d.memsetBytes(p, redByte, redZone, gpu.stream), "cuMemsetD8Async");
  }
  bool intact() const {
    for (DevicePtr p : {memory.at, at() + bytes})
      if (llvm::any_of(fetch(p, redZone), [](std::byte c) { return c != std::byte(redByte); }))
        return false;
    return true;
  }
  const Gpu &gpu;
  const size_t bytes;

private:
  std::vector<std::byte> fetch(DevicePtr from, size_t n) const {
    std::vector<std::byte> all(n);
    gpu.d.check(gpu.d.copyToHost(all.data(), from, n, gpu.stream), "cuMemcpyDtoHAsync");
    gpu.wait();
    return all;
  }
  DeviceMemory memory;
};

/// NVRTC's reason to reject the code; "" if there is none.
std::string complaint(const CompiledCuda &c) {
  if (c.spilledBytes)
    return fmt::format("{} bytes of registers are spilled", c.spilledBytes);
  for (const char *serialized : {"C7508", "C7510"})  // serialised wgmma
    if (c.log.find(serialized) != std::string::npos)
      return fmt::format("the compiler has serialized wgmma ({})", serialized);
  return "";
}

}  // namespace

std::string fingerprintOf(const Gpu &gpu, const Target &target) {
  auto version = [](CudaLibraryId id) {
    const CudaLibrary &l = CudaLibrary::find(id);
    return l ? l.version.str() : "none";
  };
  return fmt::format("{} {} {} multiprocessors driver {} nvrtc {} cublaslt {} calls {}", gpu.name, target.cpu,
                     gpu.multiprocessors, version(CudaLibraryId::driver), version(CudaLibraryId::nvrtc),
                     version(CudaLibraryId::cublasLt), target.features.empty() ? "none" : target.features);
}

std::string fingerprintHere(const Target &target) {
  try {
    return fingerprintOf(Gpu(target), target);
  } catch (const UserError &) {
    return "";
  }
}

std::string sourceOf(const LoweredGroup &lowered, const Schedule &s, const Target &target, const std::string &machine) {
  const std::string text = s.library
                               ? fmt::format("cublaslt {} {} {}", machine, s.algorithm, kir::print(lowered.kernel))
                               : emitCuda(lowered.kernel, candidateSymbol).text + cudaDeviceLayer() + target.cpu +
                                     CudaLibrary::get(CudaLibraryId::nvrtc).version.str();
  return contentHash({{text.data(), text.size()}});
}

struct GroupBench::Impl {
  const Gpu &gpu;
  const Op &fused;
  const Target target;
  ThreadPool &pool;
  const std::string machine;
  std::vector<std::unique_ptr<Guarded>> memory;  // operands and results
  std::vector<std::unique_ptr<Guarded>> workspaces;
  std::vector<std::unique_ptr<Guarded>> streams;
  std::vector<std::vector<std::byte>> wanted;  // expected results
  std::unique_ptr<DeviceMemory> swept;
  EventHandle begin, end;
  LtHandle library = nullptr;
  Trial base;
  struct Candidate {
    LoweredGroup lowered;
    CudaKernel text;
    LoadedModule module = nullptr;
    std::vector<LoadedFunction> functions;
    std::unique_ptr<MatmulCall> call;
    unsigned algorithm = 0;
  };
  std::map<std::string, Candidate> candidates;  // by schedule text
  std::set<std::string> sources;

  Impl(const Gpu &gpu, const Op &fused, const Target &target, ThreadPool &pool, bool cold)
      : gpu(gpu), fused(fused), target(target), pool(pool), machine(fingerprintOf(gpu, target)),
        begin(gpu, eventDefault), end(gpu, eventDefault) {
    for (unsigned i = 0; i < fused.numOperands() + fused.numResults(); ++i) {
      const Value *v = i < fused.numOperands() ? fused.operand(i) : fused.result(i - fused.numOperands());
      memory.push_back(std::make_unique<Guarded>(gpu, size_t(v->type.bytes())));
      if (i < fused.numOperands())
        memory.back()->put(operand(i));
    }
    for (size_t i = 0; i < streamsOf(fused).size(); ++i) {
      const int64_t number = 3;
      std::vector<std::byte> bytes(sizeof number);
      std::memcpy(bytes.data(), &number, sizeof number);
      streams.push_back(std::make_unique<Guarded>(gpu, bytes.size()));
      streams.back()->put(bytes);
    }
    if (cold && gpu.available() > 4 * sweptBytes)
      swept = std::make_unique<DeviceMemory>(gpu, sweptBytes);
  }
  ~Impl() {
    gpu.d.streamSynchronize(gpu.stream);
    for (auto &[text, c] : candidates) {
      if (c.module)
        gpu.d.moduleUnload(c.module);
      c.call.reset();
    }
    if (library)
      CublasLt::get().destroy(library);
  }

  std::vector<std::byte> operand(unsigned i) const {
    std::vector<std::byte> bytes(size_t(fused.operand(i)->type.bytes()));
    fillOperand(fused, i, bytes.data(), pool, kindOf(fused) == RecipeKind::matmul);
    return bytes;
  }

  const Candidate &of(const Trial &t) const { return candidates.at(t.schedule.str()); }

  std::vector<DevicePtr> params(const LoweredGroup &g) {
    std::vector<DevicePtr> all;
    for (const auto &m : memory)
      all.push_back(m->at());
    for (size_t i = 0; i < g.workspaceBytes.size(); ++i) {
      if (workspaces.size() <= i)
        workspaces.emplace_back();
      if (!workspaces[i] || workspaces[i]->bytes != size_t(g.workspaceBytes[i]))
        workspaces[i] = std::make_unique<Guarded>(gpu, size_t(g.workspaceBytes[i]));
      all.push_back(workspaces[i]->at());
    }
    for (const auto &s : streams)
      all.push_back(s->at());
    return all;
  }

  /// The library's call. The library chooses its memory among ours.
  std::unique_ptr<MatmulCall> callOf(const LoweredGroup &g) {
    if (!library)
      CublasLt::get().check(CublasLt::get().create(&library), "cublasLtCreate");
    const std::vector<DevicePtr> all = params(g);
    return std::make_unique<MatmulCall>(library, *g.call, all, workspaces.back()->at(), workspaces.back()->bytes);
  }

  /// False if the library refuses.
  bool launch(const Candidate &c) {
    if (c.call)
      return c.call->tryEnqueue(gpu.stream, c.algorithm) == ltSuccess;
    const std::vector<DevicePtr> all = params(c.lowered);
    std::vector<void *> pointers;
    for (const DevicePtr &p : all)
      pointers.push_back(const_cast<DevicePtr *>(&p));
    for (size_t i = 0; i < c.functions.size(); ++i) {
      const CudaPhase &p = c.text.phases[i];
      gpu.d.check(gpu.d.launchKernel(c.functions[i], unsigned(p.blocks), 1, 1, unsigned(p.threads), 1, 1,
                                     unsigned(p.sharedBytes), gpu.stream, pointers.data(), nullptr),
                  "a candidate");
    }
    return true;
  }

  void poison() {
    for (size_t i = fused.numOperands(); i < memory.size(); ++i)
      memory[i]->fill(poisonByte);
    for (const auto &w : workspaces)
      w->fill(poisonByte);
  }

  /// Whether only results and workspaces were written. Restores what else was.
  bool intact() {
    bool all = true;
    for (auto *list : {&memory, &workspaces, &streams})
      for (const auto &m : *list)
        if (!m->intact()) {
          all = false;
          m->paint();
        }
    for (unsigned i = 0; i < fused.numOperands(); ++i)
      if (std::vector<std::byte> is = operand(i); memory[i]->get() != is) {
        all = false;
        memory[i]->put(is);
      }
    return all;
  }

  /// Loads compiled code as functions of the GPU.
  void load(Candidate &c, const CompiledCuda &code) {
    gpu.d.check(gpu.d.moduleLoadData(&c.module, code.cubin.data()), "cuModuleLoadData");
    for (const CudaPhase &p : c.text.phases) {
      LoadedFunction f = nullptr;
      gpu.d.check(gpu.d.moduleGetFunction(&f, c.module, p.symbol.c_str()), "cuModuleGetFunction");
      if (p.sharedBytes)
        gpu.d.check(gpu.d.functionSetAttribute(f, functionMaxDynamicShared, int(p.sharedBytes)), "cuFuncSetAttribute");
      c.functions.push_back(f);
    }
  }
};

GroupBench::GroupBench(const Gpu &gpu, const Op &fused, const Target &target, ThreadPool &pool, bool cold)
    : impl(std::make_unique<Impl>(gpu, fused, target, pool, cold)) {
  Schedule s = defaultSchedule(fused, target);
  if (s.library && (!matchCublasLtMatmul(fused) || !CudaLibrary::find(CudaLibraryId::cublasLt)))
    s.library = false;  // attention by cuDNN has no other candidates
  impl->base = propose({s}).at(0);
  build({&impl->base});
  GPTC_CHECK(impl->base.outcome == Trial::Outcome::timed, "the default kernel of {}: {}", fused.loc, impl->base.why);
  impl->poison();
  impl->launch(impl->of(impl->base));
  impl->gpu.wait();
  GPTC_CHECK(impl->intact(), "the default kernel of {} writes outside of its memory", fused.loc);
  for (unsigned i = 0; i < fused.numResults(); ++i)
    impl->wanted.push_back(impl->memory[fused.numOperands() + i]->get());
}

GroupBench::~GroupBench() = default;

const Trial &GroupBench::base() const { return impl->base; }

std::vector<Schedule> GroupBench::space() const {
  std::vector<Schedule> all;
  if (const auto &call = impl->of(impl->base).call)
    for (unsigned i = 1; i < call->algorithms(); ++i) {
      all.push_back(impl->base.schedule);
      all.back().algorithm = call->nameOf(i);
    }
  llvm::append_range(all, scheduleSpace(impl->fused, impl->target));
  return all;
}

std::vector<Trial> GroupBench::propose(llvm::ArrayRef<Schedule> candidates) {
  std::vector<Trial> trials;
  for (const Schedule &s : candidates) {
    Trial t;
    t.schedule = s;
    try {
      Impl::Candidate c;
      c.lowered = lowerGroup(impl->fused, s, impl->target);
      if (!s.library)
        c.text = emitCuda(c.lowered.kernel, candidateSymbol);
      t.source = sourceOf(c.lowered, s, impl->target, impl->machine);
      if (!impl->sources.insert(t.source).second)
        continue;
      impl->candidates[s.str()] = std::move(c);
    } catch (const InternalError &e) {
      t.outcome = Trial::Outcome::notCompiled;
      t.why = e.what();
    }
    trials.push_back(std::move(t));
  }
  return trials;
}

void GroupBench::build(llvm::ArrayRef<Trial *> trials) {
  std::vector<CompiledCuda> code(trials.size());
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::atomic<bool> failed = false;
  withHelpers(std::min<size_t>(impl->pool.size(), trials.size()), [&](size_t) {
    for (size_t i; (i = next++) < trials.size();) {
      Trial &t = *trials[i];
      if (t.schedule.library)
        continue;
      const double start = now();
      try {
        code[i] = Nvrtc::get().compile(impl->of(t).text.text, impl->target);
        t.registers = code[i].registers;
        if (t.why = complaint(code[i]); !t.why.empty())
          t.outcome = Trial::Outcome::spills;
      } catch (const CudaRejected &e) {
        t.outcome = Trial::Outcome::notCompiled;
        t.why = e.log;
      } catch (...) {
        if (!failed.exchange(true))
          error = std::current_exception();
      }
      t.compileSeconds = now() - start;
    }
  });
  if (error)
    std::rethrow_exception(error);
  for (size_t i = 0; i < trials.size(); ++i) {
    Trial &t = *trials[i];
    Impl::Candidate &c = impl->candidates.at(t.schedule.str());
    if (t.outcome != Trial::Outcome::timed)
      continue;
    if (t.schedule.library) {
      c.call = impl->callOf(c.lowered);
      const std::optional<unsigned> named = t.schedule.algorithm ? c.call->find(t.schedule.algorithm) : 0;
      if (!named || *named >= c.call->algorithms()) {
        t.outcome = Trial::Outcome::notCompiled;
        t.why = "cuBLASLt proposes no such algorithm";
      }
      c.algorithm = named.value_or(0);
    } else if (llvm::any_of(c.text.phases, [&](const CudaPhase &p) { return p.sharedBytes > impl->gpu.sharedBytes; })) {
      t.outcome = Trial::Outcome::notCompiled;
      t.why = "more shared memory than the GPU's blocks have";
    } else {
      impl->load(c, code[i]);
    }
  }
}

Trial::Outcome GroupBench::check(const Trial &trial, double seconds) {
  const Impl::Candidate &c = impl->of(trial);
  if (!c.call)
    impl->params(c.lowered);  // also poisons the candidate's workspaces
  impl->poison();
  impl->gpu.wait();
  const double start = now();
  if (!impl->launch(c))
    return Trial::Outcome::notCompiled;
  impl->gpu.wait();
  const double took = now() - start;
  if (!impl->intact())
    return Trial::Outcome::wroteOutside;
  for (size_t i = 0; i < impl->wanted.size(); ++i)
    if (impl->memory[impl->fused.numOperands() + i]->get() != impl->wanted[i])
      return Trial::Outcome::wrongBits;
  return took > seconds ? Trial::Outcome::tooSlow : Trial::Outcome::timed;
}

Timing GroupBench::time(const Trial &trial, int runs, double seconds, double hopeless) {
  const Impl::Candidate &c = impl->of(trial);
  const Gpu &gpu = impl->gpu;
  std::vector<double> times;
  const double start = now();
  int bad = 0;
  while (int(times.size()) < runs && (times.empty() || now() - start < seconds) && bad < 2) {
    if (impl->swept)
      gpu.d.check(gpu.d.memsetBytes(impl->swept->at, 0, sweptBytes, gpu.stream), "cuMemsetD8Async");
    gpu.d.check(gpu.d.eventRecord(impl->begin.event, gpu.stream), "cuEventRecord");
    impl->launch(c);
    gpu.d.check(gpu.d.eventRecord(impl->end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&ms, impl->begin.event, impl->end.event), "cuEventElapsedTime");
    times.push_back(1e-3 * std::max(double(ms), 1e-4));
    bad += times.back() > hopeless;
  }
  return timingOf(std::move(times));
}

}  // namespace gptc::cuda

#include "runtime/cpu_executor.h"

#include "codegen/peak.h"
#include "ir/diagnostics.h"
#include "runtime/waves.h"

#include <cstring>

namespace gptc {

struct CpuExecutor::Bound {
  const Function *function;
  std::vector<CpuKernel> kernels;
  std::vector<std::byte *> args, results;
  std::unique_ptr<Waves> waves;  // of the same kernels
};

CpuExecutor::CpuExecutor(const Module &planned, const Target &target, const Target &host, Arena &arena,
                         ThreadPool &pool, const std::string &cacheDir)
    : Executor(planned, target, host, pool, cacheDir), arena(arena), binder(module, target) {
  GPTC_CHECK(arena.bytes() == module.attrs.getInt("arena_bytes"), "arena of {} bytes for a plan of {}", arena.bytes(),
             module.attrs.getInt("arena_bytes"));
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
    bound->kernels.reserve(b.groups.size());  // they are pointed into
    for (const BoundGroup &g : b.groups) {
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
  for (auto &[bound, b] : pending) {
    bound->waves = std::make_unique<Waves>(pool.size());
    for (size_t i = 0; i < b.groups.size(); ++i) {
      CpuKernel &k = bound->kernels[i];
      k.code = std::move(code[next++]);
      std::vector<int64_t> bytes;
      for (const Place &p : b.groups[i].memory)
        bytes.push_back(p.bytes);
      bytes.insert(bytes.end(), k.streams.size(), sizeof(int64_t));
      bound->waves->add({&k.code, k.params, bytes, k.op->numOperands()});
    }
  }
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
  if (!observer)
    return f.waves->run(pool);
  for (const CpuKernel &k : f.kernels) {
    const int64_t begin = monotonicNow();
    for (const CompiledPhase &phase : k.code.phases) {
      WavePhase alone;
      alone.add(phase, k.params.data(), pool.size());
      alone.run(pool);
    }
    observer->ran(k, begin, monotonicNow());
  }
}

const void *CpuExecutor::result(llvm::StringRef function, unsigned i) { return bound(function).results.at(i); }

double CpuExecutor::peakFlops(llvm::StringRef compute) {
  return measurePeakFlops(pool, host, compute == "bf16" ? DType::bf16 : DType::f32);
}

void *CpuExecutor::state(llvm::StringRef name) const {
  const State *s = module.state(name);
  return s ? arena.at(s->attrs.getInt("at")) : nullptr;
}

}  // namespace gptc

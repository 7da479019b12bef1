#include "runtime/executor.h"

#include "ir/diagnostics.h"
#include "ir/plan_check.h"
#include "runtime/plan.h"
#include "runtime/waves.h"

#include <chrono>
#include <cstring>

namespace gptc {

int64_t monotonicNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

[[noreturn]] void damaged(const std::string &what) {
  throw UserError(ErrorCode::PlanDamaged, what, "compile it again with this version's `gptc compile`");
}

}  // namespace

struct Executor::Bound {
  const Function *function;
  std::vector<BoundKernel> kernels;
  std::vector<std::byte *> args, results;
  std::unique_ptr<Waves> waves;  // of the same kernels
};

Executor::Executor(const Module &planned, const Target &planTarget, const Target &host, Arena &arena, ThreadPool &pool,
                   const std::string &cacheDir)
    : module(planned), planTarget(planTarget), arena(arena), pool(pool), jit(host, cacheDir) {
  GPTC_CHECK(arena.bytes() == module.attrs.getInt("arena_bytes"), "arena of {} bytes for a plan of {}", arena.bytes(),
             module.attrs.getInt("arena_bytes"));
}

Executor::~Executor() = default;

std::byte *Executor::place(const Function &f, const Value *v) const {
  std::optional<int64_t> at = plannedOffset(module, f, *v);
  GPTC_CHECK(at && *at >= 0 && *at + v->type.bytes() <= arena.bytes(), "a value of @{} has no place", f.name);
  return arena.at(*at);
}

void Executor::prepare(llvm::ArrayRef<llvm::StringRef> names) {
  // Layers differ in names only: equal groups are lowered once.
  llvm::StringMap<LoweredGroup> lowered;
  struct Pending {
    Bound *bound;
    std::vector<const LoweredGroup *> groups;
    std::vector<std::vector<int64_t>> bytes;  // of each kernel's parameters
  };
  std::vector<Pending> pending;
  const std::vector<PlannedKernel> all = kernelsOf(module);
  for (llvm::StringRef name : names) {
    const Function *f = module.function(name);
    if (!f || functions.count(name))
      continue;
    auto bound = std::make_unique<Bound>();
    bound->function = f;
    for (const auto &a : f->body.args)
      bound->args.push_back(place(*f, a.get()));
    for (Value *v : f->body.back()->operands())
      bound->results.push_back(place(*f, v));
    Pending p{bound.get(), {}, {}};
    for (const PlannedKernel &k : all) {
      if (k.op->parent() != &f->body)
        continue;
      Schedule schedule;
      if (!Schedule::parse(k.schedule, schedule))
        damaged(fmt::format("kernel {} has no valid schedule: {}", k.name, k.schedule));
      auto [known, isNew] = lowered.try_emplace(groupKey(*k.op));
      LoweredGroup &g = known->second;
      if (isNew) {
        try {
          g = lowerGroup(*k.op, schedule, planTarget);
        } catch (const InternalError &e) {
          // A plan comes from outside: what it asks for may be nonsense without our being wrong.
          damaged(fmt::format("kernel {} cannot be built: {}", k.name, e.what()));
        }
        if (auto problems = kir::verify(g.kernel); !problems.empty())
          damaged(fmt::format("kernel {} cannot be built: {}", k.name, problems[0]));
      }
      if (g.workspaceBytes != k.op->attrs.getInts("ws"))
        damaged(fmt::format("kernel {} was planned with other workspaces than this version needs", k.name));
      BoundKernel b{k.name, k.op, {}, {}, streamsOf(*k.op)};
      std::vector<int64_t> bytes;
      auto bind = [&](std::byte *at, int64_t size) {
        b.params.push_back(at);
        bytes.push_back(size);
      };
      for (Value *v : k.op->operands())
        bind(place(*f, v), v->type.bytes());
      for (unsigned i = 0; i < k.op->numResults(); ++i)
        bind(place(*f, k.op->result(i)), k.op->result(i)->type.bytes());
      std::vector<int64_t> wsAt = k.op->attrs.getInts("ws_at");
      for (size_t i = 0; i < wsAt.size(); ++i)
        bind(arena.at(wsAt[i]), i < g.workspaceBytes.size() ? g.workspaceBytes[i] : 0);
      for (int64_t &stream : b.streams)
        bind(reinterpret_cast<std::byte *>(&stream), sizeof stream);
      // What the kernel may touch must be what the plan set aside for it.
      bool fits = bytes.size() == g.kernel.params.size();
      for (size_t i = 0; fits && i < bytes.size(); ++i)
        fits = g.kernel.params[i]->size * sizeOf(g.kernel.params[i]->dtype) <= bytes[i];
      if (!fits)
        damaged(fmt::format("the places of kernel {} do not fit its parameters", k.name));
      bound->kernels.push_back(std::move(b));
      p.groups.push_back(&g);
      p.bytes.push_back(std::move(bytes));
    }
    pending.push_back(std::move(p));
    functions[name] = std::move(bound);
  }
  std::vector<const kir::Kernel *> kernels;
  for (const Pending &p : pending)
    for (const LoweredGroup *g : p.groups)
      kernels.push_back(&g->kernel);
  std::vector<CompiledKernel> code = jit.compile(kernels);
  size_t next = 0;
  for (Pending &p : pending) {
    p.bound->waves = std::make_unique<Waves>(pool.size());
    for (size_t i = 0; i < p.groups.size(); ++i) {
      BoundKernel &k = p.bound->kernels[i];
      k.code = std::move(code[next++]);
      p.bound->waves->add({&k.code, k.params, p.bytes[i], k.op->numOperands()});
    }
  }
}

CompiledKernel Executor::compile(const kir::Kernel &kernel) { return std::move(jit.compile(&kernel)[0]); }

const Executor::Bound &Executor::bound(llvm::StringRef function) const {
  auto it = functions.find(function);
  GPTC_CHECK(it != functions.end(), "@{} is not prepared", function.str());
  return *it->second;
}

void Executor::run(llvm::StringRef function, llvm::ArrayRef<const void *> args) {
  if (!functions.count(function))
    prepare(function);
  const Bound &f = bound(function);
  GPTC_CHECK(args.size() == f.args.size(), "@{} takes {} arguments, given {}", function.str(), f.args.size(),
             args.size());
  for (size_t i = 0; i < args.size(); ++i)
    std::memcpy(f.args[i], args[i], f.function->body.args[i]->type.bytes());
  if (!observer)
    return f.waves->run(pool);
  for (const BoundKernel &k : f.kernels) {
    const int64_t begin = monotonicNow();
    for (const CompiledPhase &phase : k.code.phases) {
      WavePhase alone;
      alone.add(phase, k.params.data(), pool.size());
      alone.run(pool);
    }
    observer->ran(k, begin, monotonicNow());
  }
}

const void *Executor::result(llvm::StringRef function, unsigned i) const { return bound(function).results.at(i); }
const Type &Executor::argType(llvm::StringRef function, unsigned i) const {
  return module.function(function)->body.args.at(i)->type;
}

void *Executor::state(llvm::StringRef name) const {
  const State *s = module.state(name);
  return s ? arena.at(s->attrs.getInt("at")) : nullptr;
}

}  // namespace gptc

#include "runtime/device/binding.h"

#include "ir/facts.h"
#include "ir/plan_check.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/DenseSet.h"

#include <utility>

namespace gptc {

[[noreturn]] static void damaged(const std::string &what) {
  throw UserError(ErrorCode::PlanDamaged, what, "compile it again with this version's `gptc compile`");
}

Place Binder::place(const Function &f, const Value *v) const {
  std::optional<int64_t> at = plannedOffset(module, f, *v);
  const bool onHost = target.isCuda() && at && *at >= hostArena;
  GPTC_CHECK(at && *at >= 0 &&
                 (onHost ? *at - hostArena + v->type.bytes() <= fact<&MemoryFacts::hostBytes>(module)
                         : *at + v->type.bytes() <= fact<&MemoryFacts::arenaBytes>(module)),
             "a value of @{} has no place", f.name);
  return {*at, v->type.bytes()};
}

const LoweredGroup &Binder::lower(const Op &op, const std::string &name) {
  // Layers differ only in names.
  std::unique_ptr<LoweredGroup> &g = lowered[groupKey(op)];
  if (g)
    return *g;
  Schedule schedule;
  if (const std::string text = fact<&GroupFacts::schedule>(op); !Schedule::parse(text, schedule))
    damaged(fmt::format("kernel {} has no valid schedule: {}", name, text));
  try {
    g = std::make_unique<LoweredGroup>(lowerGroup(op, schedule, runsOnHost(op) ? host : target));
  } catch (const InternalError &e) {
    // A plan comes from outside: a nonsensical request is no fault of ours.
    damaged(fmt::format("kernel {} cannot be built: {}", name, withoutPlaces(e.what())));
  }
  if (auto problems = kir::verify(g->kernel); !problems.empty())
    damaged(fmt::format("kernel {} cannot be built: {}", name, problems[0]));
  return *g;
}

BoundFunction Binder::bind(const Function &f) {
  BoundFunction bound{&f, {}, {}, {}};
  for (const auto &a : f.body.args)
    bound.args.push_back(place(f, a.get()));
  for (Value *v : f.body.back()->operands())
    bound.results.push_back(place(f, v));
  llvm::DenseMap<const Op *, std::vector<const Op *>> waits;
  llvm::DenseSet<const Op *> beside;
  std::vector<const Op *> pending;
  for (const Op &op : f.body)
    if (op.is(OpKind::done)) {
      pending.push_back(op.operand(0)->def);
      beside.insert(pending.back());
    } else if (op.is(OpKind::fused)) {
      waits[&op] = std::exchange(pending, {});
    }
  for (const PlannedKernel &k : kernelsOf(module)) {
    if (k.op->parent() != &f.body)
      continue;
    const LoweredGroup &g = lower(*k.op, k.name);
    if (g.workspaceBytes != fact<&GroupFacts::ws>(*k.op))
      damaged(fmt::format("kernel {} was planned with other workspaces than this version needs", k.name));
    BoundGroup b{k.name, k.op, &g, beside.contains(k.op), waits[k.op], {}, streamsOf(*k.op)};
    for (Value *v : k.op->operands())
      b.memory.push_back(place(f, v));
    for (unsigned i = 0; i < k.op->numResults(); ++i)
      b.memory.push_back(place(f, k.op->result(i)));
    const std::vector<int64_t> wsAt = fact<&GroupFacts::wsAt>(*k.op);
    for (size_t i = 0; i < wsAt.size(); ++i)
      b.memory.push_back({wsAt[i], i < g.workspaceBytes.size() ? g.workspaceBytes[i] : 0});
    // The kernel's parameters must match the memory that the plan reserved.
    const auto &params = g.kernel.params;
    bool fits = params.size() == b.memory.size() + b.streams.size();
    for (size_t i = 0; fits && i < params.size(); ++i)
      fits = params[i]->size * int64_t(sizeOf(params[i]->dtype)) <=
             (i < b.memory.size() ? b.memory[i].bytes : int64_t(sizeof(int64_t)));
    if (!fits)
      damaged(fmt::format("the places of kernel {} do not fit its parameters", k.name));
    bound.groups.push_back(std::move(b));
  }
  return bound;
}

}  // namespace gptc

// Keeps the optimizer's states in the memory of the host (ZeRO-Offload, Ren et al. 2021). With the module attribute
// offload = "optimizer" the host updates the parameters.
//
//   1. A group that updates a parameter (fuse merges it with no other op) gets the attribute `host` and runs on the
//      host.
//   2. A parameter or moment whose old and new content no other group reads, in any function, lies in the host's memory
//      (attribute memory = "host"): the moments, and master weights if the GPU reads low copies of them. The other
//      operands and results of these groups are transferred: the gradient of each parameter to the host, its new
//      weights to the GPU.
//   3. All ops that need no result of the host's groups move before them, except those that replace a content that the
//      host's groups read. So a function has three parts: for the GPU, for the host, and for the GPU.
//
// The bits equal those of updates on the GPU, as the expressions of elements are the same. Runs after fuse, whose
// groups it marks, and before remat, which must know what the GPU's memory holds.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

namespace gptc {

namespace {

bool isUpdate(const Op &op) {
  if (!op.is(OpKind::fused) || kindOf(op) != RecipeKind::pointwise)
    return false;
  for (const Op &member : *op.body)
    if (updatesParameter(member))
      return true;
  return false;
}

/// The name of the state of which the value is the content, possibly through views; "" if there is none.
std::string contentOf(Value *v) {
  const Op *def = rootOf(v)->def;
  return def && def->is(OpKind::read) ? def->state : "";
}

/// Whether an op that does not run on the host, other than a write, uses the value or a view of it.
bool usedByGpu(const Value &v) {
  return llvm::any_of(v.users(), [](const Op *user) {
    if (user->isOneOf(OpKind::reshape, OpKind::done))
      return usedByGpu(*user->result());
    return !user->is(OpKind::write) && !runsOnHost(*user);
  });
}

/// Step 2: the names of states whose contents only host groups read and write.
llvm::StringSet<> statesOfUpdates(Module &m) {
  llvm::StringSet<> touched, others;
  for (auto &f : m.functions)
    for (Op &op : f->body) {
      if (op.isOneOf(OpKind::read, OpKind::reshape, OpKind::done))
        continue;
      const bool update = runsOnHost(op);
      for (Value *v : op.operands())
        if (const std::string state = contentOf(v); !state.empty())
          (update ? touched : others).insert(state);
      if (op.is(OpKind::write)) {
        const Value *value = rootOf(op.operand(0));
        (value->def && runsOnHost(*value->def) && !usedByGpu(*value) ? touched : others).insert(op.state);
      }
    }
  llvm::StringSet<> only;
  for (const auto &s : touched)
    if (!others.contains(s.getKey()))
      only.insert(s.getKey());
  return only;
}

/// Step 3.
class Sinker {
public:
  explicit Sinker(Function &f) {
    for (Op &op : f.body)
      ops.push_back(&op);
  }
  void run() {
    if (llvm::none_of(ops, [](const Op *op) { return runsOnHost(*op); }))
      return;
    // Finds the ops on which the host's groups depend. They stay before these groups.
    for (Op *op : llvm::reverse(ops))
      if (runsOnHost(*op) || needed.contains(op))
        for (const Value *v : op->operands())
          needed.insert(v->def);
    for (const Op *op : ops)
      if (runsOnHost(*op))
        behind.insert(op);
    while (grow())
      continue;
    Op *const ret = ops.back();
    for (int part : {0, 1, 2})
      for (Op *op : ops)
        if (op != ret && partOf(*op) == part)
          op->moveBefore(ret);
  }

private:
  std::vector<Op *> ops;
  llvm::DenseSet<const Op *> needed, behind;

  int partOf(const Op &op) const { return runsOnHost(op) ? 1 : behind.contains(&op) ? 2 : 0; }

  /// Adds to `behind` the ops that use a result of its ops, and the groups that replace a content that its ops use.
  /// Returns whether there were any.
  bool grow() {
    const size_t before = behind.size();
    llvm::StringMap<const Op *> written;
    llvm::StringSet<> used;  // states whose content an op of `behind` uses
    for (Op *op : ops)
      if (behind.contains(op))
        for (Value *v : op->operands())
          if (const std::string state = contentOf(v); !state.empty())
            used.insert(state);
    for (Op *op : ops) {
      if (llvm::any_of(op->operands(), [&](const Value *v) { return behind.contains(v->def); }) ||
          (op->is(OpKind::read) && behind.contains(written.lookup(op->state))))
        behind.insert(op);
      if (!op->is(OpKind::write))
        continue;
      written[op->state] = op;
      const Op *by = rootOf(op->operand(0))->def;
      if (used.contains(op->state) && by && by->is(OpKind::fused) && !needed.contains(by))
        behind.insert(by);
    }
    return behind.size() > before;
  }
};

}  // namespace

bool offload(Module &m, const PassOptions &) {
  if (fact<&CompileFacts::offload>(m) == Offload::none)
    return false;
  if (fact<&OptimizerFacts::optimizer>(m) == OptimizerKind::adafactor)
    throw UserError(ErrorCode::NotBuiltYet, "adafactor on the host is not built yet",
                    "leave the module's attribute offload out");
  int groups = 0;
  for (auto &f : m.functions)
    for (Op &op : f->body)
      if (isUpdate(op)) {
        setFact<&GroupFacts::host>(op, true);
        ++groups;
      }
  const llvm::StringSet<> states = statesOfUpdates(m);
  int64_t bytes = 0;
  for (auto &s : m.states)
    if (const auto kind = kindOf(*s);
        (kind == StateKind::param || kind == StateKind::moment) && states.contains(s->name)) {
      setFact<&StateFacts::memory>(*s, Memory::host);
      bytes += s->type.bytes();
    }
  for (auto &f : m.functions)
    Sinker(*f).run();
  record(m, {"offload",
             "optimizer",
             fmt::format("{} updates by the host", groups),
             {.memory = -double(bytes)},
             "moments, and master weights that the GPU does not read, are in the host's memory",
             {}});
  return true;
}

}  // namespace gptc

// The optimizer's states in the host's memory, where a GPU's does not suffice (ZeRO-Offload, Ren et al. 2021): with the
// module attribute offload = "optimizer", parameters are updated by the host.
//
//   1. A group that updates a parameter (fuse leaves these alone) is the host's: it gets the attribute `host`.
//   2. A parameter or moment whose old and new content no other group reads, in any function, lies in the host's memory
//      (attribute memory = "host"): the moments, and master weights of which the GPU reads low copies. What else such a
//      group takes comes over, and what else it makes goes back: a gradient for each parameter, and its new weights.
//   3. All that needs no result of the host's groups moves before them, but for what replaces a state's content that
//      they read: so the function is a part for the GPU, one for the host, and one for the GPU again.
//
// The bits are those of updates on the GPU, as elements are the same expressions. Behind fuse, whose groups it marks;
// before remat, which must know what the GPU holds.
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

/// The state whose content a value is, "" where it is none's.
std::string contentOf(Value *v) {
  const Op *def = rootOf(v)->def;
  return def && def->is(OpKind::read) ? def->state : "";
}

/// Whether a value, or a view of it, is an operand of what is not the host's.
bool usedByGpu(const Value &v) {
  return llvm::any_of(v.users(), [](const Op *user) {
    if (user->isOneOf(OpKind::reshape, OpKind::done))
      return usedByGpu(*user->result());
    return !user->is(OpKind::write) && !runsOnHost(*user);
  });
}

/// Step 2: those that only updates touch.
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
    // What the host's groups need stays before them.
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

  /// One round: what uses something that has moved, and what replaces a content of which there is such a use.
  bool grow() {
    const size_t before = behind.size();
    llvm::StringMap<const Op *> written;
    llvm::StringSet<> used;  // contents, by what has moved
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

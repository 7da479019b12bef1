// Gives groups of a GPU's plan that stand behind each other and do not depend on each other one launch, as horizontal
// fusion does in XLA. Updates of parameters and norms of gradients are many and small: alone, none fills the GPU, and
// each costs the time from one kernel to the next.
//
//   1. Candidates are groups of the recipe reduce_all, and pointwise groups that update parameters or whose results are
//      all written to states, as zeros are to sums of gradients.
//   2. A run of candidates of one recipe, with no other group between, gets one number, the attribute `launch`. The run
//      ends before a group that reads what one of the run computes, and before one of two groups of which one reads the
//      content of a state and the other replaces it.
//
// Groups keep their order, operands and results. plan-memory lets all that a launch touches live at the same time, so
// that workspaces do not share memory. Runs last before plan-memory: each pass between would have to know of launches.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringSet.h"

namespace gptc {

namespace {

/// By value, the state to which it is written.
using Written = llvm::DenseMap<const Value *, llvm::StringRef>;

bool isCandidate(const Op &op, const Written &written) {
  if (!op.is(OpKind::fused) || !mayStartTogether(op))
    return false;
  if (kindOf(op) == RecipeKind::reduce_all)
    return true;
  for (const Op &member : *op.body)
    if (updatesParameter(member))
      return true;
  for (unsigned i = 0; i < op.numResults(); ++i)
    if (!written.contains(op.result(i)))
      return false;
  return true;
}

/// Groups that may start together.
class Run {
public:
  std::vector<Op *> groups;

  /// Whether `op` may start with them.
  bool takes(const Op &op, const Written &written) const {
    if (groups.empty())
      return true;
    if (kindOf(op) != kindOf(*groups.front()))
      return false;
    for (const Value *v : op.operands()) {
      const Op *def = rootOf(v)->def;
      if (def && (members.contains(def) || (def->is(OpKind::read) && replaced.contains(def->state))))
        return false;
    }
    for (unsigned i = 0; i < op.numResults(); ++i)
      if (auto it = written.find(op.result(i)); it != written.end() && read.contains(it->second))
        return false;
    return true;
  }

  void add(Op &op, const Written &written) {
    groups.push_back(&op);
    members.insert(&op);
    for (const Value *v : op.operands())
      if (const Op *def = rootOf(v)->def; def && def->is(OpKind::read))
        read.insert(def->state);
    for (unsigned i = 0; i < op.numResults(); ++i)
      if (auto it = written.find(op.result(i)); it != written.end())
        replaced.insert(it->second);
  }

private:
  llvm::DenseSet<const Op *> members;
  llvm::StringSet<> read, replaced;  // states
};

/// Numbers the launches of a function. Returns how many groups have one.
int64_t numberLaunches(Function &f, int64_t &launches) {
  Written written;
  for (const Op &op : f.body)
    if (op.is(OpKind::write))
      written[rootOf(op.operand(0))] = op.state;
  int64_t number = 0, groups = 0;
  Run run;
  auto end = [&] {
    if (run.groups.size() > 1) {
      ++number;
      for (Op *op : run.groups)
        setFact<&GroupFacts::launch>(*op, number);
      groups += int64_t(run.groups.size());
    }
    run = {};
  };
  for (Op &op : f.body) {
    if (op.isOneOf(OpKind::read, OpKind::write, OpKind::reshape))
      continue;
    if (!isCandidate(op, written)) {
      end();
      continue;
    }
    if (!run.takes(op, written))
      end();
    run.add(op, written);
  }
  launches += number;
  return groups;
}

}  // namespace

bool horizontalFusion(Module &m, const PassOptions &options) {
  if (isDecided(m, "horizontal-fusion", "launches"))
    return false;
  bool changed = false;
  for (auto &f : m.functions)
    for (Op &op : f->body)
      if (op.is(OpKind::fused) && fact<&GroupFacts::launch>(op)) {
        eraseFact<&GroupFacts::launch>(op);
        changed = true;
      }
  if (!options.target || !options.target->isCuda())
    return changed;
  int64_t launches = 0, groups = 0;
  for (auto &f : m.functions)
    groups += numberLaunches(*f, launches);
  if (launches)
    record(m, {.pass = "horizontal-fusion",
               .name = "launches",
               .choice = fmt::format("{} for {} groups", launches, groups),
               .note = "updates of parameters, norms of gradients and zeros, which do not depend on each other"});
  return changed || launches > 0;
}

}  // namespace gptc

// Recomputes values in the backward part if that is faster than loading them. A minimum cut selects the values, as in
// functorch's "min-cut rematerialization partitioner" (Horace He 2022; the same cut in Jain et al. 2020, "Checkmate").
//
// A cheap value that only pointwise and row ops of the backward part use need not be stored: fuse folds the op that
// computes it into theirs, and only its operands are loaded. If a contraction uses the value (the weight gradient that
// reads a norm's or an activation's result), it has to be in memory, as recipes pack operands from there. A separate
// kernel that writes it again costs more than keeping it.
//
//   1. The backward part begins with the first gradient op. The nodes of the network are the values before it from
//      which cheap ops (pointwise, row, gather and views) make values that the backward part uses.
//   2. The capacity of a value is the cost of keeping it in bytes: a load in the backward part, and a store in the
//      forward part unless an op needs the value in memory anyway. The source is connected to arguments, contents of
//      states, results of other ops and values that are in memory anyway; the sink to values that foldable ops of the
//      backward part use. Edges from the operands of an op to its results are unbounded.
//   3. A minimum cut (Dinic 1970) is a cheapest set of values to keep. If there are several, the one nearest to the
//      backward part is taken, as it recomputes least.
//   4. Ops after the cut are copied to just before their first use in the backward part. They give the same bits.
//   5. Fusion decides what the copies cost. So the cut is tried on a copy of the module, which is then fused, and taken
//      only if the cost model predicts less time: as a whole, else one kind of op after the other.
//
// Runs before fuse, which folds the copies, and after cse, which would undo them.
#include "passes/pass.h"

#include "ir/opdef.h"
#include "passes/analysis/cost.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/recompute.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SmallPtrSet.h"

#include <algorithm>
#include <limits>
#include <map>

namespace gptc {

namespace {

/// A flow network with Dinic's algorithm. Capacities are bytes.
class Network {
public:
  static constexpr int64_t unbounded = std::numeric_limits<int64_t>::max() / 4;

  int addNode() {
    edgesOf.emplace_back();
    return int(edgesOf.size()) - 1;
  }
  void addEdge(int from, int to, int64_t capacity) {
    edgesOf[from].push_back(int(edges.size()));
    edges.push_back({to, capacity});
    edgesOf[to].push_back(int(edges.size()));
    edges.push_back({from, 0});
  }

  /// Finds a maximum flow. Returns for each node whether it can still reach `sink` in the residual network.
  std::vector<bool> sinkSide(int source, int sink) {
    while (findLevels(source, sink)) {
      next.assign(edgesOf.size(), 0);
      while (push(source, sink, unbounded)) {
      }
    }
    std::vector<bool> reaches(edgesOf.size());
    std::vector<int> todo = {sink};
    reaches[sink] = true;
    while (!todo.empty()) {
      int at = todo.back();
      todo.pop_back();
      for (int e : edgesOf[at])
        if (int from = edges[e].to; !reaches[from] && edges[e ^ 1].capacity > 0) {
          reaches[from] = true;
          todo.push_back(from);
        }
    }
    return reaches;
  }

private:
  struct Edge {
    int to;
    int64_t capacity;  // residual capacity; edge e ^ 1 is the reverse edge
  };
  std::vector<Edge> edges;
  std::vector<std::vector<int>> edgesOf;
  std::vector<int> level;
  std::vector<size_t> next;

  bool findLevels(int source, int sink) {
    level.assign(edgesOf.size(), -1);
    level[source] = 0;
    std::vector<int> todo = {source};
    for (size_t i = 0; i < todo.size(); ++i)
      for (int e : edgesOf[todo[i]])
        if (edges[e].capacity > 0 && level[edges[e].to] < 0) {
          level[edges[e].to] = level[todo[i]] + 1;
          todo.push_back(edges[e].to);
        }
    return level[sink] >= 0;
  }

  /// Pushes flow along one path of rising levels and returns it. Recurses as deep as the longest chain of cheap ops.
  int64_t push(int at, int sink, int64_t most) {
    if (at == sink)
      return most;
    for (size_t &i = next[at]; i < edgesOf[at].size(); ++i) {
      Edge &e = edges[edgesOf[at][i]];
      if (e.capacity <= 0 || level[e.to] != level[at] + 1)
        continue;
      if (int64_t flow = push(e.to, sink, std::min(most, e.capacity))) {
        e.capacity -= flow;
        edges[edgesOf[at][i] ^ 1].capacity += flow;
        return flow;
      }
    }
    return 0;
  }
};

bool isCheap(const Op &op) {
  switch (op.def().fusion) {
  case FusionKind::pointwise:
  case FusionKind::gather:
  case FusionKind::row:
  case FusionKind::view:
    return !updatesParameter(op);
  default:
    return false;
  }
}

/// Whether fuse may fold copies of its operands' ops into the op.
bool folds(const Op &op) {
  return op.def().fusion == FusionKind::pointwise || op.def().fusion == FusionKind::row ||
         op.def().fusion == FusionKind::view;
}

/// The kind of an op for step 5: its name and its loc without the layer.
std::string kindOf(const Op &op) { return fmt::format("{} {}", withoutLayer(op.loc), op.name()); }

class Cutter {
public:
  explicit Cutter(Function &f) : f(f) {
    int n = 0;
    for (Op &op : f.body) {
      position[&op] = n;
      if (first < 0 && isGradient(op))
        first = n;
      ++n;
    }
  }

  /// The ops of the forward part to recompute, in order; none if the cut contains views only.
  std::vector<const Op *> cut() {
    std::vector<const Op *> again;
    if (first < 0)
      return again;
    source = net.addNode();
    sink = net.addNode();
    for (Op &op : f.body) {
      if (late(&op))
        break;
      for (unsigned i = 0; i < op.numResults(); ++i)
        if (const Value *v = op.result(i); isFoldedLate(v)) {
          net.addEdge(nodeOf(v) + 1, sink, Network::unbounded);
          reach(v);
        }
    }
    std::vector<bool> behind = net.sinkSide(source, sink);
    for (Op &op : f.body) {
      if (late(&op))
        break;
      bool make = false;
      for (unsigned i = 0; i < op.numResults(); ++i)
        if (auto it = nodes.find(op.result(i)); it != nodes.end())
          make |= behind[it->second] && !hangsOnSource(it->first);
      if (make)
        again.push_back(&op);
    }
    // Views alone save nothing.
    if (llvm::all_of(again, [](const Op *op) { return op->def().fusion == FusionKind::view; }))
      again.clear();
    return again;
  }

  /// Step 4, for the ops of `again` that `wanted` accepts. Returns whether it changed the function.
  bool copy(const std::vector<const Op *> &again, const llvm::function_ref<bool(const Op &)> &wanted) {
    llvm::DenseMap<const Value *, Value *> copies;
    llvm::SmallPtrSet<const Op *, 16> chosen;
    for (const Op *op : again)
      if (wanted(*op))
        chosen.insert(op);
    auto copyOf = [&](auto &&self, Value *v, Op *before) -> Value * {
      if (!v->def || !chosen.contains(v->def))
        return v;
      if (Value *known = copies.lookup(v))
        return known;
      for (Value *o : v->def->operands())
        self(self, o, before);
      cloneOp(*v->def, f.body, before, copies);
      return copies.lookup(v);
    };
    bool changed = false;
    for (Op &op : f.body) {
      if (!late(&op) || !position.count(&op) || !folds(op))
        continue;
      for (unsigned i = 0; i < op.numOperands(); ++i)
        if (Value *v = op.operand(i); v->def && position.count(v->def) && !late(v->def) && chosen.contains(v->def)) {
          op.setOperand(i, copyOf(copyOf, v, &op));
          changed = true;
        }
    }
    return changed;
  }

private:
  Function &f;
  llvm::DenseMap<const Op *, int> position;
  int first = -1;  // position of the first op of the backward part; -1: there is none
  Network net;
  int source = 0, sink = 0;
  llvm::MapVector<const Value *, int> nodes;  // value -> its in-node; the out-node is the next one

  bool late(const Op *op) const {
    auto it = position.find(op);
    return it != position.end() && it->second >= first;
  }

  bool isFoldedLate(const Value *v) const {
    return llvm::any_of(v->users(), [&](const Op *u) { return late(u) && folds(*u); });
  }

  /// Whether the value is in memory whatever the cut is: an argument, a state's content, or used by an op that does not
  /// fold.
  bool inMemory(const Value *v) const {
    if (!v->def || v->def->is(OpKind::read))
      return true;
    for (const Op *u : v->users()) {
      if (!folds(*u))
        return true;
      if (u->is(OpKind::reshape) && inMemory(u->result()))
        return true;
    }
    return false;
  }

  /// Smaller values (scalars, statistics of rows) are always kept, as loading them costs little.
  static constexpr int64_t leastBytes = 64 << 10;

  bool hangsOnSource(const Value *v) const {
    return !v->def || !isCheap(*v->def) || inMemory(v) ||
           (v->type.bytes() < leastBytes && v->def->def().fusion != FusionKind::view);
  }

  int nodeOf(const Value *v) {
    auto [it, isNew] = nodes.insert({v, 0});
    if (isNew) {
      it->second = net.addNode();
      net.addNode();
      const bool constant = v->def && v->def->is(OpKind::constant);
      const int64_t bytes = constant ? 0 : alignedBytes(v->type);
      net.addEdge(it->second, it->second + 1, bytes + (inMemory(v) ? 0 : bytes));
      if (hangsOnSource(v))
        net.addEdge(source, it->second, Network::unbounded);
    }
    return it->second;
  }

  /// Adds the nodes and edges of all values from which cheap ops make `v`.
  void reach(const Value *v) {
    std::vector<const Value *> todo = {v};
    while (!todo.empty()) {
      const Value *at = todo.back();
      todo.pop_back();
      if (hangsOnSource(at))
        continue;
      for (const Value *o : at->def->operands()) {
        const bool isNew = !nodes.count(o);
        net.addEdge(nodeOf(o) + 1, nodeOf(at), Network::unbounded);
        if (isNew)
          todo.push_back(o);
      }
    }
  }
};

/// The cost of one optimizer step after fusion.
KernelCost fusedCost(const Module &m, const MachineRates &rates) {
  std::unique_ptr<Module> copy = m.clone();
  fuse(*copy, {});
  return costOfStep(*copy, rates);
}

/// A copy of the module in which the ops of each function's cut that `wanted` accepts are recomputed; null if there are
/// none.
std::unique_ptr<Module> with(const Module &m, const llvm::function_ref<bool(const Op &)> &wanted) {
  std::unique_ptr<Module> copy = m.clone();
  bool changed = false;
  for (auto &f : copy->functions) {
    Cutter cutter(*f);
    changed |= cutter.copy(cutter.cut(), wanted);
  }
  return changed ? std::move(copy) : nullptr;
}

}  // namespace

bool recomputeCheap(Module &m, const PassOptions &options) {
  std::map<std::string, int> kinds;
  for (auto &f : m.functions)
    for (const Op *op : Cutter(*f).cut())
      if (op->def().fusion != FusionKind::view)
        ++kinds[kindOf(*op)];
  const auto nothing = [&](const std::string &why) {
    record(m, {"recompute-cheap", "cut", "nothing", {}, why, {}});
    return false;
  };
  if (kinds.empty())
    return nothing("what the backward part uses is in memory for a contraction, or no cheap op makes it from less");

  const MachineRates rates = ratesOf(options.target ? *options.target : Target());
  const KernelCost before = fusedCost(m, rates);
  std::map<std::string, int> taken;
  std::unique_ptr<Module> best;
  KernelCost now = before;
  auto tryWith = [&](const std::map<std::string, int> &some) {
    auto changed = with(m, [&](const Op &op) { return op.is(OpKind::reshape) || some.count(kindOf(op)); });
    if (!changed)
      return;
    if (KernelCost cost = fusedCost(*changed, rates); cost.seconds < now.seconds) {
      now = cost;
      taken = some;
      best = std::move(changed);
    }
  };
  tryWith(kinds);
  if (taken.empty())
    for (const auto &kind : kinds) {
      std::map<std::string, int> more = taken;
      more.insert(kind);
      tryWith(more);
    }
  Decision d{"recompute-cheap", "cut", "", {0, now.bytes - before.bytes, 1e3 * (now.seconds - before.seconds)}, "", {}};
  for (auto &[kind, count] : kinds) {
    if (taken.count(kind))
      d.choice += fmt::format("{}{} x {}", d.choice.empty() ? "" : ", ", count, kind);
    else
      d.rejected.push_back({fmt::format("{} x {}", count, kind), {}, "no quicker once fused"});
  }
  if (taken.empty())
    d.choice = "nothing";
  const bool changes = best != nullptr;
  if (changes)
    m.take(std::move(best));
  record(m, d);
  return changes;
}

}  // namespace gptc

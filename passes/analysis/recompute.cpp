#include "passes/analysis/recompute.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <map>

namespace gptc {

std::string withoutLayer(llvm::StringRef loc) {
  llvm::StringRef rest = loc;
  if (!rest.consume_front("h"))
    return loc.str();
  llvm::StringRef tail = rest.drop_while(llvm::isDigit);
  return tail.size() < rest.size() && tail.starts_with(".") ? "h*" + tail.str() : loc.str();
}

bool isGradient(const Op &op) { return op.name().contains("_grad"); }

namespace {

bool holdsGradient(const Op &group) {
  for (const Op &op : *group.body)
    if (isGradient(op))
      return true;
  return false;
}

/// Part of a group, as a group of its own.
struct Copy {
  Op *group;                         // in the scratch block; operands are block arguments there
  std::vector<Value *> needs;        // for each of its operands the value of the function
  std::vector<const Value *> makes;  // for each of its results the value that it repeats; null: a by-product
  KernelCost cost;
};

/// One entry of the new order: an op of the function, or a copy.
struct Item {
  Op *op = nullptr;
  const Copy *copy = nullptr;
};

}  // namespace

struct Recompute::Impl {
  Impl(Function &f, const MachineRates &rates) : f(f), rates(rates) {
    for (Op &op : f.body) {
      position[&op] = ops.size();
      if (backward < 0 && op.is(OpKind::fused) && holdsGradient(op))
        backward = ops.size();
      ops.push_back(&op);
      for (const Value *v : op.operands())
        if (auto &list = users[rootOf(v)]; list.empty() || list.back() != &op)
          list.push_back(&op);
      if (op.is(OpKind::write))
        inState.insert(rootOf(op.operand(0)));
    }
  }

  Function &f;
  const MachineRates rates;
  std::vector<Op *> ops;
  int backward = -1;  // position of the first op of the backward part
  llvm::DenseMap<const Op *, int> position;
  llvm::DenseMap<const Value *, std::vector<Op *>> users;  // of each root (rootOf), in order, views included
  llvm::DenseSet<const Value *> inState;
  mutable Block scratch;  // holds the groups of copies until apply() moves their bodies
  mutable std::map<std::pair<const Op *, std::vector<bool>>, Copy> copies;
  mutable llvm::DenseMap<std::pair<const Op *, unsigned>, llvm::SmallVector<const Value *, 2>> hosts;

  bool late(const Op *op) const { return position.lookup(op) >= backward; }

  /// The part of `group` that computes its dropped results from its operands and its kept results. Memoised.
  const Copy &copyOf(const Op *group, const Dropped &dropped) const {
    std::vector<bool> which;
    for (unsigned i = 0; i < group->numResults(); ++i)
      which.push_back(dropped.contains(group->result(i)));
    auto [it, isNew] = copies.try_emplace({group, which});
    if (isNew)
      it->second = build(group, which);
    return it->second;
  }

  Copy build(const Op *group, const std::vector<bool> &which) const {
    const Op *yield = group->body->back();
    llvm::DenseMap<const Value *, unsigned> kept;  // body values that memory holds -> index of the result
    for (unsigned i = 0; i < yield->numOperands(); ++i)
      if (!which[i])
        kept.try_emplace(yield->operand(i), i);
    // Walks the body backwards to find the ops and values that the copy needs.
    llvm::DenseSet<const Op *> needed;
    llvm::DenseSet<const Value *> wanted;
    for (unsigned i = 0; i < yield->numOperands(); ++i)
      if (which[i])
        wanted.insert(yield->operand(i));
    std::vector<const Op *> body;
    for (const Op *op = yield->prev(); op; op = op->prev())
      body.push_back(op);
    for (const Op *op : body) {
      bool make = false;
      for (unsigned i = 0; i < op->numResults(); ++i)
        make |= wanted.contains(op->result(i)) && !kept.count(op->result(i));
      // No dropped result equals a kept one, as fuse yields each value once.
      if (!make)
        continue;
      needed.insert(op);
      for (const Value *v : op->operands())
        wanted.insert(v);
    }
    Copy copy;
    copy.group = scratch.insert(OpKind::fused);
    copy.group->body = std::make_unique<Block>();
    copy.group->loc = group->loc;
    copy.group->layer = group->layer;
    Block &inner = *copy.group->body;
    llvm::DenseMap<const Value *, Value *> map;
    auto take = [&](const Value *inside, Value *outside) {
      map[inside] = inner.addArg(inside->type, inside->name);
      copy.group->addOperand(scratch.addArg(inside->type));
      copy.needs.push_back(outside);
    };
    for (unsigned i = 0; i < group->numOperands(); ++i)
      if (const Value *a = group->body->args[i].get();
          llvm::any_of(a->users(), [&](const Op *u) { return needed.contains(u); }))
        take(a, group->operand(i));
    for (unsigned i = 0; i < yield->numOperands(); ++i)
      if (const Value *v = yield->operand(i); !which[i] && kept.lookup(v) == i && v->def && !needed.contains(v->def) &&
                                              llvm::any_of(v->users(), [&](const Op *u) { return needed.contains(u); }))
        take(v, group->result(i));
    bool anchor = false, row = false, all = false;
    for (const Op *op : llvm::reverse(body)) {
      if (!needed.contains(op))
        continue;
      cloneOp(*op, inner, nullptr, map);
      FusionKind kind = op->def().fusion;
      row |= kind == FusionKind::row;
      anchor |= kind != FusionKind::row && kind != FusionKind::pointwise && kind != FusionKind::gather;
      all |= kind == FusionKind::attention;  // its recipe needs all results as outputs
    }
    Op *out = inner.insert(OpKind::yield);
    for (unsigned i = 0; i < yield->numOperands(); ++i) {
      const Value *v = yield->operand(i);
      if (!which[i] && !(all && v->def && needed.contains(v->def)))
        continue;
      out->addOperand(map.lookup(v));
      copy.group->addResult(v->type, group->result(i)->name);
      copy.makes.push_back(which[i] ? group->result(i) : nullptr);
    }
    copy.group->attrs = AttrMap();
    if (anchor)
      setFact<&GroupFacts::kind>(*copy.group, fact<&GroupFacts::kind>(*group));
    else
      setKind(*copy.group, row ? RecipeKind::row : RecipeKind::pointwise);
    copy.cost = costOf(*copy.group, rates);
    return copy;
  }

  /// The order of ops and copies. Each copy stands just before the first op of the backward part that needs it.
  std::vector<Item> arrange(const Dropped &dropped) const {
    std::vector<Item> items;
    llvm::DenseSet<const Op *> made;
    auto make = [&](auto &&self, const Value *root) -> void {
      if (!dropped.contains(root) || !made.insert(root->def).second)
        return;
      const Copy &copy = copyOf(root->def, dropped);
      for (const Value *v : copy.needs)
        self(self, rootOf(v));
      items.push_back({nullptr, &copy});
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      if (int(i) >= backward && backward >= 0 && !ops[i]->is(OpKind::reshape))
        for (const Value *v : ops[i]->operands())
          make(make, rootOf(v));
      items.push_back({ops[i], nullptr});
    }
    return items;
  }

  /// Roots of the operands whose memory result `i` of a group may take if the group is their last user.
  llvm::ArrayRef<const Value *> hostsOf(const Op *group, unsigned i) const {
    auto [it, isNew] = hosts.try_emplace({group, i});
    if (isNew && group->result(i)->type.bytes() >= (64 << 10))  // smaller ones do not matter
      for (unsigned k = 0; k < group->numOperands(); ++k)
        if (alignedBytes(group->operand(k)->type) == alignedBytes(group->result(i)->type) && mayShare(*group, i, k))
          it->second.push_back(rootOf(group->operand(k)));
    return it->second;
  }
};

Recompute::Recompute(Function &f, const MachineRates &rates) : impl(std::make_unique<Impl>(f, rates)) {
  if (impl->backward < 0)
    return;
  for (const Op *op : impl->ops) {
    if (impl->late(op))
      break;
    if (!op->is(OpKind::fused))
      continue;
    for (unsigned i = 0; i < op->numResults(); ++i) {
      const Value *v = op->result(i);
      const Op *maker = op->body->back()->operand(i)->def;
      if (!maker || impl->inState.contains(v))
        continue;
      bool isLate = false, leaves = false;
      for (const Op *user : impl->users[v]) {
        isLate |= impl->late(user) && !user->is(OpKind::reshape);
        leaves |= !impl->late(user) && !user->is(OpKind::reshape) && user->layer != op->layer;
      }
      // A value of f8e4m3 has early users only. Dropped, it is made again for copies of those, rather than kept.
      if (isLate || v->type.dtype == DType::f8e4m3)
        list.push_back({v, fmt::format("{}: {}", withoutLayer(op->loc), maker->name()), op->layer, leaves});
    }
  }
}

Recompute::~Recompute() {
  impl->copies.clear();
  for (Op *op = impl->scratch.back(), *before; op; op = before) {
    before = op->prev();
    op->erase();
  }
}

Recompute::Outcome Recompute::outcome(const Dropped &dropped) const {
  struct Range {
    int64_t bytes;
    int begin, end;
    bool hosts = false;  // a result took over its memory
  };
  std::vector<Range> ranges;
  llvm::DenseMap<const Value *, size_t> original, again;
  Outcome out;
  auto add = [&](llvm::DenseMap<const Value *, size_t> &where, const Value *v, const Type &t, int at) {
    if (v)
      where[v] = ranges.size();
    ranges.push_back({alignedBytes(t), at, at});
  };
  auto use = [&](const Value *root, bool late, int at) {
    if (auto it = again.find(root); late && it != again.end())
      ranges[it->second].end = at;
    else if (auto o = original.find(root); o != original.end())
      ranges[o->second].end = at;
  };
  for (const auto &a : impl->f.body.args)
    add(original, a.get(), a->type, 0);
  std::vector<Item> items = impl->arrange(dropped);
  for (int at = 0; at < int(items.size()); ++at) {
    if (const Copy *copy = items[at].copy) {
      out.extra += copy->cost;
      for (const Value *v : copy->needs)
        use(rootOf(v), true, at);
      for (size_t i = 0; i < copy->makes.size(); ++i)
        add(again, copy->makes[i], copy->group->result(i)->type, at);
      continue;
    }
    const Op *op = items[at].op;
    // Reads and views do not extend a range. Their users do.
    if (op->isOneOf(OpKind::read, OpKind::reshape))
      continue;
    for (const Value *v : op->operands())
      use(rootOf(v), impl->late(op), at + op->is(OpKind::ret));
    for (unsigned i = 0; i < op->numResults(); ++i)
      if (!impl->inState.contains(op->result(i)))
        add(original, op->result(i), op->result(i)->type, at);
  }
  // A result that takes over the memory of an operand counts from the next op on.
  for (int at = 0; at < int(items.size()); ++at) {
    const Op *op = items[at].op;
    if (!op || !op->is(OpKind::fused))
      continue;
    for (unsigned i = 0; i < op->numResults(); ++i) {
      auto result = original.find(op->result(i));
      if (result == original.end() || ranges[result->second].end == at)
        continue;
      for (const Value *host : impl->hostsOf(op, i)) {
        bool second = impl->late(op) && again.count(host);
        auto &where = second ? again : original;
        auto h = where.find(host);
        if (h == where.end() || ranges[h->second].end != at || ranges[h->second].hosts)
          continue;
        ranges[h->second].hosts = true;
        ranges[result->second].begin = at + 1;
        break;
      }
    }
  }
  std::vector<int64_t> change(items.size() + 3, 0);
  for (const Range &r : ranges) {
    change[r.begin] += r.bytes;
    change[r.end + 1] -= r.bytes;
  }
  int64_t live = 0;
  for (int64_t c : change)
    out.peak = std::max(out.peak, live += c);
  return out;
}

void Recompute::apply(const Dropped &dropped) {
  llvm::DenseMap<const Value *, Value *> again;  // dropped values and views of them -> the recomputed ones
  auto mapped = [&](Value *v, Op *before) {
    llvm::SmallVector<Value *, 2> views;
    Value *at = v;
    while (!again.count(at) && at->def && at->def->is(OpKind::reshape)) {
      views.push_back(at);
      at = at->def->operand(0);
    }
    Value *now = again.lookup(at);
    if (!now)
      return v;
    for (const Value *view : llvm::reverse(views))
      now = again[view] = Builder(impl->f.body, before).op(OpKind::reshape, {now}, {view->type})->result();
    return now;
  };
  Op *next = nullptr;
  std::vector<const Copy *> pending;
  for (const Item &item : impl->arrange(dropped)) {
    if (item.copy) {
      pending.push_back(item.copy);
      continue;
    }
    next = item.op;
    for (const Copy *copy : pending) {
      std::vector<Value *> operands;
      for (Value *v : copy->needs)
        operands.push_back(mapped(v, next));
      Op *op = impl->f.body.insert(OpKind::fused, next);
      op->attrs = copy->group->attrs;
      op->loc = copy->group->loc + " (again)";
      op->layer = copy->group->layer;
      for (Value *v : operands)
        op->addOperand(v);
      op->body = std::move(copy->group->body);
      for (size_t i = 0; i < copy->makes.size(); ++i) {
        Value *v = op->addResult(copy->group->result(i)->type, copy->group->result(i)->name);
        if (copy->makes[i])
          again[copy->makes[i]] = v;
      }
    }
    pending.clear();
    if (impl->late(next) && !next->is(OpKind::reshape))
      for (unsigned i = 0; i < next->numOperands(); ++i)
        if (dropped.contains(rootOf(next->operand(i))))
          next->setOperand(i, mapped(next->operand(i), next));
  }
}

}  // namespace gptc

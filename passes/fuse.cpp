// Fusion: afterwards every op that runs code stands in a `fused` op, whose attribute `kind` names the recipe that makes
// one kernel of it. Constants are copied into the groups that use them; reads, writes, reshapes and `return` stay
// outside.
//
// Groups
//   matmul     a matmul and pointwise ops on its result (bias, activation or its gradient, dropout, residual). Not
//   behind a sum
//              over tokens (`fold` or `init`): such a result is only complete after the last block.
//   row        row ops and pointwise ops on one domain: residual + norm, with the sum as another result; loss and its
//   gradient pointwise  pointwise and gather ops on one domain. adamw stays alone: its working set is seven arrays
//   already fold       sums over the same leading dimensions, in the same blocks, that share an operand all other ops
//   form groups of their own
//
// Algorithm
//   1. The function is a sequence of units, at first one per op. Units of one group are kept contiguous, so the
//   sequence is always
//      an order in which the program may run.
//   2. Greedily, for each unit in order and kind by kind as listed: a unit grows by ops that use its results, and (row,
//   pointwise) by
//      pointwise ops that compute its operands. An edge may lie inside a group when both ops have the same domain and
//      the user reads the operand at the current point or row (ir/access.h): operands that an op reads at computed
//      positions, those of gather ops, must come from outside.
//   3. Units A and B (A first) may merge when no op between them both depends on A and is needed by B. Then what does
//   not depend
//      on A moves before it and the rest behind B. Writes count as depending on the reads whose content they replace.
//   4. A group's results are the values used outside (of attention ops all); its operands are in order of first use.
//
// Options: epilogue, row, pointwise, fold (default true) switch a kind of growth off, for ablation. max (default 32):
// ops per group; scalar groups are not bounded, as their kernels are one task.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/diagnostics.h"
#include "ir/opdef.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

namespace {

struct Unit {
  std::vector<Op *> ops;
  const char *kind = nullptr;  // null: no code
  Op *anchor = nullptr;        // gives the group its name in listings
  int position = 0;            // in the sequence; positions only grow, some are empty
};

const char *kindOf(const Op &op) {
  switch (op.def().fusion) {
  case FusionKind::pointwise:
  case FusionKind::gather:
    return "pointwise";
  case FusionKind::row:
    return "row";
  case FusionKind::fold:
    return "fold";
  case FusionKind::reduce_all:
    return "reduce_all";
  case FusionKind::matmul:
    return "matmul";
  case FusionKind::scatter:
    return "scatter";
  case FusionKind::attention:
    return nameOf(op.kind).data();  // attention, attention_grad, attention_cached
  case FusionKind::view:
  case FusionKind::structure:
    return nullptr;
  }
  return nullptr;
}

class Fuser {
public:
  Fuser(Module &m, Function &f, const PassOptions &o) : m(m), f(f), options(o), maxOps(o.values.getInt("max", 32)) {}

  void run() {
    for (Op &op : f.body) {
      if (op.is(OpKind::constant))
        continue;  // copied to its users
      units.push_back(std::make_unique<Unit>());
      Unit *u = units.back().get();
      u->ops = {&op};
      u->anchor = &op;
      u->kind = kindOf(op);
      u->position = sequence.size();
      sequence.push_back(u);
      unitOf[&op] = u;
    }
    if (options.values.getBool("epilogue", true))
      growAll("matmul");
    if (options.values.getBool("row", true))
      growAll("row");
    if (options.values.getBool("pointwise", true))
      growAll("pointwise");
    if (options.values.getBool("fold", true))
      joinSums();
    emit();
  }

private:
  Module &m;
  Function &f;
  const PassOptions &options;
  const int64_t maxOps;
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<Unit *> sequence;  // null where a unit was merged away
  llvm::DenseMap<const Op *, Unit *> unitOf;
  llvm::DenseMap<const Op *, std::vector<Access>> accessMemo;

  static bool is(const Unit *u, const char *kind) { return u->kind && llvm::StringRef(u->kind) == kind; }
  /// Where a value is computed; null for arguments and constants.
  Unit *unitOfValue(const Value *v) const { return v->def ? unitOf.lookup(v->def) : nullptr; }

  const std::vector<Access> &accessOf(const Op &op) {
    auto [it, isNew] = accessMemo.try_emplace(&op);
    if (isNew)
      it->second = operandAccess(op);
    return it->second;
  }

  // ---- step 3 ----

  /// Merges two units when that leaves an order in which the program may run; the result is the merged unit or null.
  Unit *tryMerge(Unit *a, Unit *b) {
    if (a->position > b->position)
      std::swap(a, b);
    llvm::DenseSet<const Unit *> after = {a};  // what must stay behind A
    llvm::StringMap<bool> touched;             // states read or written by those: true when written
    auto dependsOnState = [&](const Op &op) {
      if (op.is(OpKind::read))
        return touched.lookup(op.state);
      return op.is(OpKind::write) && touched.count(op.state);
    };
    auto note = [&](const Unit *u) {
      for (const Op *op : u->ops) {
        if (op->isOneOf(OpKind::read, OpKind::write))
          touched[op->state] |= op->is(OpKind::write);
        for (const Value *v : op->operands())  // it uses content that a later write replaces
          if (v->def && v->def->is(OpKind::read))
            touched.try_emplace(v->def->state, false);
      }
    };
    auto mustFollow = [&](const Unit *u) {
      for (const Op *op : u->ops) {
        if (dependsOnState(*op))
          return true;
        for (const Value *v : op->operands())
          if (Unit *d = unitOfValue(v); d && after.contains(d))
            return true;
      }
      return false;
    };
    note(a);
    for (const Op *op : b->ops)
      for (const Value *v : op->operands())
        if (v->def && v->def->is(OpKind::read))
          touched.try_emplace(v->def->state, false);
    for (int p = a->position + 1; p < b->position; ++p)
      if (Unit *u = sequence[p]; u && mustFollow(u)) {
        after.insert(u);
        note(u);
      }
    for (const Op *op : b->ops)
      for (const Value *v : op->operands())
        if (Unit *d = unitOfValue(v); d && d != a && after.contains(d))
          return nullptr;

    std::vector<Unit *> before, behind;
    for (int p = a->position + 1; p < b->position; ++p)
      if (Unit *u = sequence[p])
        (after.contains(u) ? behind : before).push_back(u);
    int p = a->position, last = b->position;
    auto put = [&](Unit *u) {
      sequence[p] = u;
      u->position = p++;
    };
    for (Unit *u : before)
      put(u);
    put(a);
    for (Unit *u : behind)
      put(u);
    while (p <= last)
      sequence[p++] = nullptr;
    for (Op *op : b->ops)
      unitOf[op] = a;
    a->ops.insert(a->ops.end(), b->ops.begin(), b->ops.end());
    b->ops.clear();
    return a;
  }

  // ---- step 2 ----

  /// Whether `user`, in a group with the op that computes `v`, can read it there.
  bool readableInside(const Op &user, const Value *v) {
    const std::vector<Access> &access = accessOf(user);
    const Type &domain = domainOf(user);
    if (!domainOf(*v->def).sameShape(domain))
      return false;
    for (unsigned i = 0; i < user.numOperands(); ++i) {
      if (user.operand(i) != v || access[i] == Access::none)
        continue;
      bool full = access[i] == Access::point && v->type.sameShape(domain);
      bool row = access[i] == Access::row && v->type.rank() + 1 == domain.rank() &&
                 v->type.sameShape(domain.slice(0, domain.rank() - 1));
      if (!full && !row)
        return false;
    }
    return true;
  }

  /// Whether all edges from ops of `from` to ops of `to` may lie inside a group.
  bool edgesFit(const Unit *from, const Unit *to) {
    for (const Op *op : to->ops)
      for (const Value *v : op->operands())
        if (unitOfValue(v) == from && !readableInside(*op, v))
          return false;
    return true;
  }

  bool mayGrow(const Unit *u, const Unit *other) {
    const Op &op = *other->anchor;
    if (u == other || !other->kind || op.is(OpKind::adamw) || u->anchor->is(OpKind::adamw))
      return false;
    bool pointwise = is(other, "pointwise");
    bool fits = is(u, "matmul") ? pointwise && other->ops.size() == 1 && op.def().fusion == FusionKind::pointwise
                : is(u, "row")  ? pointwise || is(other, "row")
                                : pointwise;
    if (!fits || (!domainOf(op).isScalar() && int64_t(u->ops.size() + other->ops.size()) > maxOps))
      return false;
    return domainOf(op).sameShape(domainOf(*u->anchor));
  }

  bool absorb(Unit *&u, Unit *other) {
    if (!other || !mayGrow(u, other) || !edgesFit(u, other) || !edgesFit(other, u))
      return false;
    const char *kind = u->kind;
    Op *anchor = u->anchor;
    Unit *merged = tryMerge(u, other);
    if (!merged)
      return false;
    merged->kind = kind;
    merged->anchor = anchor;
    u = merged;
    return true;
  }

  bool growOnce(Unit *&u) {
    for (size_t n = 0; n < u->ops.size(); ++n) {
      Op *op = u->ops[n];
      for (unsigned i = 0; i < op->numResults(); ++i) {
        llvm::SmallVector<Op *, 8> users(op->result(i)->users());
        std::stable_sort(users.begin(), users.end(),
                         [&](Op *a, Op *b) { return unitOf[a]->position < unitOf[b]->position; });
        for (Op *user : users)
          if (absorb(u, unitOf[user]))
            return true;
      }
      if (is(u, "matmul"))
        continue;
      for (Value *v : op->operands())
        if (absorb(u, unitOfValue(v)))
          return true;
    }
    return false;
  }

  static bool canAnchor(const Op &op) {
    return !op.is(OpKind::matmul) || (op.numOperands() == 2 && op.attrs.getInt("fold") == 0);
  }

  void growAll(const char *kind) {
    for (auto &owned : units) {
      Unit *u = owned.get();
      if (u->ops.empty() || !is(u, kind) || !canAnchor(*u->anchor))
        continue;
      while (growOnce(u)) {
      }
    }
  }

  void joinSums() {
    auto sameSum = [](const Op &a, const Op &b) {
      return a.operand(0)->type.sameShape(b.operand(0)->type) && a.result()->type.sameShape(b.result()->type) &&
             a.attrs.getInt("fold") == b.attrs.getInt("fold");
    };
    for (auto &owned : units) {
      Unit *u = owned.get();
      for (size_t n = 0; n < u->ops.size() && is(u, "fold"); ++n)
        for (Value *v : llvm::SmallVector<Value *, 4>(u->ops[n]->operands()))
          for (Op *user : llvm::SmallVector<Op *, 8>(v->users())) {
            Unit *other = unitOf.lookup(user);
            if (!other || other == u || !is(other, "fold") || other->position < u->position ||
                !sameSum(*u->anchor, *other->anchor) || int64_t(u->ops.size() + other->ops.size()) > maxOps ||
                !edgesFit(u, other))
              continue;
            tryMerge(u, other);
          }
    }
  }

  // ---- step 4 ----

  static Op *copyInto(Block &body, const Op &op) {
    Op *copy = body.insert(op.kind);
    copy->attrs = op.attrs;
    copy->loc = op.loc;
    copy->layer = op.layer;
    return copy;
  }

  static bool isConstant(const Value *v) { return v->def && v->def->is(OpKind::constant); }

  /// A fused op before `before` for `ops`, whose results take the place of those used elsewhere.
  void makeGroup(const Unit &u, Op *before) {
    llvm::DenseSet<const Op *> inside(u.ops.begin(), u.ops.end());
    llvm::MapVector<Value *, Value *> arguments;
    std::vector<Value *> escaping;
    bool used = false;
    auto body = std::make_unique<Block>();
    llvm::DenseMap<const Value *, Value *> map;
    for (Op *op : u.ops) {
      for (Value *v : op->operands()) {
        if (map.count(v))
          continue;
        if (isConstant(v)) {
          Op *c = copyInto(*body, *v->def);
          map[v] = c->addResult(v->type, v->name);
        } else {
          map[v] = arguments[v] = body->addArg(v->type, v->name);
        }
      }
      Op *copy = copyInto(*body, *op);
      for (Value *v : op->operands())
        copy->addOperand(map.lookup(v));
      for (unsigned i = 0; i < op->numResults(); ++i) {
        Value *v = op->result(i);
        map[v] = copy->addResult(v->type, v->name);
        if (llvm::any_of(v->users(), [&](Op *user) { return !inside.contains(user); })) {
          used = true;
          escaping.push_back(v);
        } else if (op->def().fusion == FusionKind::attention) {
          escaping.push_back(v);  // the recipe makes them all
        }
      }
    }
    if (!used)
      return;  // dead
    Op *group = f.body.insert(OpKind::fused, before);
    group->attrs = attrs({{"kind", std::string(u.kind)}});
    group->loc = u.anchor->loc;
    group->layer = u.anchor->layer;
    for (auto &[outer, inner] : arguments)
      group->addOperand(outer);
    Op *yield = body->insert(OpKind::yield);
    for (Value *v : escaping)
      yield->addOperand(map.lookup(v));
    group->body = std::move(body);
    for (Value *v : escaping) {
      Value *r = group->addResult(v->type, v->name);
      llvm::SmallVector<Op *, 8> users(v->users());
      for (Op *user : users)
        if (!inside.contains(user))
          for (unsigned i = 0; i < user->numOperands(); ++i)
            if (user->operand(i) == v)
              user->setOperand(i, r);
    }
  }

  void emit() {
    Op *end = f.body.back();
    std::vector<Op *> old;
    for (Unit *u : sequence) {
      if (!u)
        continue;
      Op *first = u->ops[0];
      if (!u->kind) {
        if (first == end)
          continue;
        first->moveBefore(end);
        giveConstantsGroups(first);
      } else {
        makeGroup(*u, end);
        old.insert(old.end(), u->ops.begin(), u->ops.end());
      }
    }
    giveConstantsGroups(end);
    for (Op *op : llvm::reverse(old))
      op->erase();
    for (Op *op = f.body.back(), *before; op; op = before) {
      before = op->prev();
      if (op->is(OpKind::constant))
        op->erase();
    }
  }

  /// Constants that are written, viewed or returned: each such use gets a group of its own.
  void giveConstantsGroups(Op *user) {
    for (unsigned i = 0; i < user->numOperands(); ++i) {
      Value *v = user->operand(i);
      if (!isConstant(v))
        continue;
      Op *group = f.body.insert(OpKind::fused, user);
      group->attrs = attrs({{"kind", std::string("pointwise")}});
      group->loc = v->def->loc;
      group->layer = v->def->layer;
      group->body = std::make_unique<Block>();
      Value *inner = copyInto(*group->body, *v->def)->addResult(v->type, v->name);
      group->body->insert(OpKind::yield)->addOperand(inner);
      user->setOperand(i, group->addResult(v->type, v->name));
    }
  }
};

}  // namespace

bool fuse(Module &m, const PassOptions &options) {
  bool changed = false;
  for (auto &f : m.functions) {
    bool open = false;
    for (Op &op : f->body)
      open |= kindOf(op) != nullptr;
    if (!open)
      continue;
    Fuser(m, *f, options).run();
    changed = true;
  }
  return changed;
}

}  // namespace gptc

// Makes groups compute new contents in the memory of their states, so that writes run no code. Afterwards a function
// writes a state at most once, after all its reads, and each written value is a result of a group that may take the
// state's memory (StateUses::inPlace).
//
//   1. A read after a write of the same state is replaced by the value written. Of several writes of a state only the
//      last stays.
//   2. Visits writes in order. A write of the state's own content is erased. A write whose value may be computed in
//      place, and is not already placed in another state, is settled.
//   3. Before any other write a group that copies the value is inserted. Its result may lie in place.
//   4. Uses of the old content after such a write get a copy of it, made just before the write.
//   5. A group that changes a few rows of a state in place gets the attribute in_place (inPlaceOperand, ir/access.h).
//      Its kernel then does not store the other rows.
//   6. Unused reads and views are erased, as they would seem to need contents that are overwritten.
//
// Runs after fuse, as it needs groups, and before select-recipes, which gives the copies their schedule.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/state_uses.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"

namespace gptc {

namespace {

/// Step 1.
bool forwardWrites(Function &f) {
  bool changed = false;
  llvm::StringMap<Op *> written;
  for (Op *op = f.body.front(), *next; op; op = next) {
    next = op->next();
    if (op->is(OpKind::read)) {
      if (Op *w = written.lookup(op->state)) {
        op->result()->replaceAllUsesWith(w->operand(0));
        op->erase();
        changed = true;
      }
    } else if (op->is(OpKind::write)) {
      Op *&w = written[op->state];
      if (w)
        w->erase();
      changed |= w != nullptr;
      w = op;
    }
  }
  return changed;
}

/// Inserts a group that copies `v` before the op `before`. Returns the copy.
Value *copyOf(Value *v, Op *before) {
  Block &block = *before->parent();
  Op *group = block.insert(OpKind::fused, before);
  setKind(*group, RecipeKind::pointwise);
  group->loc = "copy";
  group->addOperand(v);
  group->body = std::make_unique<Block>();
  Builder b(*group->body);
  Value *x = group->body->addArg(v->type, "x");
  Value *y = b.value(OpKind::cast, {x}, attrs({{"dtype", nameOf(v->type.dtype).str()}}));
  b.op(OpKind::yield, {y}, llvm::ArrayRef<Type>());
  return group->addResult(v->type, v->name);
}

/// Steps 3 and 4: copies before a write whose value cannot be computed in place.
void copyAround(Op &write, const StateUses &uses) {
  llvm::DenseMap<Value *, Value *> copies;
  for (auto [user, operand] : uses.usesOf(write.state)) {
    if (uses.position(user) <= uses.position(&write))
      continue;
    Value *use = user->operand(operand), *root = rootOf(use);
    if (!copies.lookup(root))
      copies[root] = copyOf(root, &write);
    Value *copy = copies[root];
    if (use != root)
      copy = Builder(*write.parent(), &write).op(OpKind::reshape, {copy}, {use->type})->result();
    user->setOperand(operand, copy);
  }
  write.setOperand(0, copyOf(write.operand(0), &write));
}

/// Step 5.
bool markInPlace(Op &group) {
  auto changesRows = [&] {
    for (const Op &op : *group.body)
      if (op.is(OpKind::attention_cached))
        return true;
    return false;
  };
  if (!group.is(OpKind::fused) || !changesRows())
    return false;
  std::vector<int64_t> entries(group.numResults(), -1);
  for (unsigned i = 0; i < group.numResults(); ++i)
    for (const Op *user : group.result(i)->users())
      if (user->is(OpKind::write))
        for (unsigned j = 0; j < group.numOperands(); ++j)
          if (const Op *read = group.operand(j)->def;
              read && read->is(OpKind::read) && read->state == user->state && mayShare(group, i, j))
            entries[i] = j;
  if (llvm::all_of(entries, [](int64_t j) { return j < 0; }))
    entries.clear();
  if (fact<&GroupFacts::inPlace>(group) == entries)
    return false;
  if (entries.empty())
    eraseFact<&GroupFacts::inPlace>(group);
  else
    setFact<&GroupFacts::inPlace>(group, entries);
  return true;
}

bool settle(Function &f) {
  bool changed = forwardWrites(f);
  std::vector<Op *> writes;
  for (Op &op : f.body)
    if (op.is(OpKind::write))
      writes.push_back(&op);
  auto uses = std::make_unique<StateUses>(f);
  llvm::DenseSet<const Value *> placed;
  for (Op *w : writes) {
    const Value *root = rootOf(w->operand(0));
    if (root->def && root->def->is(OpKind::read) && root->def->state == w->state) {
      w->erase();
      changed = true;
    } else if (!uses->inPlace(*w) || placed.contains(root)) {
      copyAround(*w, *uses);
      uses = std::make_unique<StateUses>(f);
      changed = true;
      placed.insert(w->operand(0));
    } else {
      placed.insert(root);
    }
  }
  for (Op &op : f.body)
    changed |= markInPlace(op);
  for (Op *op = f.body.back(), *before; op; op = before) {
    before = op->prev();
    if (op->isOneOf(OpKind::read, OpKind::reshape) && op->result()->unused()) {
      op->erase();
      changed = true;
    }
  }
  return changed;
}

}  // namespace

bool settleWrites(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions)
    changed |= settle(*f);
  return changed;
}

}  // namespace gptc

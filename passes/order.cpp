// Reorders ops to lower the peak of memory.
//
// The order of import and autodiff is already good for activations, as the backward part visits them in reverse. The
// pass moves ops that stand far before their first use.
//   1. An op is light if its results take at least as many bytes as the operands of which it is the only user. Running
//      it later cannot raise the live bytes in between. Reads are light, writes are not.
//   2. Ops that are not light are placed in the given order, each after all ops that it needs, which are also in the
//      given order. So a light op comes to stand just before its first user, and the other ops keep their order.
//   3. The new order is kept if its peak of live bytes is lower than that of the given one.
// An op needs the ops that define its operands. A read needs the last write of its state before it. A write needs the
// last write before it and all users of the content that it replaces, so that the new content can be computed in the
// memory of the old one.
#include "passes/pass.h"

#include "ir/opdef.h"
#include "passes/analysis/liveness.h"

#include <algorithm>

namespace gptc {

namespace {

class Sinker {
public:
  explicit Sinker(Function &f) : f(f) {}

  /// The ops but `return`, in their new order.
  std::vector<Op *> run() {
    collect();
    for (size_t i = 0; i < ops.size(); ++i)
      if (!light(*ops[i]))
        place(i);
    for (size_t i = 0; i < ops.size(); ++i)
      place(i);
    return result;
  }

private:
  Function &f;
  std::vector<Op *> ops;
  std::vector<std::vector<int>> needs;
  std::vector<bool> placed;
  std::vector<Op *> result;
  llvm::DenseMap<const Value *, llvm::SmallVector<const Op *, 2>> usersOf;  // of each root (rootOf), views included

  void collect() {
    llvm::DenseMap<const Op *, int> index;
    llvm::StringMap<int> lastWrite;
    llvm::StringMap<std::vector<int>> usersOfContent;
    for (Op &op : f.body) {
      int i = ops.size();
      for (Value *v : op.operands())
        if (auto &users = usersOf[rootOf(v)]; users.empty() || users.back() != &op)
          users.push_back(&op);
      if (op.is(OpKind::ret))
        break;
      index[&op] = i;
      ops.push_back(&op);
      std::vector<int> &need = needs.emplace_back();
      for (Value *v : op.operands()) {
        if (v->def)
          need.push_back(index[v->def]);
        if (Value *root = rootOf(v); root->def && root->def->is(OpKind::read))
          usersOfContent[root->def->state].push_back(i);
      }
      if (op.isOneOf(OpKind::read, OpKind::write))
        if (auto it = lastWrite.find(op.state); it != lastWrite.end())
          need.push_back(it->second);
      if (op.is(OpKind::read))
        usersOfContent[op.state].push_back(i);
      if (op.is(OpKind::write)) {
        std::vector<int> &users = usersOfContent[op.state];
        for (int u : users)
          if (u != i)
            need.push_back(u);
        users.clear();
        lastWrite[op.state] = i;
      }
      std::sort(need.begin(), need.end());
    }
    placed.assign(ops.size(), false);
  }

  bool light(const Op &op) const {
    if (!op.numResults())
      return false;
    if (op.isOneOf(OpKind::read, OpKind::reshape))
      return true;
    int64_t made = 0, freed = 0;
    for (unsigned i = 0; i < op.numResults(); ++i)
      made += alignedBytes(op.result(i)->type);
    llvm::SmallVector<const Value *, 8> seen;
    for (Value *v : op.operands()) {
      const Value *root = rootOf(v);
      if (llvm::is_contained(seen, root) || (root->def && root->def->is(OpKind::read)))
        continue;
      seen.push_back(root);
      bool onlyUser = true;
      for (const Op *u : usersOf.find(root)->second)
        onlyUser &= u == &op || u->is(OpKind::reshape);
      if (onlyUser)
        freed += alignedBytes(root->type);
    }
    return made >= freed;
  }

  /// Places op i after all ops that it needs.
  void place(int i) {
    std::vector<int> todo = {i};
    while (!todo.empty()) {
      int at = todo.back();
      bool ready = true;
      for (int p : llvm::reverse(needs[at]))
        if (!placed[p]) {
          todo.push_back(p);
          ready = false;
        }
      if (!ready)
        continue;
      todo.pop_back();
      if (!placed[at])
        result.push_back(ops[at]);
      placed[at] = true;
    }
  }
};

}  // namespace

bool order(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions) {
    std::vector<Op *> before;
    for (Op &op : f->body)
      before.push_back(&op);
    Op *ret = before.back();
    before.pop_back();
    std::vector<Op *> after = Sinker(*f).run();
    if (after == before)
      continue;
    auto arrange = [&](const std::vector<Op *> &ops) {
      for (Op *op : ops)
        op->moveBefore(ret);
    };
    int64_t peak = peakBytes(liveRanges(*f));
    arrange(after);
    if (peakBytes(liveRanges(*f)) < peak)
      changed = true;
    else
      arrange(before);
  }
  return changed;
}

}  // namespace gptc

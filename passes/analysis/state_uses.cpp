#include "passes/analysis/state_uses.h"

#include "ir/access.h"
#include "passes/analysis/liveness.h"

#include <algorithm>

namespace gptc {

StateUses::StateUses(Function &f) {
  int n = 0;
  for (Op &op : f.body) {
    positions[&op] = n++;
    if (op.is(OpKind::read))
      reads[op.state].push_back(&op);
  }
}

std::vector<StateUses::Use> StateUses::usesOf(llvm::StringRef state) const {
  std::vector<Use> uses;
  for (Op *read : reads.lookup(state)) {
    llvm::SmallVector<Value *, 4> todo = {read->result()};
    while (!todo.empty()) {
      Value *v = todo.pop_back_val();
      llvm::SmallVector<Op *, 8> users(v->users());
      std::sort(users.begin(), users.end(), [&](Op *a, Op *b) { return position(a) < position(b); });
      users.erase(std::unique(users.begin(), users.end()), users.end());
      for (Op *user : users)
        if (user->is(OpKind::reshape))
          todo.push_back(user->result());
        else
          for (unsigned i = 0; i < user->numOperands(); ++i)
            if (user->operand(i) == v)
              uses.push_back({user, i});
    }
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [&](const Use &a, const Use &b) { return position(a.user) < position(b.user); });
  return uses;
}

bool StateUses::inPlace(const Op &write) const {
  const Value *root = rootOf(write.operand(0));
  const Op *group = root->def;
  if (!group || !group->is(OpKind::fused))
    return false;
  for (const Use &use : usesOf(write.state))
    if (use.user == group ? !mayShare(*group, root->index, use.operand) : position(use.user) > position(group))
      return false;
  return true;
}

}  // namespace gptc

// Dead code elimination.
//
//   1. Walk each function from its last op to its first.
//   2. Erase each op that has no user and is neither a write nor a terminator. This may leave its operands without a
//      user. One walk suffices, as definitions precede uses.
// States stay, as checkpoints save and load them.
#include "passes/pass.h"

namespace gptc {

bool dce(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions)
    for (Op *op = f->body.back(), *before; op; op = before) {
      before = op->prev();
      if (op->isOneOf(OpKind::write, OpKind::ret, OpKind::yield))
        continue;
      bool used = false;
      for (unsigned i = 0; i < op->numResults(); ++i)
        used |= !op->result(i)->unused();
      if (used)
        continue;
      op->erase();
      changed = true;
    }
  return changed;
}

}  // namespace gptc

// Dead code elimination.
//
//   1. Walk each function from its last op to its first.
//   2. An op without a user, that is no write and no terminator, goes; its operands may thereby lose their last user,
//      and as definitions stand before uses, one walk finds them all.
// States stay: they are what a user saves and loads.
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

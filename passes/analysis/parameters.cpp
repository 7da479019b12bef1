#include "passes/analysis/parameters.h"

#include "ir/facts.h"

namespace gptc {

bool trainsNothing(const Module &m) {
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      if (const State *s = op.is(OpKind::write) ? m.state(op.state) : nullptr; s && kindOf(*s) == StateKind::param)
        return false;
  return true;
}

State *parameterOf(const Module &m, const State *s) {
  const std::optional<StateKind> kind = s ? kindOf(*s) : std::nullopt;
  State *p = kind == StateKind::low     ? m.state(fact<&StateFacts::of>(*s))
             : kind == StateKind::param ? m.state(s->name)
                                        : nullptr;
  return p && kindOf(*p) == StateKind::param ? p : nullptr;
}

bool eraseUnusedReads(Module &m) {
  bool erased = false;
  for (const auto &f : m.functions)
    for (Op *op = f->body.front(), *next; op; op = next) {
      next = op->next();
      if (op->is(OpKind::read) && op->result()->unused()) {
        op->erase();
        erased = true;
      }
    }
  return erased;
}

}  // namespace gptc

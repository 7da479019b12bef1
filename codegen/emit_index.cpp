#include "codegen/emit_index.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

namespace gptc {

using namespace kir;

IndexFacts IndexFacts::ofConstant(int64_t v) { return {0, v == INT64_MIN ? 1 : std::abs(v), v < 0 ? -1 : v}; }

bool IndexFacts::fits32(int width) const {
  if (bound < 0 || stride < 0)
    return false;
  int64_t top = sumOfBounds(bound, productOfBounds(stride, width));
  return top >= 0 && top < (int64_t(1) << 31);
}

int64_t sumOfBounds(int64_t a, int64_t b) {
  int64_t r;
  return a < 0 || b < 0 || __builtin_add_overflow(a, b, &r) ? -1 : r;
}

int64_t productOfBounds(int64_t a, int64_t b) {
  int64_t r;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r) ? -1 : r;
}

std::optional<IndexFacts> combineFacts(BinaryOp op, const IndexFacts &x, const IndexFacts &y, std::optional<int64_t> c,
                                       int width) {
  const bool natural = x.natural(y);
  IndexFacts r;
  r.multiple = std::gcd(x.multiple, y.multiple);
  switch (op) {
  case BinaryOp::add:
    r.stride = x.stride + y.stride;
    r.bound = sumOfBounds(x.bound, y.bound);
    return r;
  case BinaryOp::sub:
    r.stride = x.stride - y.stride;
    return r;
  case BinaryOp::mul:
    if (y.stride || (x.stride && (!c || __builtin_mul_overflow(x.stride, *c, &r.stride))))
      return std::nullopt;
    r.bound = productOfBounds(x.bound, y.bound);
    if (__builtin_mul_overflow(x.multiple, y.multiple, &r.multiple))
      r.multiple = 1;
    return r;
  case BinaryOp::div:
  case BinaryOp::rem: {
    if (y.stride || (x.stride && !c))
      return std::nullopt;
    // All lanes share one quotient when a group never crosses a multiple of the divisor.
    if (x.stride && !(natural && *c > 0 && x.stride == 1 && *c % width == 0 && x.multiple % width == 0))
      return std::nullopt;
    const bool positive = c && *c > 0;
    if (op == BinaryOp::div) {
      r.multiple = positive && x.multiple % *c == 0 ? x.multiple / *c : 1;
      r.bound = !positive ? (natural ? x.bound : -1) : x.bound < 0 ? -1 : x.bound / *c;
    } else {
      r.stride = x.stride;
      r.bound = !natural ? -1 : positive ? std::min(x.bound, *c - 1) : x.bound;
    }
    return r;
  }
  case BinaryOp::min:
  case BinaryOp::max:
    if (x.stride || y.stride)
      return std::nullopt;
    if (natural)
      r.bound = op == BinaryOp::min ? std::min(x.bound, y.bound) : std::max(x.bound, y.bound);
    return r;
  default:
    return std::nullopt;
  }
}

bool indexesRegisters(const StmtNode &s) {
  llvm::DenseMap<const VarNode *, bool> depends{{s.var.get(), true}};
  llvm::DenseMap<const ExprNode *, bool> seen;
  bool found = false;
  std::function<bool(const Expr &)> visit = [&](const Expr &e) {
    if (auto it = seen.find(e.get()); it != seen.end())
      return it->second;
    bool d = e->kind == ExprKind::Var && depends.lookup(e->var.get());
    for (const Expr &a : e->args)
      d |= visit(a);
    if (d && (e->kind == ExprKind::Load || e->kind == ExprKind::HReduce) && e->buffer->storage == Storage::reg &&
        visit(e->args[0]))
      found = true;
    seen[e.get()] = d;
    return d;
  };
  std::function<void(const StmtNode &)> walk = [&](const StmtNode &t) {
    for (const Expr &e : {t.begin, t.extent, t.index, t.value})
      if (e)
        visit(e);
    if (t.kind == StmtKind::Store && t.buffer->storage == Storage::reg && visit(t.index))
      found = true;
    if (t.kind == StmtKind::Let)
      depends[t.var.get()] = visit(t.value);
    for (const Stmt &u : t.body)
      walk(*u);
    for (const Stmt &u : t.orelse)
      walk(*u);
  };
  for (const Stmt &t : s.body)
    walk(*t);
  return found;
}

}  // namespace gptc

#include "codegen/recipes/row_sums.h"

#include "codegen/recipes/group_ctx.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace gptc {

using namespace kir;

Expr RowSum::start() const {
  return fimm(op == BinaryOp::add ? 0 : -std::numeric_limits<double>::infinity(), node->dtype);
}

std::vector<std::vector<RowSum>> takeRowSums(Placer &placer, llvm::ArrayRef<Expr *> roots) {
  std::vector<std::vector<RowSum>> levels;
  std::vector<Expr> all;
  for (const Expr *e : roots)
    all.push_back(*e);
  std::map<const ExprNode *, unsigned> level;
  std::map<const ExprNode *, Expr> result;
  for (const Expr &e : collect(all, [](const Expr &) { return true; })) {
    unsigned l = 0;
    for (const Expr &a : e->args)
      l = std::max(l, level[a.get()]);
    if (e->kind == ExprKind::Reduce) {
      GPTC_CHECK(e->axis == ReduceAxis::row, "a sum over other dimensions among sums of rows");
      if (levels.size() <= l)
        levels.resize(l + 1);
      Var v = makeVar(e->bop == BinaryOp::max ? "rowmax" : "rowsum", e->dtype);
      levels[l].push_back({e, v, e->bop, e->args[0]});
      result[e.get()] = kir::ref(v);
      ++l;
    }
    level[e.get()] = l;
  }
  std::map<const ExprNode *, Expr> memo;
  auto resolve = [&](Expr &e) {
    e = placer.intern(substitute(e, memo, [&](const Expr &n) -> Expr {
      auto it = result.find(n.get());
      return it == result.end() ? nullptr : it->second;
    }));
  };
  for (std::vector<RowSum> &sums : levels)
    for (RowSum &sum : sums)
      resolve(sum.element);
  for (Expr *e : roots)
    resolve(*e);
  return levels;
}

int columnsAtOnce(const Op &fused) {
  const int64_t columns = groupDomain(fused).dim(-1);
  int64_t stride = 16, bytes = 2;
  auto look = [&](const Type &type) {
    if (type.rank() == 0 || type.dims.back().logical != columns)
      return;
    stride = std::gcd(stride, type.dims.back().padded);
    bytes = std::max(bytes, int64_t(sizeOf(type.dtype)));
  };
  for (const Value *v : fused.operands())
    look(v->type);
  for (unsigned i = 0; i < fused.numResults(); ++i)
    look(fused.result(i)->type);
  return int(std::gcd(stride, std::max<int64_t>(1, 16 / bytes)));
}

}  // namespace gptc

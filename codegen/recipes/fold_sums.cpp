#include "codegen/recipes/fold_sums.h"

#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

using namespace kir;

FoldSums::FoldSums(llvm::ArrayRef<Expr> roots, int64_t rows) {
  for (const Expr &e : collect(roots, [](const Expr &e) { return e->kind == ExprKind::Reduce; })) {
    if (e->axis == ReduceAxis::row)
      continue;
    GPTC_CHECK(e->axis == ReduceAxis::fold && e->bop == BinaryOp::add, "sums over rows are neither maxima nor of all");
    const bool nested = !collect(e->args, [](const Expr &a) {
                           return a->kind == ExprKind::Reduce && a->axis != ReduceAxis::row;
                         }).empty();
    GPTC_CHECK(!nested, "a sum of sums over rows");
    const int64_t f = e->fold <= 0 ? rows : std::min(e->fold, rows);
    GPTC_CHECK(sums.empty() || f == fold, "sums over blocks of {} and {} rows in one group", f, fold);
    fold = f;
    sums.push_back({e, e->args[0], e->args.size() > 1 ? e->args[1] : fimm(0, e->dtype)});
  }
  GPTC_CHECK(!sums.empty(), "no sum over rows");
}

Expr FoldSums::withTotals(const Expr &e, llvm::ArrayRef<Expr> totals) const {
  std::map<const ExprNode *, Expr> memo;
  return substitute(e, memo, [&](const Expr &n) -> Expr {
    for (unsigned k = 0; k < sums.size(); ++k)
      if (n == sums[k].node)
        return totals[k];
    return nullptr;
  });
}

std::vector<Expr> FoldSums::addBlocks(Seq &seq, llvm::ArrayRef<Expr> inits, llvm::ArrayRef<Buffer> workspaces,
                                      const Expr &first, int64_t stride, int64_t blocks) const {
  std::vector<Expr> totals;
  Var b = makeVar("b");
  Seq add;
  for (unsigned k = 0; k < sums.size(); ++k) {
    Buffer acc = makeBuffer(fmt::format("acc{}", k), sums[k].node->dtype, Storage::reg, 1);
    seq.alloc(acc);
    seq.add(store(acc, imm(0), inits[k]));
    add.add(store(acc, imm(0), load(acc, imm(0)) + load(workspaces[k], first + kir::ref(b) * stride)));
    totals.push_back(load(acc, imm(0)));
  }
  seq.add(loop(LoopKind::serial, b, imm(blocks), add.take()));
  return totals;
}

}  // namespace gptc

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

int lanesOf(int64_t columns) {
  int lanes = 64;
  while (lanes > columns)
    lanes /= 2;
  return lanes;
}

Stmt addToLanes(Placer &placer, const std::vector<const RowSum *> &sums, llvm::ArrayRef<Buffer> lanes, int64_t columns,
                bool goesOn, const std::function<std::vector<Expr>(const Expr &)> &terms) {
  const int64_t count = lanes.front()->size;
  Seq thread, element;
  const Var t = makeVar("t"), i = makeVar("i");
  std::vector<Buffer> accs;
  placer.push(thread, {t});
  for (size_t n = 0; n < sums.size(); ++n) {
    accs.push_back(makeBuffer("acc", sums[n]->node->dtype, Storage::reg, 1));
    thread.alloc(accs.back());
    thread.add(store(accs.back(), imm(0), goesOn ? load(lanes[n], kir::ref(t)) : sums[n]->start()));
  }
  Expr steps = imm(columns / count);
  if (const int64_t rest = columns % count)
    steps = steps + select(lt(kir::ref(t), imm(rest)), imm(1), imm(0));
  placer.push(element, {i});
  const std::vector<Expr> values = terms(kir::ref(i) * count + kir::ref(t));
  for (size_t n = 0; n < sums.size(); ++n)
    element.add(store(accs[n], imm(0), binary(sums[n]->op, load(accs[n], imm(0)), values[n])));
  placer.pop();
  thread.add(loop(LoopKind::serial, i, steps, element.take()));
  for (size_t n = 0; n < sums.size(); ++n)
    thread.add(store(lanes[n], kir::ref(t), load(accs[n], imm(0))));
  placer.pop();
  return loop(LoopKind::block_thread, t, imm(count), thread.take());
}

Stmt sumByLanes(Placer &placer, const Var &c, const std::vector<const RowSum *> &sums, llvm::ArrayRef<Buffer> lanes,
                int64_t columns) {
  return addToLanes(placer, sums, lanes, columns, false, [&](const Expr &column) {
    placer.let(c, column);
    std::vector<Expr> values;
    for (const RowSum *sum : sums)
      values.push_back(sum->element);
    return placer.place(values, values.size() > 1);
  });
}

std::vector<Expr> loadsOf(const Sweeps &sweeps, const Var &c, unsigned least) {
  std::vector<Expr> loads;  // in their order
  std::map<const ExprNode *, unsigned> sweepsOf;
  auto isOfColumn = [&](const Expr &e) {
    return !collect({e}, [&](const Expr &n) { return n->kind == ExprKind::Var && n->var == c; }).empty();
  };
  for (const std::vector<Expr *> &sweep : sweeps) {
    std::vector<Expr> roots;
    for (const Expr *e : sweep)
      roots.push_back(*e);
    for (const Expr &e : collect(roots, [&](const Expr &n) {
           return n->kind == ExprKind::Load && n->buffer->storage == Storage::global && isOfColumn(n);
         }))
      if (sweepsOf[e.get()]++ == 0)
        loads.push_back(e);
  }
  llvm::erase_if(loads, [&](const Expr &e) { return sweepsOf[e.get()] < least; });
  return loads;
}

void replaceLoads(Placer &placer, const Sweeps &sweeps, llvm::ArrayRef<Expr> loads, llvm::ArrayRef<Buffer> from,
                  const Var &c) {
  std::map<const ExprNode *, Expr> again;
  for (auto [e, buffer] : llvm::zip_equal(loads, from))
    again[e.get()] = load(buffer, kir::ref(c));
  for (const std::vector<Expr *> &sweep : sweeps)
    for (Expr *e : sweep) {
      std::map<const ExprNode *, Expr> memo;
      *e = placer.intern(substitute(*e, memo, [&](const Expr &n) -> Expr {
        auto it = again.find(n.get());
        return it == again.end() ? nullptr : it->second;
      }));
    }
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

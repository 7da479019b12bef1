// The scatter recipe: embedding_grad, which adds rows to a table at computed places.
//
//   table[v] = (init[v] or +0) + dy[n1] + dy[n2] + ...   for the tokens n1 < n2 < ... with id v
//
// One chain per element, in token order: a later micro-batch that continues from `init` gives the same bits as one
// large one.
//
//   1. The table is copied from init or zeroed, by tasks of rows.
//   2. Tasks take columns and walk the tokens in order, so that no two tasks touch one element. Ids are clamped to the
//      table.
// On CUDA, where tasks are many and short, rows add their own tokens instead (scatter_lists.h), in the same order.
#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/scatter_lists.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

using namespace kir;

namespace {

/// The one scatter op of the group if its result is a result of the group; else null.
const Op *scatterOf(const Op &fused) {
  const Op *found = nullptr;
  for (const Op &op : *fused.body)
    if (op.def().fusion == FusionKind::scatter) {
      if (found)
        return nullptr;
      found = &op;
    }
  return found && llvm::is_contained(fused.body->back()->operands(), found->result(0)) ? found : nullptr;
}

bool matches(const Op &fused) {
  const Op *scatter = scatterOf(fused);
  if (!scatter)
    return false;
  for (const Op &op : *fused.body) {
    FusionKind f = op.def().fusion;
    bool other = f == FusionKind::pointwise || f == FusionKind::gather ||
                 op.isOneOf(OpKind::constant, OpKind::yield, OpKind::reshape);
    bool reads = !op.is(OpKind::yield) && llvm::is_contained(op.operands(), scatter->result(0));
    if (&op != scatter && (!other || reads))
      return false;
  }
  return true;
}

Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  const Type &table = scatterOf(fused)->result(0)->type;
  const int64_t columns = table.dim(-1);
  if (target.isCuda()) {
    s.threads = 256;
    s.vec = target.lanes(DType::f32);
    s.task = tokensOfChunk(scatterOf(fused)->operand(1)->type.elements());
    return s;
  }
  s.vec = 2 * target.lanes(DType::f32);
  s.task = elementsPerTask(table.elements(), 8, target);
  s.nc = columns;
  if (scatterOf(fused)->operand(0)->type.bytes() > 64 << 10)
    s.nc =
        std::clamp<int64_t>(roundUp(ceilDiv(columns, 4 * target.threads), 16), std::min<int64_t>(columns, 64), columns);
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda()) {
    // Smaller chunks need more memory for counts.
    std::vector<Schedule> all = ScheduleGrid(base)
                                    .over(&Schedule::task, {base.task, 2 * base.task, 4 * base.task})
                                    .over(&Schedule::vec, {1, 2, 4, 8})
                                    .take();
    llvm::erase_if(all, [](const Schedule &s) { return s.task > largestChunk; });
    return all;
  }
  return ScheduleGrid(base)
      .over(&Schedule::task, {base.task / 2, base.task, 2 * base.task})
      .over(&Schedule::nc, {base.nc / 4 / 16 * 16, base.nc / 2 / 16 * 16, base.nc, 2 * base.nc})
      .take();
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  GroupEval g(fused, compute);
  Placer placer;
  const Op &op = *scatterOf(fused);
  const Value *dy = op.operand(0), *ids = op.operand(1), *init = op.numOperands() > 2 ? op.operand(2) : nullptr;
  const Type &table = op.result(0)->type;
  const int64_t columns = table.dim(-1), tokens = ids->type.elements();
  GPTC_CHECK(table.rank() == 2 && dy->type.dim(-1) == columns && dy->type.rows() == tokens, "{}", print(op));
  std::vector<unsigned> tables, others;
  for (unsigned i = 0; i < fused.numResults(); ++i)
    (g.output(i) == op.result(0) ? tables : others).push_back(i);

  LoweredGroup out;
  out.kernel.name = g.kernelName();
  if (s.threads > 0) {
    GPTC_CHECK(s.task > 0 && s.task <= largestChunk && s.task % tokensOfChunk(1) == 0,
               "a scatter schedule with chunks of {}", s.task);
    addByLists(g, op, tables, s, out);
    for (unsigned i : others)
      out.kernel.body.push_back(pointwiseLoops(g, {i}, s));
    return out;
  }
  out.kernel.params = g.params();

  g.bind(op.result(0), [&](const Point &p) { return init ? g.at(init, p) : fimm(0, compute); });
  out.kernel.body.push_back(pointwiseLoops(g, tables, s));

  const int64_t each = std::clamp<int64_t>(s.nc > 0 ? s.nc : columns, 1, columns);
  const int64_t tasks = ceilDiv(columns, each);
  Var t = makeVar("t"), n = makeVar("n"), c = makeVar("c");
  Seq task, token, element;
  placer.push(task, {t});
  Expr base = tasks == 1 ? imm(0) : placer.let("base", kir::ref(t) * imm(each));
  Expr count = columns % each ? placer.let("count", min(imm(each), imm(columns) - base)) : imm(each);
  Point tokenPoint, dyPoint;
  tokenPoint.add(kir::ref(n), ids->type.dims);
  dyPoint.add(kir::ref(n), llvm::ArrayRef<Dim>(dy->type.dims).drop_back());
  dyPoint.add(base + kir::ref(c), llvm::ArrayRef<Dim>(dy->type.dims).take_back());
  g.setDomain(dyPoint);
  placer.push(token, {n});
  Expr id = cast(DType::i64, placer.place(g.at(ids, tokenPoint)));
  id = placer.let("id", min(max(id, imm(0)), imm(table.dim(0) - 1)));
  placer.push(element, {c});
  Expr value = placer.place(g.at(dy, dyPoint));
  Point at;
  at.add(id, llvm::ArrayRef<Dim>(table.dims).take_front());
  at.add(base + kir::ref(c), llvm::ArrayRef<Dim>(table.dims).take_back());
  for (unsigned i : tables) {
    Expr sum = g.loadAt(g.outputs[i], table, at) + value;
    Stmt st = g.storeOutput(i, at, sum);
    Expr index = placer.place(st->index);
    element.add(store(st->buffer, index, placer.place(st->value)));
  }
  placer.pop();
  token.add(loop(LoopKind::vector, c, count, element.take(), powerOfTwo(each, s.vec > 0 ? s.vec : 16)));
  placer.pop();
  task.add(loop(LoopKind::serial, n, imm(tokens), token.take()));
  placer.pop();
  out.kernel.body.push_back(tasksLoop(t, tasks, task.take()));

  for (unsigned i : others)
    out.kernel.body.push_back(pointwiseLoops(g, {i}, s));
  return out;
}

}  // namespace

const Recipe &scatterRecipe() {
  static const Recipe recipe = {RecipeKind::scatter, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

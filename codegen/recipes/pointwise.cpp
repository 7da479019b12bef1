// The pointwise recipe: computes every result element by itself.
//
//   1. A trial evaluation with one index over all elements shows where that index would have to be divided (a suffix
//      broadcast, padding, an op that asks for indices).
//   2. The innermost such place cuts the domain into rows x inner; if there is none, the loop is flat. Only the rows'
//      index is divided, once per row.
//   3. A task takes several rows, or a part of one, and the vector loop runs over the inner elements. On CUDA a task is
//      one thread, which takes a few elements in one access.
//      With Schedule::stream, stores of results that cannot share memory with an operand bypass the caches.
//   4. On CUDA zeros are stored below the rows of f8e4m3 that memory has beyond them (zeroesRowsBelow).
//   5. Results of different shapes (a scalar beside full tensors) get loops of their own, largest first: a small result
//      may overwrite an operand that the larger ones read.
#include "codegen/recipes/pointwise.h"

#include "codegen/recipes/place.h"
#include "codegen/recipes/recipe.h"
#include "ir/access.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <numeric>

namespace gptc {

using namespace kir;

int64_t elementsPerTask(int64_t elements, double bytes, const Target &target) {
  double total = double(elements) * bytes;
  if (total < 160 << 10)
    return elements;
  double each = std::clamp(total / (16.0 * std::max(1u, target.threads)), double(32 << 10), double(256 << 10));
  return std::max<int64_t>(64, roundUp(int64_t(each / bytes), 64));
}

double trafficPerElement(const Op &fused, const Type &domain) {
  double bytes = 0;
  auto count = [&](const Type &t) {
    if (t.elements() == domain.elements())
      bytes += sizeOf(t.dtype);
  };
  for (const Value *v : fused.operands())
    count(v->type);
  for (unsigned i = 0; i < fused.numResults(); ++i)
    count(fused.result(i)->type);
  return std::max(bytes, 4.0);
}

bool sameExtents(llvm::ArrayRef<Dim> a, llvm::ArrayRef<Dim> b) {
  return a.size() == b.size() && llvm::equal(a, b, [](const Dim &x, const Dim &y) { return x.logical == y.logical; });
}

Stmt tasksLoop(const Var &t, int64_t tasks, std::vector<Stmt> body) {
  if (tasks == 1)
    return let(t, imm(0), std::move(body));
  return loop(LoopKind::parallel, t, imm(tasks), std::move(body));
}

Stmt threadsLoop(const Var &t, int64_t tasks, int64_t threads, std::vector<Stmt> body) {
  threads = std::min(threads, roundUp(tasks, 32));
  Var b = makeVar("block"), i = makeVar("thread");
  if (tasks % threads)
    body = {ifThen(lt(kir::ref(t), imm(tasks)), std::move(body))};
  Stmt numbered = let(t, kir::ref(b) * threads + kir::ref(i), std::move(body));
  return loop(LoopKind::grid, b, imm(ceilDiv(tasks, threads)),
              {loop(LoopKind::block_thread, i, imm(threads), {numbered})});
}

/// The number of elements inside the innermost cut of `dims` that the results need (all elements if there is none), and
/// the number of dimensions outside of it.
static std::pair<int64_t, unsigned> innerElements(GroupEval &g, llvm::ArrayRef<unsigned> results,
                                                  llvm::ArrayRef<Dim> dims) {
  Point flat;
  Expr index = kir::ref(makeVar("flat"));
  flat.add(index, dims);
  g.setDomain(flat);
  for (unsigned r : results)
    g.storeOutput(r, flat, g.at(g.output(r), flat));
  std::set<int64_t> cuts = g.splitsOf(index);
  int64_t inner = 1;
  for (unsigned d = dims.size(); d-- > 0;) {
    inner *= dims[d].logical;
    if (cuts.count(inner))
      return {inner, d};
  }
  return {inner, 0};
}

/// `width` lanes, or fewer if expressions divide the column index: a vector that crosses no multiple of the divisor
/// loads from consecutive places. At least 8 lanes, as narrower vectors are no faster than single elements.
static int widthWithinDivisors(llvm::ArrayRef<Expr> values, const Var &column, int width) {
  auto isColumn = [&](const Expr &e) { return e->kind == ExprKind::Var && e->var == column; };
  for (const Expr &e : collect(values, [](const Expr &e) {
         return e->kind == ExprKind::Binary && (e->bop == BinaryOp::div || e->bop == BinaryOp::rem) && isInt(e->dtype);
       })) {
    int64_t d = 0;
    if (!isImm(e->args[1], &d) || collect({e->args[0]}, isColumn).empty())
      continue;
    if (const int64_t part = d & -d; part >= 8)
      width = int(std::min<int64_t>(width, part));
  }
  return width;
}

Stmt pointwiseLoops(GroupEval &g, llvm::ArrayRef<unsigned> results, const Schedule &s) {
  const Type type = g.fused.result(results[0])->type;
  llvm::ArrayRef<Dim> dims = type.dims;
  auto [inner, outside] = innerElements(g, results, dims);
  const int64_t rows = type.elements() / inner;
  const bool cuda = s.threads > 0;
  int width = cuda ? int(std::gcd(inner, std::max(1, s.vec))) : powerOfTwo(inner, s.vec > 0 ? s.vec : 16);
  const int64_t perTask = cuda ? width : s.task > 0 ? s.task : type.elements();

  Placer placer;
  Var t = makeVar("t"), r = makeVar("r"), c = makeVar("c");
  Seq task, row, element;
  placer.push(task, {t});
  Expr rowIndex, columnBase, columns = imm(inner), rowsHere;
  int64_t tasks;
  if (cuda || inner >= perTask || rows == 1) {
    // Each task has a part of one row.
    int64_t parts = ceilDiv(inner, perTask);
    int64_t each = cuda ? width : std::min(inner, roundUp(ceilDiv(inner, parts), 64));
    parts = ceilDiv(inner, each);
    tasks = rows * parts;
    rowIndex = parts == 1 ? kir::ref(t) : rows == 1 ? imm(0) : placer.let("row", kir::ref(t) / imm(parts));
    if (parts > 1) {
      columnBase = placer.let("base", (rows == 1 ? kir::ref(t) : kir::ref(t) % imm(parts)) * imm(each));
      columns = inner % each ? placer.let("n", min(imm(each), imm(inner) - columnBase)) : imm(each);
    }
  } else {
    // Each task has several rows.
    int64_t each = std::max<int64_t>(1, perTask / inner);
    tasks = ceilDiv(rows, each);
    each = ceilDiv(rows, tasks), tasks = ceilDiv(rows, each);
    Expr first = placer.let("first", kir::ref(t) * imm(each));
    rowsHere = rows % each ? placer.let("n", min(imm(each), imm(rows) - first)) : imm(each);
    placer.push(row, {r});
    rowIndex = placer.let("row", first + kir::ref(r));
  }
  placer.push(element, {c});

  Point p;
  p.add(rowIndex, dims.take_front(outside));
  p.add(columnBase ? columnBase + kir::ref(c) : kir::ref(c), dims.drop_front(outside));
  g.setDomain(p);
  std::vector<Expr> values;
  for (unsigned i : results)
    values.push_back(g.at(g.output(i), p));
  if (!cuda)
    width = widthWithinDivisors(values, c, width);
  values = placer.place(values, values.size() > 1);
  for (auto [i, value] : llvm::zip(results, values)) {
    Stmt st = g.storeOutput(i, p, value);
    element.add(store(st->buffer, placer.place(st->index), st->value));
  }
  const bool single = cuda ? width == 1 : inner == 1;
  Stmt body = single ? let(c, imm(0), element.take()) : loop(LoopKind::vector, c, columns, element.take(), width);
  if (rowsHere) {
    row.add(body);
    task.add(loop(LoopKind::serial, r, rowsHere, row.take()));
  } else {
    task.add(body);
  }
  return cuda ? threadsLoop(t, tasks, s.threads, task.take()) : tasksLoop(t, tasks, task.take());
}

/// Step 4.
static Stmt zeroRowsBelow(const Buffer &to, const Type &t, int64_t threads) {
  const Var i = makeVar("i");
  return threadsLoop(i, t.paddedElements() - t.elements(), threads, {store(to, kir::ref(i) + t.elements(), fimm(0))});
}

static bool matches(const Op &fused) {
  for (const Op &op : *fused.body) {
    FusionKind f = op.def().fusion;
    if (f != FusionKind::pointwise && f != FusionKind::gather &&
        !op.isOneOf(OpKind::constant, OpKind::yield, OpKind::reshape))
      return false;
  }
  return true;
}

/// Whether result i is the low copy of a parameter, which the parameter's update makes for the next step.
static bool isCopyOfParameter(const Op &fused, unsigned i) {
  const Value *v = fused.body->back()->operand(i);
  return v->def && updatesParameter(*v->def) && lowCopyOf(*v->def) && v->index + 1 == v->def->numResults();
}

/// Whether result i shares memory with no operand. Lines shared with an operand are in the caches when they are stored.
static bool liesApart(const Op &fused, unsigned i) {
  for (unsigned j = 0; j < fused.numOperands() && !isCopyOfParameter(fused, i); ++j)
    if (mayShare(fused, i, j))
      return false;
  return true;
}

/// Whether some result will have left the caches before it is read again: it is larger than they are, or it is the low
/// copy of a parameter, whose update moves many times as many bytes.
static bool readAgainLate(const Op &fused, const Target &target) {
  constexpr int64_t smallCopy = 1 << 20;  // all of a model with such parameters may fit
  for (unsigned i = 0; i < fused.numResults(); ++i)
    if (liesApart(fused, i) &&
        fused.result(i)->type.bytes() >= (isCopyOfParameter(fused, i) ? smallCopy : 2 * target.l3Bytes))
      return true;
  return false;
}

static Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  Type domain = groupDomain(fused);
  if (target.isCuda()) {
    s.threads = 256;
    s.vec = domain.elements() < 1 << 16 ? 1 : target.lanes(DType::f32);  // small ones need their threads more
    return s;
  }
  s.vec = 2 * target.lanes(DType::f32);
  s.task = elementsPerTask(domain.elements(), trafficPerElement(fused, domain), target);
  s.stream = readAgainLate(fused, target);
  return s;
}

static std::vector<Schedule> space(const Op &fused, const Schedule &base, const Target &target) {
  const int lanes = target.lanes(DType::f32);
  if (target.isCuda())
    return ScheduleGrid(base).over(&Schedule::threads, {64, 128, 256, 512}).take();
  ScheduleGrid grid(base);
  for (unsigned i = 0; i < fused.numResults(); ++i)
    if (liesApart(fused, i) && fused.result(i)->type.bytes() > target.l2Bytes) {
      grid.over(&Schedule::stream);
      break;
    }
  return grid.over(&Schedule::vec, {lanes, 2 * lanes, 4 * lanes})
      .over(&Schedule::task,
            {base.task / 4 / 64 * 64, base.task / 2 / 64 * 64, base.task, 2 * base.task, 4 * base.task})
      .take();
}

static LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  GroupEval g(fused, compute);
  for (unsigned i = 0; s.stream && i < fused.numResults(); ++i)
    g.outputs[i]->streamed = liesApart(fused, i);
  LoweredGroup out;
  out.kernel.name = g.kernelName();
  out.kernel.params = g.params();
  std::vector<unsigned> order(fused.numResults());
  for (unsigned i = 0; i < order.size(); ++i)
    order[i] = i;
  auto typeOf = [&](unsigned i) -> const Type & { return fused.result(i)->type; };
  std::stable_sort(order.begin(), order.end(),
                   [&](unsigned a, unsigned b) { return typeOf(a).elements() > typeOf(b).elements(); });
  while (!order.empty()) {
    std::vector<unsigned> same, rest;
    for (unsigned i : order)
      (typeOf(i).sameShape(typeOf(order[0])) ? same : rest).push_back(i);
    out.kernel.body.push_back(pointwiseLoops(g, same, s));
    order = rest;
  }
  for (unsigned i = 0; s.threads > 0 && compute == DType::f32 && i < fused.numResults(); ++i)
    if (zeroesRowsBelow(typeOf(i)))
      out.kernel.body.push_back(zeroRowsBelow(g.outputs[i], typeOf(i), s.threads));
  return out;
}

const Recipe &pointwiseRecipe() {
  static const Recipe recipe = {RecipeKind::pointwise, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

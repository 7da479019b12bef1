// The row recipe: sums or maxima over the last dimension, and the pointwise ops around them: layernorm, softmax, cross
// entropy and their gradients.
//
//   1. The outputs at (row, column) are one expression DAG in which Reduce nodes stand for row sums. A Reduce whose
//      argument holds Reduces of level n has level n+1.
//   2. A task takes a block of rows. For each row and level, one sweep over the columns adds to `vec` lanes in
//      registers; then the lanes are folded by halves to a scalar.
//   3. A last sweep stores the full outputs, and then row outputs are stored. Their values are computed before it,
//      because stores may overwrite operands.
//   4. If two sweeps need the same costly function (exp, tanh, ...), its values are kept for the row on the stack,
//      unless the row is too long.
//
// `vec` alone determines the order of a row's sum: element c is added to lane c mod vec, in order. The default of `vec`
// depends only on the row's length, so the bits are the same on all machines.
//
// On CUDA a block of threads computes a row, and each thread is a lane. Every thread computes the row's scalars itself.
// The lanes are folded in a shared buffer, and each sum has the same order as on the CPU.
#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <limits>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t keptBytes = 64 << 10;       // most bytes kept for a row, on the stack
constexpr int64_t keptSharedBytes = 8 << 10;  // the same on CUDA: more would leave too few blocks on a multiprocessor

bool isCostly(const Expr &e) {
  return e->kind == ExprKind::Unary && (e->uop == UnaryOp::exp || e->uop == UnaryOp::log || e->uop == UnaryOp::tanh ||
                                        e->uop == UnaryOp::sin || e->uop == UnaryOp::cos);
}

class RowBuilder {
public:
  RowBuilder(const Op &fused, const Schedule &s, const Target &target, DType compute)
      : g(fused, compute), s(s), target(target), domain(groupDomain(fused)), columns(domain.dim(-1)), lanes(s.vec),
        cuda(s.threads > 0) {
    GPTC_CHECK(lanes > 0, "row schedule without vec");
    GPTC_CHECK(!cuda || s.threads == std::max(lanes, 32), "a row schedule with {} threads", s.threads);
  }

  LoweredGroup build() {
    std::vector<unsigned> others;
    Point rowPoint, point;
    rowPoint.add(kir::ref(rowVar), domainRows());
    point.add(kir::ref(rowVar), domainRows()).add(kir::ref(c), llvm::ArrayRef<Dim>(domain.dims).take_back());
    g.setDomain(point);
    for (unsigned i = 0; i < g.fused.numResults(); ++i) {
      llvm::ArrayRef<Dim> dims = g.fused.result(i)->type.dims;
      if (sameExtents(dims, domain.dims))
        full.push_back({i, placer.intern(g.at(g.output(i), point))});
      else if (sameExtents(dims, domainRows()))
        perRow.push_back({i, placer.intern(g.at(g.output(i), rowPoint))});
      else
        others.push_back(i);
    }
    findSweeps();
    keepCostly();

    LoweredGroup out;
    out.kernel.name = g.kernelName();
    out.kernel.params = g.params();
    out.kernel.body.push_back(cuda ? emitBlocks(point, rowPoint) : emit(point, rowPoint));
    Schedule flat = s;
    if (cuda)
      flat.vec = target.lanes(DType::f32);
    for (unsigned i : others)
      out.kernel.body.push_back(pointwiseLoops(g, {i}, flat));
    return out;
  }

private:
  struct Output {
    unsigned result;
    Expr value;
  };
  struct Sum {
    Expr node;
    Var result;
    BinaryOp op;
    Expr element;
  };
  struct Kept {
    Buffer buffer;
    Expr value;
  };
  struct Sweep {
    std::vector<Sum> sums;
    std::vector<Output> stores;
    std::vector<Kept> keeps;
  };

  llvm::ArrayRef<Dim> domainRows() const { return llvm::ArrayRef<Dim>(domain.dims).drop_back(); }

  /// Groups Reduce nodes by level and replaces them by the variables that will hold their results.
  void findSweeps() {
    std::vector<Expr> roots;
    for (const auto *list : {&full, &perRow})
      for (const Output &o : *list)
        roots.push_back(o.value);
    std::map<const ExprNode *, unsigned> level;
    std::map<const ExprNode *, Expr> result;
    for (const Expr &e : collect(roots, [](const Expr &) { return true; })) {
      unsigned l = 0;
      for (const Expr &a : e->args)
        l = std::max(l, level[a.get()]);
      if (e->kind == ExprKind::Reduce) {
        GPTC_CHECK(e->axis == ReduceAxis::row, "the row recipe cannot sum over other dimensions");
        if (sweeps.size() <= l)
          sweeps.resize(l + 1);
        Var v = makeVar(e->bop == BinaryOp::max ? "rowmax" : "rowsum", e->dtype);
        sweeps[l].sums.push_back({e, v, e->bop, e->args[0]});
        result[e.get()] = kir::ref(v);
        ++l;
      }
      level[e.get()] = l;
    }
    auto resolve = [&](Expr &e) {
      e = placer.intern(substitute(e, resolved, [&](const Expr &n) -> Expr {
        auto it = result.find(n.get());
        return it == result.end() ? nullptr : it->second;
      }));
    };
    for (Sweep &w : sweeps)
      for (Sum &sum : w.sums)
        resolve(sum.element);
    for (auto *list : {&full, &perRow})
      for (Output &o : *list)
        resolve(o.value);
    if (!full.empty())
      sweeps.push_back({{}, full, {}});
  }

  static std::vector<Expr *> rootsOf(Sweep &w) {
    std::vector<Expr *> roots;
    for (Kept &k : w.keeps)
      roots.push_back(&k.value);
    for (Sum &sum : w.sums)
      roots.push_back(&sum.element);
    for (Output &o : w.stores)
      roots.push_back(&o.value);
    return roots;
  }

  void keepCostly() {
    std::map<const ExprNode *, std::pair<Expr, unsigned>> firstSweep;
    std::vector<std::pair<Expr, unsigned>> wanted;  // node and the sweep that computes it
    for (unsigned i = 0; i < sweeps.size(); ++i) {
      std::vector<Expr> roots;
      for (Expr *e : rootsOf(sweeps[i]))
        roots.push_back(*e);
      for (const Expr &e : collect(roots, isCostly)) {
        bool ofColumn = !collect({e}, [&](const Expr &n) { return n->kind == ExprKind::Var && n->var == c; }).empty();
        if (!ofColumn)
          continue;
        auto [it, isNew] = firstSweep.try_emplace(e.get(), std::pair{e, i});
        if (!isNew && it->second.second != i && !llvm::is_contained(wanted, it->second))
          wanted.push_back(it->second);
      }
    }
    int64_t room = (cuda ? keptSharedBytes : keptBytes) / int64_t(sizeOf(g.compute) * columns);
    if (int64_t(wanted.size()) > room)
      wanted.resize(std::max<int64_t>(room, 0));
    for (auto &[node, first] : wanted) {
      Buffer b = makeBuffer("kept", node->dtype, cuda ? Storage::shared : Storage::stack, roundUp(columns, lanes));
      Expr again = load(b, kir::ref(c));
      const ExprNode *what = node.get();
      for (unsigned i = first + 1; i < sweeps.size(); ++i)
        for (Expr *e : rootsOf(sweeps[i])) {
          std::map<const ExprNode *, Expr> memo;
          *e = placer.intern(substitute(*e, memo, [&](const Expr &n) { return n.get() == what ? again : nullptr; }));
        }
      sweeps[first].keeps.push_back({b, node});
    }
  }

  /// The work of a sweep at (row, c). Its terms are added to accs[...][slot].
  void emitElement(const Sweep &w, const Point &point, Seq &element, llvm::ArrayRef<Buffer> accs, const Expr &slot) {
    std::vector<Expr> roots;
    Sweep copy = w;
    for (Expr *e : rootsOf(copy))
      roots.push_back(*e);
    roots = placer.place(roots, roots.size() > 1);
    unsigned at = 0;
    for (const Kept &k : w.keeps)
      element.add(store(k.buffer, kir::ref(c), roots[at++]));
    for (unsigned i = 0; i < w.sums.size(); ++i)
      element.add(store(accs[i], slot, binary(w.sums[i].op, load(accs[i], slot), roots[at++])));
    for (const Output &o : w.stores) {
      Stmt st = g.storeOutput(o.result, point, roots[at++]);
      element.add(store(st->buffer, placer.place(st->index), st->value));
    }
  }

  static Expr startOf(const Sum &sum) {
    return fimm(sum.op == BinaryOp::add ? 0 : -std::numeric_limits<double>::infinity(), sum.node->dtype);
  }

  void emitSweep(const Sweep &w, const Point &point, Seq &row) {
    std::vector<Buffer> accs;
    for (const Sum &sum : w.sums) {
      Buffer acc = makeBuffer("acc", sum.node->dtype, Storage::reg, lanes);
      row.alloc(acc);
      Var i = makeVar("i");
      row.add(loop(LoopKind::vector, i, imm(lanes), {store(acc, lane(), startOf(sum))}, lanes));
      accs.push_back(acc);
    }
    for (const Kept &k : w.keeps)
      row.alloc(k.buffer);

    Seq element;
    placer.push(element, {c});
    emitElement(w, point, element, accs, lane());
    placer.pop();
    int width = w.sums.empty() ? powerOfTwo(columns, 2 * target.lanes(DType::f32)) : lanes;
    row.add(loop(LoopKind::vector, c, imm(columns), element.take(), width));
    for (unsigned i = 0; i < w.sums.size(); ++i)
      placer.let(w.sums[i].result, hreduce(accs[i], w.sums[i].op));
  }

  Stmt emit(const Point &point, const Point &rowPoint) {
    const int64_t rows = domain.rows();
    int64_t each = std::clamp<int64_t>(s.task, 1, rows), tasks = ceilDiv(rows, each);
    each = ceilDiv(rows, tasks), tasks = ceilDiv(rows, each);
    Var t = makeVar("t"), r = makeVar("r");
    Seq task, row;
    placer.push(task, {t});
    Expr first = placer.let("first", kir::ref(t) * imm(each));
    Expr n = rows % each ? placer.let("n", min(imm(each), imm(rows) - first)) : imm(each);
    placer.push(row, {r});
    placer.let(rowVar, first + kir::ref(r));
    for (const Sweep &w : sweeps)
      if (w.stores.empty())
        emitSweep(w, point, row);
    std::vector<Expr> values;
    for (const Output &o : perRow)
      values.push_back(o.value);
    values = placer.place(values);
    if (!full.empty())
      emitSweep(sweeps.back(), point, row);
    for (auto [o, value] : llvm::zip(perRow, values)) {
      Stmt st = g.storeOutput(o.result, rowPoint, value);
      row.add(store(st->buffer, placer.place(st->index), st->value));
    }
    placer.pop();
    task.add(loop(LoopKind::serial, r, n, row.take()));
    placer.pop();
    return tasksLoop(t, tasks, task.take());
  }

  /// A sweep by the threads of a block: thread t takes columns t, t + lanes, ...
  void emitBlockSweep(const Sweep &w, const Point &point, Seq &row) {
    std::vector<Buffer> accs, parts;
    Seq thread, element;
    Var t = makeVar("t"), i = makeVar("i");
    for (const Kept &k : w.keeps)
      row.alloc(k.buffer);
    placer.push(thread, {t});
    for (const Sum &sum : w.sums) {
      parts.push_back(makeBuffer("part", sum.node->dtype, Storage::shared, lanes));
      row.alloc(parts.back());
      accs.push_back(makeBuffer("acc", sum.node->dtype, Storage::reg, 1));
      thread.alloc(accs.back());
      thread.add(store(accs.back(), imm(0), startOf(sum)));
    }
    Expr steps = imm(columns / lanes);
    if (int64_t rest = columns % lanes)
      steps = steps + select(lt(kir::ref(t), imm(rest)), imm(1), imm(0));
    placer.push(element, {i});
    placer.let(c, kir::ref(i) * lanes + kir::ref(t));
    emitElement(w, point, element, accs, imm(0));
    placer.pop();
    thread.add(loop(LoopKind::serial, i, steps, element.take()));
    for (unsigned n = 0; n < accs.size(); ++n)
      thread.add(store(parts[n], kir::ref(t), load(accs[n], imm(0))));
    placer.pop();
    row.add(loop(LoopKind::block_thread, t, imm(lanes), thread.take()));
    for (unsigned n = 0; n < accs.size(); ++n)
      placer.let(w.sums[n].result, hreduce(parts[n], w.sums[n].op));
  }

  /// As `emit`, but with one block of threads per row.
  Stmt emitBlocks(const Point &point, const Point &rowPoint) {
    Seq row, last;
    placer.push(row, {rowVar});
    for (const Sweep &w : sweeps)
      if (w.stores.empty())
        emitBlockSweep(w, point, row);
    std::vector<Expr> values;
    for (const Output &o : perRow)
      values.push_back(o.value);
    values = placer.place(values);
    if (!full.empty())
      emitBlockSweep(sweeps.back(), point, row);
    for (auto [o, value] : llvm::zip(perRow, values)) {
      Stmt st = g.storeOutput(o.result, rowPoint, value);
      last.add(store(st->buffer, placer.place(st->index), st->value));
    }
    if (!perRow.empty())
      row.add(loop(LoopKind::block_thread, makeVar("t"), imm(1), last.take()));
    placer.pop();
    return loop(LoopKind::grid, rowVar, imm(domain.rows()), row.take());
  }

  GroupEval g;
  const Schedule &s;
  const Target &target;
  const Type domain;
  const int64_t columns;
  const int lanes;
  const bool cuda;
  const Var rowVar = makeVar("row"), c = makeVar("c");
  Placer placer;
  std::vector<Output> full, perRow;
  std::vector<Sweep> sweeps;
  std::map<const ExprNode *, Expr> resolved;
};

bool matches(const Op &fused) {
  Type domain = groupDomain(fused);
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield, OpKind::reshape))
      continue;
    FusionKind f = op.def().fusion;
    if (f == FusionKind::row ? op.operand(0)->type.dim(-1) != domain.dim(-1)
                             : f != FusionKind::pointwise && f != FusionKind::gather)
      return false;
  }
  return domain.rank() > 0;
}

Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  Type domain = groupDomain(fused);
  int64_t columns = domain.dim(-1);
  s.vec = 64;
  while (s.vec > columns)
    s.vec /= 2;
  if (target.isCuda()) {
    s.threads = std::max(s.vec, 32);
    return s;
  }
  s.task = std::max<int64_t>(1, elementsPerTask(domain.elements(), trafficPerElement(fused, domain), target) / columns);
  return s;
}

// `vec` does not vary: it determines the order of sums.
std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda())
    return {};  // a thread for each lane or column
  return ScheduleGrid(base)
      .over(&Schedule::task, {base.task / 4, base.task / 2, base.task, 2 * base.task, 4 * base.task})
      .take();
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &target, DType compute) {
  return RowBuilder(fused, s, target, compute).build();
}

}  // namespace

const Recipe &rowRecipe() {
  static const Recipe recipe = {RecipeKind::row, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

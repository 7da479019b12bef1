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
// On CUDA a block computes a row. Every thread computes the row's scalars itself.
//   - What several sweeps load is loaded once, 16 bytes at a time, and kept in shared memory, unless it takes more than
//     there is.
//   - Maxima and stores are shared by all threads, which take a few neighbouring columns each. Maxima have no order (of
//     +0 and -0, either). If the last sums are maxima on which no full output depends, one sweep takes and stores.
//   - The terms of a sum are added by as many threads as there are lanes, in the order of the CPU. Costly terms are
//     computed by all threads before, a part of the row at a time.
//   - Where memory holds more columns than a result has, zeros are stored there: a product of a library may then take
//     the row with its padding (matmul/cublaslt.cpp).
#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/row_sums.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <functional>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t keptBytes = 64 << 10;  // most bytes kept for a row, on the stack
// On CUDA, in shared memory: the same; terms that are computed before they are added; what lies beside staged rows.
constexpr int64_t keptSharedBytes = 8 << 10, termsBytes = 8 << 10, reservedShared = 24 << 10;

bool isCostly(const Expr &e) {
  return e->kind == ExprKind::Unary && (e->uop == UnaryOp::exp || e->uop == UnaryOp::log || e->uop == UnaryOp::tanh ||
                                        e->uop == UnaryOp::sin || e->uop == UnaryOp::cos);
}

class RowBuilder {
public:
  RowBuilder(const Op &fused, const Schedule &s, const Target &target, DType compute)
      : g(fused, compute), s(s), target(target), domain(groupDomain(fused)), columns(domain.dim(-1)), lanes(s.vec),
        cuda(s.threads > 0), width(columnsAtOnce(fused)) {
    GPTC_CHECK(lanes > 0, "row schedule without vec");
    GPTC_CHECK(!cuda || (s.threads >= std::max(lanes, 32) && (s.threads & (s.threads - 1)) == 0),
               "a row schedule with {} threads", s.threads);
  }

  LoweredGroup build() {
    std::vector<unsigned> others;
    Point rowPoint, point;
    g.approximates = cuda;
    rowPoint.add(kir::ref(rowVar), domainRows());
    point.add(kir::ref(rowVar), domainRows()).add(kir::ref(c), llvm::ArrayRef<Dim>(domain.dims).take_back());
    g.setDomain(point);
    for (unsigned i = 0; i < g.fused.numResults(); ++i) {
      llvm::ArrayRef<Dim> dims = g.fused.result(i)->type.dims;
      if (sameExtents(dims, domain.dims))
        full.push_back({i, placer.intern(cuda ? g.stored(i, point) : g.at(g.output(i), point))});
      else if (sameExtents(dims, domainRows()))
        perRow.push_back({i, placer.intern(g.at(g.output(i), rowPoint))});
      else
        others.push_back(i);
    }
    findSweeps();
    keepCostly();
    if (cuda)
      stageLoads();

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
  struct Kept {
    Buffer buffer;
    Expr value;
  };
  struct Sweep {
    std::vector<RowSum> sums;
    std::vector<Output> stores;
    std::vector<Kept> keeps;
  };

  llvm::ArrayRef<Dim> domainRows() const { return llvm::ArrayRef<Dim>(domain.dims).drop_back(); }

  /// One sweep for each level of sums, and a last one that stores the full outputs, or the last of these does.
  void findSweeps() {
    std::vector<Expr *> roots;
    for (auto *list : {&full, &perRow})
      for (Output &o : *list)
        roots.push_back(&o.value);
    for (std::vector<RowSum> &sums : takeRowSums(placer, roots))
      sweeps.push_back({std::move(sums), {}, {}});
    if (mayStoreWithMaxima())
      sweeps.back().stores = full;
    else if (!full.empty())
      sweeps.push_back({{}, full, {}});
  }
  /// Row outputs must be at hand before the stores, too, which may overwrite operands.
  bool mayStoreWithMaxima() const {
    if (!cuda || sweeps.empty() || full.empty())
      return false;
    std::vector<Expr> rows, all;
    for (const Output &o : perRow)
      rows.push_back(o.value);
    for (const Output &o : full)
      all.push_back(o.value);
    auto isResult = [&](const Expr &e) {
      return e->kind == ExprKind::Var &&
             llvm::any_of(sweeps.back().sums, [&](const RowSum &sum) { return sum.result == e->var; });
    };
    return llvm::all_of(sweeps.back().sums, [](const RowSum &sum) { return sum.op == BinaryOp::max; }) &&
           collect(all, isResult).empty() &&
           collect(rows, [](const Expr &e) { return e->kind == ExprKind::Load; }).empty();
  }

  static std::vector<Expr *> rootsOf(Sweep &w) {
    std::vector<Expr *> roots;
    for (Kept &k : w.keeps)
      roots.push_back(&k.value);
    for (RowSum &sum : w.sums)
      roots.push_back(&sum.element);
    for (Output &o : w.stores)
      roots.push_back(&o.value);
    return roots;
  }

  bool isOfColumn(const Expr &e) const {
    return !collect({e}, [&](const Expr &n) { return n->kind == ExprKind::Var && n->var == c; }).empty();
  }

  void keepCostly() {
    std::map<const ExprNode *, std::pair<Expr, unsigned>> firstSweep;
    std::vector<std::pair<Expr, unsigned>> wanted;  // node and the sweep that computes it
    for (unsigned i = 0; i < sweeps.size(); ++i) {
      std::vector<Expr> roots;
      for (Expr *e : rootsOf(sweeps[i]))
        roots.push_back(*e);
      for (const Expr &e : collect(roots, isCostly)) {
        if (!isOfColumn(e))
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

  void emitSweep(const Sweep &w, const Point &point, Seq &row) {
    std::vector<Buffer> accs;
    for (const RowSum &sum : w.sums) {
      Buffer acc = makeBuffer("acc", sum.node->dtype, Storage::reg, lanes);
      row.alloc(acc);
      Var i = makeVar("i");
      row.add(loop(LoopKind::vector, i, imm(lanes), {store(acc, lane(), sum.start())}, lanes));
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

  // ---- CUDA

  /// Makes all sweeps read shared memory where several make the same load.
  void stageLoads() {
    Sweeps all;
    for (Sweep &w : sweeps)
      all.push_back(rootsOf(w));
    const std::vector<Expr> loads = loadsOf(all, c, 2);
    int64_t bytes = 0;
    for (const Expr &e : loads)
      bytes += columns * int64_t(sizeOf(e->buffer->dtype));
    if (loads.empty() || bytes + reservedShared > target.sharedBytes)
      return;
    std::vector<Buffer> rows;
    for (const Expr &e : loads) {
      rows.push_back(makeBuffer("row", e->buffer->dtype, Storage::shared, columns));
      staged.push_back({rows.back(), e});
    }
    replaceLoads(placer, all, loads, rows, c);
  }

  /// Loops over the columns [first, first + count) by all threads of a block, of which this is `t`: groups of a few
  /// neighbours, then the rest one by one. `body` adds what a column takes; c is that column, `slot` its place in the
  /// group.
  void eachColumn(Seq &thread, const Var &t, const Expr &first, int64_t count,
                  const std::function<void(Seq &, const Expr &slot)> &body) {
    const int64_t groups = count / width, rest = count % width, threads = s.threads;
    const Var i = makeVar("i");
    if (groups > 0) {
      Expr steps = imm(groups / threads);
      if (groups % threads)
        steps = steps + select(lt(kir::ref(t), imm(groups % threads)), imm(1), imm(0));
      Seq group, element;
      placer.push(group, {i});
      const Expr begin = placer.let("first", first + (kir::ref(i) * threads + kir::ref(t)) * width);
      placer.push(element, {c});
      body(element, width == 1 ? imm(0) : lane());
      placer.pop();
      group.add(width == 1 ? let(c, begin, element.take())
                           : loop(LoopKind::vector, c, imm(width), element.take(), width, begin));
      placer.pop();
      thread.add(loop(LoopKind::serial, i, steps, group.take()));
    }
    if (rest > 0) {
      Seq element;
      placer.push(element, {c});
      body(element, imm(0));
      placer.pop();
      thread.add(
          ifThen(lt(kir::ref(t), imm(rest)), {let(c, first + (imm(groups * width) + kir::ref(t)), element.take())}));
    }
  }

  /// Maxima, by all threads, what this sweep stores, and, in the row's first sweep, what is staged.
  void emitMaxima(const Sweep &w, const Point &point, bool isFirst, Seq &row) {
    std::vector<const RowSum *> maxima;
    for (const RowSum &sum : w.sums)
      if (sum.op != BinaryOp::add)
        maxima.push_back(&sum);
    const std::vector<Kept> stages = isFirst ? staged : std::vector<Kept>();
    if (maxima.empty() && stages.empty())
      return;
    for (const Kept &k : stages)
      row.alloc(k.buffer);
    // A thread takes from memory what it stages.
    auto asLoaded = [&](const Expr &e) {
      std::map<const ExprNode *, Expr> memo;
      return substitute(e, memo, [&](const Expr &n) -> Expr {
        for (const Kept &k : stages)
          if (n->kind == ExprKind::Load && n->buffer == k.buffer)
            return k.value;
        return nullptr;
      });
    };
    Seq thread;
    Var t = makeVar("t");
    std::vector<Buffer> accs, parts;
    placer.push(thread, {t});
    for (const RowSum *sum : maxima) {
      parts.push_back(makeBuffer("part", sum->node->dtype, Storage::shared, s.threads));
      row.alloc(parts.back());
      accs.push_back(makeBuffer("acc", sum->node->dtype, Storage::reg, width));
      thread.alloc(accs.back());
      thread.add(loop(LoopKind::vector, makeVar("l"), imm(width), {store(accs.back(), lane(), sum->start())}, width));
    }
    eachColumn(thread, t, imm(0), columns, [&](Seq &element, const Expr &slot) {
      std::vector<Expr> values;
      for (const Kept &k : stages)
        values.push_back(k.value);
      for (const RowSum *sum : maxima)
        values.push_back(asLoaded(sum->element));
      for (const Output &o : w.stores)
        values.push_back(asLoaded(o.value));
      values = placer.place(values, values.size() > 1);
      unsigned at = 0;
      for (const Kept &k : stages)
        element.add(store(k.buffer, kir::ref(c), values[at++]));
      for (unsigned n = 0; n < maxima.size(); ++n)
        element.add(store(accs[n], slot, binary(maxima[n]->op, load(accs[n], slot), values[at++])));
      for (const Output &o : w.stores) {
        const Stmt st = g.storeOutput(o.result, point, values[at++]);
        element.add(store(st->buffer, placer.place(st->index), st->value));
      }
    });
    for (unsigned n = 0; n < maxima.size(); ++n)
      thread.add(store(parts[n], kir::ref(t), width == 1 ? load(accs[n], imm(0)) : hreduce(accs[n], maxima[n]->op)));
    placer.pop();
    row.add(loop(LoopKind::block_thread, t, imm(s.threads), thread.take()));
    for (unsigned n = 0; n < maxima.size(); ++n)
      placer.let(maxima[n]->result, hreduce(parts[n], maxima[n]->op));
  }

  /// Sums. Costly terms, and what is kept, are computed by all threads; then each lane adds its own.
  void emitSums(const Sweep &w, Seq &row) {
    std::vector<const RowSum *> adds;
    bool costly = !w.keeps.empty();
    for (const RowSum &sum : w.sums)
      if (sum.op == BinaryOp::add) {
        adds.push_back(&sum);
        costly |= !collect({sum.element}, isCostly).empty();
      }
    std::vector<Buffer> parts;
    for (const RowSum *sum : adds) {
      parts.push_back(makeBuffer("part", sum->node->dtype, Storage::shared, lanes));
      row.alloc(parts.back());
    }
    if (costly)
      sumInTiles(w, adds, parts, row);
    else if (!adds.empty())
      row.add(sumByLanes(placer, c, adds, parts, columns));
    for (unsigned n = 0; n < adds.size(); ++n)
      placer.let(adds[n]->result, hreduce(parts[n], BinaryOp::add));
  }

  void sumInTiles(const Sweep &w, const std::vector<const RowSum *> &adds, llvm::ArrayRef<Buffer> parts, Seq &row) {
    const int64_t room = termsBytes / int64_t(sizeOf(g.compute)) / std::max<int64_t>(1, int64_t(adds.size()));
    const int64_t tile = std::min(roundUp(columns, lanes), std::max<int64_t>(room / lanes, 1) * lanes),
                  tiles = columns / tile;
    for (const Kept &k : w.keeps)
      row.alloc(k.buffer);
    std::vector<Buffer> terms;
    for (const RowSum *sum : adds) {
      terms.push_back(makeBuffer("terms", sum->node->dtype, Storage::shared, tile));
      row.alloc(terms.back());
    }
    if (tiles > 1 && !adds.empty()) {
      const Var t = makeVar("t");
      std::vector<Stmt> starts;
      for (unsigned n = 0; n < adds.size(); ++n)
        starts.push_back(store(parts[n], kir::ref(t), adds[n]->start()));
      row.add(loop(LoopKind::block_thread, t, imm(lanes), std::move(starts)));
    }
    auto one = [&](Seq &seq, const Expr &first, int64_t count, bool goesOn) {
      Seq thread;
      Var t = makeVar("t");
      placer.push(thread, {t});
      eachColumn(thread, t, first, count, [&](Seq &element, const Expr &) {
        std::vector<Expr> values;
        for (const Kept &k : w.keeps)
          values.push_back(k.value);
        for (const RowSum *sum : adds)
          values.push_back(sum->element);
        values = placer.place(values, values.size() > 1);
        unsigned at = 0;
        for (const Kept &k : w.keeps)
          element.add(store(k.buffer, kir::ref(c), values[at++]));
        for (unsigned n = 0; n < adds.size(); ++n)
          element.add(store(terms[n], kir::ref(c) - first, values[at++]));
      });
      placer.pop();
      seq.add(loop(LoopKind::block_thread, t, imm(s.threads), thread.take()));
      if (!adds.empty())
        seq.add(addToLanes(placer, adds, parts, count, goesOn, [&](const Expr &term) {
          std::vector<Expr> values;
          for (const Buffer &b : terms)
            values.push_back(load(b, term));
          return values;
        }));
    };
    if (tiles > 1) {
      Seq turn;
      const Var n = makeVar("tile");
      placer.push(turn, {n});
      one(turn, placer.let("first", kir::ref(n) * tile), tile, true);
      placer.pop();
      row.add(loop(LoopKind::serial, n, imm(tiles), turn.take()));
    } else if (tiles == 1) {
      one(row, imm(0), tile, false);
    }
    if (const int64_t rest = columns % tile)
      one(row, imm(tiles * tile), rest, tiles > 0);
  }

  /// The last sweep, by all threads. What full outputs select by a condition of the row alone, as whether it has a
  /// target, is asked once for the row and not for each element.
  void emitStores(const Sweep &w, const Point &point, Seq &row) {
    const Expr condition = conditionOf(w);
    if (!condition)
      return emitElements(w, point, row);
    const Expr asked = placer.place(condition);
    std::vector<Stmt> arms[2];
    for (unsigned i : {1u, 2u}) {
      Sweep arm = w;
      std::map<const ExprNode *, Expr> memo;
      for (Output &o : arm.stores)
        o.value = placer.intern(substitute(o.value, memo, [&](const Expr &n) -> Expr {
          return n->kind == ExprKind::Select && n->args[0] == condition ? n->args[i] : nullptr;
        }));
      Seq seq;
      placer.push(seq, {});
      emitElements(arm, point, seq);
      placer.pop();
      arms[i - 1] = seq.take();
    }
    row.add(ifThen(asked, std::move(arms[0]), std::move(arms[1])));
  }
  Expr conditionOf(const Sweep &w) const {
    std::vector<Expr> roots;
    for (const Output &o : w.stores)
      roots.push_back(o.value);
    for (const Expr &e : collect(roots, [](const Expr &n) { return n->kind == ExprKind::Select; }))
      if (!isOfColumn(e->args[0]))
        return e->args[0];
    return nullptr;
  }
  void emitElements(const Sweep &w, const Point &point, Seq &row) {
    Seq thread;
    Var t = makeVar("t");
    placer.push(thread, {t});
    eachColumn(thread, t, imm(0), columns,
               [&](Seq &element, const Expr &) { emitElement(w, point, element, {}, imm(0)); });
    placer.pop();
    row.add(loop(LoopKind::block_thread, t, imm(s.threads), thread.take()));
  }

  /// Zeros in the padding behind the row of each full output.
  void emitPadding(const Point &point, Seq &row) {
    for (const Output &o : full) {
      const Dim last = g.fused.result(o.result)->type.dims.back();
      const int64_t count = last.padded - last.logical, threads = s.threads;
      if (count == 0)
        continue;
      const Var t = makeVar("t"), i = makeVar("i");
      Seq thread, turn, element;
      placer.push(thread, {t});
      placer.push(turn, {i});
      placer.push(element, {c});
      const Stmt st = g.storeOutput(o.result, point, immLike(0, o.value));
      element.add(store(st->buffer, placer.place(st->index), st->value));
      placer.pop();
      turn.add(let(c, imm(columns) + kir::ref(i) * threads + kir::ref(t), element.take()));
      placer.pop();
      const Expr turns = imm(count / threads) + select(lt(kir::ref(t), imm(count % threads)), imm(1), imm(0));
      thread.add(loop(LoopKind::serial, i, turns, turn.take()));
      placer.pop();
      row.add(loop(LoopKind::block_thread, t, imm(threads), thread.take()));
    }
  }

  /// As `emit`, but with one block of threads per row.
  Stmt emitBlocks(const Point &point, const Point &rowPoint) {
    Seq row, last;
    placer.push(row, {rowVar});
    for (const Sweep &w : sweeps)
      if (!w.sums.empty()) {
        emitMaxima(w, point, &w == &sweeps.front(), row);
        emitSums(w, row);
      }
    std::vector<Expr> values;
    for (const Output &o : perRow)
      values.push_back(o.value);
    values = placer.place(values);
    if (!full.empty() && sweeps.back().sums.empty())
      emitStores(sweeps.back(), point, row);
    emitPadding(point, row);
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
  const int width;  // columns of a thread at a time, on CUDA
  const Var rowVar = makeVar("row"), c = makeVar("c");
  Placer placer;
  std::vector<Output> full, perRow;
  std::vector<Sweep> sweeps;
  std::vector<Kept> staged;  // loads that several sweeps share, on CUDA
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
  s.vec = lanesOf(columns);
  if (target.isCuda()) {
    // Four loads of each thread are under way. Of more threads only one block would find registers.
    s.threads = std::max({s.vec, 32, powerOfTwo(ceilDiv(columns, 4 * columnsAtOnce(fused)), 512)});
    return s;
  }
  s.task = std::max<int64_t>(1, elementsPerTask(domain.elements(), trafficPerElement(fused, domain), target) / columns);
  return s;
}

// `vec` does not vary: it determines the order of sums.
std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda()) {
    std::vector<Schedule> all =
        ScheduleGrid(base)
            .over(&Schedule::threads, {base.threads / 4, base.threads / 2, base.threads, 2 * base.threads})
            .take();
    llvm::erase_if(all, [&](const Schedule &s) { return s.threads < std::max(s.vec, 32) || s.threads > 1024; });
    return all;
  }
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

// The fold recipe: sums over the leading dimensions (tokens) for each column, such as bias gradients, the parameters'
// gradients of norms, and the loss. One kernel computes several sums over one domain and the pointwise ops around them.
//
//   acc = init or +0;  for each block of `fold` rows: { p = +0; for each row: p = p + e(row);  acc = acc + p }
//
// There are three ways to run this, all with the same bits, so a schedule may choose freely:
//   one phase    tasks take columns and walk all rows.                                  (mc = 0)
//   two phases   tasks take a block of rows and a part of the columns and leave p in a workspace; tasks of the
//                second phase take columns and add the blocks in order.                 (mc = 1)
//   few columns  as two phases, but each lane of a vector takes a block of rows: the latency of one chain of additions
//                is slow, 16 chains side by side are not.
// The first two add `unroll` rows each time they load the partial sums, which stand in a stack buffer of `nc` columns.
// CUDA has two phases too: first a thread for `vec` columns of each block, which loads `unroll` rows ahead, then one
// for each column.
#include "codegen/recipes/fold_sums.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <numeric>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t fewColumns = 16;
constexpr int blockLanes = 16;
constexpr int64_t stackBytes = 512 << 10;

/// The number of leading dimensions that all folds of a group sum over; 0 if there is no fold or they differ.
unsigned leadOf(const Op &fused) {
  unsigned lead = 0;
  const Type *domain = nullptr;
  for (const Op &op : *fused.body) {
    if (op.def().fusion != FusionKind::fold)
      continue;
    const Type &in = op.operand(0)->type;
    unsigned n = in.rank() - op.result(0)->type.rank();
    if (domain && (n != lead || !sameExtents(in.dims, domain->dims)))
      return 0;
    lead = n, domain = &in;
  }
  return lead;
}

class FoldBuilder {
public:
  FoldBuilder(const Op &fused, const Schedule &s, DType compute) : g(fused, compute), s(s), domain(groupDomain(fused)) {
    unsigned lead = leadOf(fused);
    llvm::ArrayRef<Dim> dims = domain.dims;
    rowDims = dims.take_front(lead), columnDims = dims.drop_front(lead);
    for (const Dim &d : rowDims)
      rows *= d.logical;
    for (const Dim &d : columnDims)
      columns *= d.logical;
    point.add(kir::ref(rowVar), rowDims).add(kir::ref(colVar), columnDims);
    columnPoint.add(kir::ref(colVar), columnDims);
    g.setDomain(point);
  }

  LoweredGroup build() {
    std::vector<unsigned> others;
    for (unsigned i = 0; i < g.fused.numResults(); ++i) {
      llvm::ArrayRef<Dim> d = g.fused.result(i)->type.dims;
      if (sameExtents(d, columnDims))
        results.push_back({i, placer.intern(g.at(g.output(i), columnPoint))});
      else if (sameExtents(d, domain.dims))
        full.push_back({i, placer.intern(g.at(g.output(i), point))});
      else
        others.push_back(i);
    }
    std::vector<Expr> roots;
    for (const Output &o : results)
      roots.push_back(o.value);
    sums = FoldSums(roots, rows);
    blocks = ceilDiv(rows, sums.fold);
    if (s.threads > 0 && (s.mc == 0 || blocks == 1))
      threadPhase();
    else if (s.threads > 0)
      threadPhases();
    else if (columns < fewColumns)
      fewColumnsPhases();
    else if (s.mc == 0 || blocks == 1)
      onePhase();
    else
      twoPhases();
    for (unsigned i : others)
      body.push_back(pointwiseLoops(g, {i}, s));

    LoweredGroup out;
    out.kernel.name = g.kernelName();
    out.kernel.params = g.params(workspaces);
    out.kernel.body = body;
    for (const Buffer &w : workspaces)
      out.workspaceBytes.push_back(w->size * sizeOf(w->dtype));
    return out;
  }

private:
  struct Output {
    unsigned result;
    Expr value;
  };

  Buffer perSum(const char *name, unsigned k, Storage storage, int64_t size) {
    return makeBuffer(fmt::format("{}{}", name, k), sums[k].node->dtype, storage, size);
  }
  void makeWorkspaces() {
    for (unsigned k = 0; k < sums.size(); ++k)
      workspaces.push_back(
          makeBuffer(fmt::format("ws{}", k), sums[k].node->dtype, Storage::global, blocks * columns, true));
  }
  /// `e` with another row and column in place of the symbolic ones.
  Expr at(const Expr &e, const Expr &row, const Expr &col) {
    std::map<const ExprNode *, Expr> memo;
    return substitute(e, memo, [&](const Expr &n) -> Expr {
      return n->kind != ExprKind::Var ? nullptr : n->var == rowVar ? row : n->var == colVar ? col : nullptr;
    });
  }
  Stmt storeAt(const Output &o, const Point &p, const Expr &value, const Expr &row, const Expr &col) {
    Stmt st = g.storeOutput(o.result, p, value);
    return store(st->buffer, placer.place(at(st->index, row, col)), st->value);
  }

  // ---- many columns -------------------------------------------------------------------------------------------------

  struct Columns {
    Expr base, count;
    int64_t most;
    int64_t tasks;
  };
  /// Cuts the columns into parts of at most `most` (0: 1024), such that partial and total sums fit the stack. `open`
  /// then binds the first column and the number of columns of one task.
  Columns cut(int64_t most) const {
    Columns c;
    const int64_t room = stackBytes / int64_t(2 * sums.size() * sizeOf(g.compute)) / 16 * 16;
    most = std::clamp<int64_t>(most > 0 ? most : 1024, 1, std::min(columns, std::max<int64_t>(room, 16)));
    c.tasks = ceilDiv(columns, most);
    c.most = std::min(columns, roundUp(ceilDiv(columns, c.tasks), 16));
    c.tasks = ceilDiv(columns, c.most);
    return c;
  }
  void open(Columns &c, const Expr &task) {
    c.base = c.tasks == 1 ? imm(0) : placer.let("base", task * imm(c.most));
    c.count = columns % c.most == 0 ? imm(c.most) : placer.let("n", min(imm(c.most), imm(columns) - c.base));
  }
  Stmt columnLoop(const Columns &c, Seq &element) const {
    return loop(LoopKind::vector, cVar, c.count, element.take(), powerOfTwo(c.most, s.vec > 0 ? s.vec : 16));
  }

  /// Adds `n` rows from `first` on to each sum, starting from `part` or from +0, and calls `finish` with the sums.
  void rowGroup(Seq &out, const Expr &first, int64_t n, const Columns &c, bool fromZero,
                const std::function<void(Seq &, llvm::ArrayRef<Expr>)> &finish) {
    Seq element;
    placer.push(element, {cVar});
    Expr col = c.base + kir::ref(cVar);
    std::vector<Expr> roots;
    for (unsigned k = 0; k < sums.size(); ++k) {
      Expr p = fromZero ? fimm(0, sums[k].node->dtype) : load(part[k], kir::ref(cVar));
      for (int64_t u = 0; u < n; ++u)
        p = p + at(sums[k].element, first + u, col);
      roots.push_back(p);
    }
    for (const Output &o : full)
      for (int64_t u = 0; u < n; ++u)
        roots.push_back(at(o.value, first + u, col));
    roots = placer.place(roots, roots.size() > 1);
    finish(element, llvm::ArrayRef<Expr>(roots).take_front(sums.size()));
    unsigned next = sums.size();
    for (const Output &o : full)
      for (int64_t u = 0; u < n; ++u)
        element.add(storeAt(o, point, roots[next++], first + u, col));
    placer.pop();
    out.add(columnLoop(c, element));
  }

  /// One block of `n` rows from `first` on.
  void blockRows(Seq &out, const Expr &first, int64_t n, const Columns &c,
                 const std::function<void(Seq &, llvm::ArrayRef<Expr>)> &finish) {
    const int64_t step = std::max(1, s.unroll);
    if (n <= step)
      return rowGroup(out, first, n, c, true, finish);
    auto keep = [&](Seq &element, llvm::ArrayRef<Expr> p) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(part[k], kir::ref(cVar), p[k]));
    };
    const int64_t last = n % step ? n % step : step;
    rowGroup(out, first, step, c, true, keep);
    if (int64_t between = (n - step - last) / step) {
      Seq group;
      Var q = makeVar("q");
      placer.push(group, {q});
      rowGroup(group, placer.let("r", first + step + kir::ref(q) * imm(step)), step, c, false, keep);
      placer.pop();
      out.add(loop(LoopKind::serial, q, imm(between), group.take()));
    }
    rowGroup(out, placer.let("r", first + (n - last)), last, c, false, finish);
  }

  void allocate(Seq &seq, const char *name, std::vector<Buffer> &list, int64_t size) {
    list.clear();
    for (unsigned k = 0; k < sums.size(); ++k) {
      list.push_back(perSum(name, k, Storage::stack, size));
      seq.alloc(list.back());
    }
  }
  void startTotals(Seq &seq, const Columns &c) {
    Seq element;
    placer.push(element, {cVar});
    for (unsigned k = 0; k < sums.size(); ++k)
      element.add(store(total[k], kir::ref(cVar), placer.place(at(sums[k].init, nullptr, c.base + kir::ref(cVar)))));
    placer.pop();
    seq.add(columnLoop(c, element));
  }
  /// Stores the results of column `col` from the values of the sums.
  void finishResults(Seq &element, llvm::ArrayRef<Expr> totals, const Expr &col) {
    std::vector<Expr> values;
    for (const Output &o : results)
      values.push_back(at(sums.withTotals(o.value, totals), nullptr, col));
    values = placer.place(values, values.size() > 1);
    for (auto [o, value] : llvm::zip(results, values))
      element.add(storeAt(o, columnPoint, value, nullptr, col));
  }
  void storeTotals(Seq &seq, const Columns &c) {
    Seq element;
    placer.push(element, {cVar});
    std::vector<Expr> totals;
    for (unsigned k = 0; k < sums.size(); ++k)
      totals.push_back(load(total[k], kir::ref(cVar)));
    finishResults(element, totals, c.base + kir::ref(cVar));
    placer.pop();
    seq.add(columnLoop(c, element));
  }

  void onePhase() {
    Columns c = cut(s.nc);
    Var t = makeVar("t");
    Seq task;
    placer.push(task, {t});
    open(c, kir::ref(t));
    allocate(task, "part", part, c.most);
    allocate(task, "total", total, c.most);
    startTotals(task, c);
    auto add = [&](Seq &element, llvm::ArrayRef<Expr> p) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(total[k], kir::ref(cVar), load(total[k], kir::ref(cVar)) + p[k]));
    };
    const int64_t whole = rows / sums.fold;
    {
      Seq block;
      Var b = makeVar("b");
      placer.push(block, {b});
      blockRows(block, placer.let("first", kir::ref(b) * imm(sums.fold)), sums.fold, c, add);
      placer.pop();
      task.add(loop(LoopKind::serial, b, imm(whole), block.take()));
    }
    if (rows % sums.fold) {
      Seq block;
      placer.push(block, {});
      blockRows(block, imm(whole * sums.fold), rows % sums.fold, c, add);
      placer.pop();
      task.add(kir::block(block.take()));
    }
    storeTotals(task, c);
    placer.pop();
    body.push_back(tasksLoop(t, c.tasks, task.take()));
  }

  void twoPhases() {
    makeWorkspaces();
    const int64_t whole = rows / sums.fold;
    Columns c = cut(s.nc);
    Var t = makeVar("t");
    Seq task;
    placer.push(task, {t});
    Expr b = placer.let("b", kir::ref(t) / imm(c.tasks));
    open(c, kir::ref(t) % imm(c.tasks));
    allocate(task, "part", part, c.most);
    auto leave = [&](Seq &element, llvm::ArrayRef<Expr> p) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(workspaces[k], placer.place(b * imm(columns) + c.base + kir::ref(cVar)), p[k]));
    };
    auto rowsOf = [&](int64_t n) {
      Seq block;
      placer.push(block, {});
      blockRows(block, placer.let("first", b * imm(sums.fold)), n, c, leave);
      placer.pop();
      return block.take();
    };
    if (rows % sums.fold)
      task.add(ifThen(lt(b, imm(whole)), rowsOf(sums.fold), rowsOf(rows % sums.fold)));
    else
      task.add(rowsOf(sums.fold));
    placer.pop();
    body.push_back(tasksLoop(t, blocks * c.tasks, task.take()));

    c = cut(blocks * columns > 1 << 16 ? 256 : columns);
    t = makeVar("t");
    placer.push(task, {t});
    open(c, kir::ref(t));
    allocate(task, "total", total, c.most);
    startTotals(task, c);
    Var block = makeVar("b");
    Seq walk, element;
    placer.push(walk, {block});
    Expr at = placer.let("at", kir::ref(block) * imm(columns) + c.base);
    for (unsigned k = 0; k < sums.size(); ++k)
      element.add(
          store(total[k], kir::ref(cVar), load(total[k], kir::ref(cVar)) + load(workspaces[k], at + kir::ref(cVar))));
    walk.add(columnLoop(c, element));
    placer.pop();
    task.add(loop(LoopKind::serial, block, imm(blocks), walk.take()));
    storeTotals(task, c);
    placer.pop();
    body.push_back(tasksLoop(t, c.tasks, task.take()));
  }

  // ---- one column at a time ----------------------------------------------------------------------------------------

  /// Adds the blocks' sums of a column in order and stores its results. In the workspaces the sums are `stride`
  /// elements apart, from `first` on.
  void addBlocks(Seq &column, const Expr &col, const Expr &first, int64_t stride) {
    std::vector<Expr> inits;
    for (const FoldSum &sum : sums)
      inits.push_back(at(sum.init, nullptr, col));
    const std::vector<Expr> totals = sums.addBlocks(column, placer.place(inits), workspaces, first, stride, blocks);
    finishResults(column, totals, col);
  }

  // ---- few columns --------------------------------------------------------------------------------------------------

  /// Chains of `rowsEach` additions for `blocksHere` blocks side by side; stores their sums to the workspaces.
  Stmt chains(const Expr &firstBlock, const Expr &blocksHere, int width, int64_t rowsEach) {
    Var col = makeVar("col"), q = makeVar("q"), v = makeVar("v");
    Seq perColumn;
    placer.push(perColumn, {col});
    std::vector<Buffer> p;
    Seq zero, add, leave, walk;
    for (unsigned k = 0; k < sums.size(); ++k) {
      p.push_back(perSum("p", k, Storage::reg, width));
      perColumn.alloc(p[k]);
      zero.add(store(p[k], lane(), fimm(0, sums[k].node->dtype)));
      leave.add(store(workspaces[k], kir::ref(col) * imm(blocks) + firstBlock + kir::ref(v), load(p[k], lane())));
    }
    perColumn.add(loop(LoopKind::vector, v, imm(width), zero.take(), width));
    placer.push(walk, {q});
    placer.push(add, {v});
    std::vector<Expr> elements;
    for (const FoldSum &sum : sums)
      elements.push_back(at(sum.element, (firstBlock + kir::ref(v)) * imm(sums.fold) + kir::ref(q), kir::ref(col)));
    elements = placer.place(elements, elements.size() > 1);
    for (unsigned k = 0; k < sums.size(); ++k)
      add.add(store(p[k], lane(), load(p[k], lane()) + elements[k]));
    placer.pop();
    walk.add(loop(LoopKind::vector, v, blocksHere, add.take(), width));
    placer.pop();
    perColumn.add(loop(LoopKind::serial, q, imm(rowsEach), walk.take()));
    perColumn.add(loop(LoopKind::vector, v, blocksHere, leave.take(), width));
    placer.pop();
    return loop(LoopKind::serial, col, imm(columns), perColumn.take());
  }

  void fewColumnsPhases() {
    makeWorkspaces();
    const int64_t whole = rows / sums.fold;
    {
      Var t = makeVar("t");
      Seq task;
      placer.push(task, {t});
      int64_t tasks = ceilDiv(whole, blockLanes);
      Expr first = placer.let("first", kir::ref(t) * imm(blockLanes));
      Expr here = whole % blockLanes ? placer.let("n", min(imm(blockLanes), imm(whole) - first)) : imm(blockLanes);
      task.add(chains(first, here, blockLanes, sums.fold));
      placer.pop();
      body.push_back(tasksLoop(t, tasks, task.take()));
    }
    if (rows % sums.fold) {
      Seq task;
      placer.push(task, {});
      task.add(chains(imm(whole), imm(1), 1, rows % sums.fold));
      placer.pop();
      body.push_back(kir::block(task.take()));
    }
    // Full results come before the sums' results, as those may overwrite what full results read.
    if (!full.empty()) {
      std::vector<unsigned> list;
      for (const Output &o : full)
        list.push_back(o.result);
      body.push_back(pointwiseLoops(g, list, s));
      g.setDomain(point);
    }
    Seq task;
    placer.push(task, {});
    Var col = makeVar("col");
    Seq perColumn;
    placer.push(perColumn, {col});
    addBlocks(perColumn, kir::ref(col), kir::ref(col) * imm(blocks), 1);
    placer.pop();
    task.add(loop(LoopKind::serial, col, imm(columns), perColumn.take()));
    placer.pop();
    body.push_back(kir::block(task.take()));
  }

  // ---- CUDA ---------------------------------------------------------------------------------------------------------

  /// The columns of a thread, and the rows that it loads ahead.
  int threadWidth() const {
    const int most = std::max(1, s.vec);
    return powerOfTwo(std::gcd(columns, int64_t(most)), most);
  }
  int64_t rowsAhead(int64_t of) const { return std::gcd(of, int64_t(std::max(1, s.unroll))); }

  /// fill(element, v) for each of `width` columns.
  Stmt perLane(int width, const std::function<void(Seq &, const Expr &)> &fill) {
    Var v = makeVar("v");
    Seq element;
    placer.push(element, {v});
    fill(element, width == 1 ? imm(0) : kir::ref(v));
    placer.pop();
    return width == 1 ? kir::block(element.take()) : loop(LoopKind::vector, v, imm(width), element.take(), width);
  }
  std::vector<Buffer> registers(Seq &seq, const char *name, int width) {
    std::vector<Buffer> all;
    for (unsigned k = 0; k < sums.size(); ++k)
      seq.alloc(all.emplace_back(perSum(name, k, Storage::reg, width)));
    return all;
  }

  /// Adds row `row` of `width` columns from `col` on to the sums.
  void addRow(Seq &walk, llvm::ArrayRef<Buffer> acc, const Expr &row, const Expr &col, int width) {
    walk.add(perLane(width, [&](Seq &element, const Expr &v) {
      const Expr here = col + v;
      std::vector<Expr> roots;
      for (const FoldSum &sum : sums)
        roots.push_back(at(sum.element, row, here));
      for (const Output &o : full)
        roots.push_back(at(o.value, row, here));
      roots = placer.place(roots, roots.size() > 1);
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(acc[k], v, load(acc[k], v) + roots[k]));
      for (unsigned i = 0; i < full.size(); ++i)
        element.add(storeAt(full[i], point, roots[sums.size() + i], row, here));
    }));
  }

  /// Sets `acc` to the sums of `n` rows from `first` on, `ahead` at a time.
  void sumRows(Seq &seq, llvm::ArrayRef<Buffer> acc, const Expr &first, const Expr &n, int64_t ahead, const Expr &col,
               int width) {
    seq.add(perLane(width, [&](Seq &element, const Expr &v) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(acc[k], v, fimm(0, sums[k].node->dtype)));
    }));
    Var q = makeVar("q"), u = makeVar("u");
    Seq walk, some;
    placer.push(walk, {q});
    if (ahead > 1) {
      placer.push(some, {u});
      addRow(some, acc, placer.let("row", first + kir::ref(q) * imm(ahead) + kir::ref(u)), col, width);
      placer.pop();
      walk.add(loop(LoopKind::unroll, u, imm(ahead), some.take()));
    } else {
      addRow(walk, acc, placer.let("row", first + kir::ref(q)), col, width);
    }
    placer.pop();
    seq.add(loop(LoopKind::serial, q, n, walk.take()));
  }

  /// A thread walks all rows.
  void threadPhase() {
    const int width = threadWidth();
    const int64_t whole = rows / sums.fold, rest = rows % sums.fold, ahead = rowsAhead(sums.fold);
    const int64_t blocksAhead = std::gcd(whole, std::max(int64_t(1), s.unroll / ahead));
    Var t = makeVar("t"), b = makeVar("b"), u = makeVar("u");
    Seq task, walk, some, last;
    placer.push(task, {t});
    const Expr col = placer.let("col", kir::ref(t) * imm(width));
    const std::vector<Buffer> totals = registers(task, "total", width), acc = registers(task, "acc", width);
    task.add(perLane(width, [&](Seq &element, const Expr &v) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(totals[k], v, placer.place(at(sums[k].init, nullptr, col + v))));
    }));
    auto addBlock = [&](Seq &seq, const Expr &first, int64_t n, int64_t ahead) {
      sumRows(seq, acc, first, imm(n / ahead), ahead, col, width);
      seq.add(perLane(width, [&](Seq &element, const Expr &v) {
        for (unsigned k = 0; k < sums.size(); ++k)
          element.add(store(totals[k], v, load(totals[k], v) + load(acc[k], v)));
      }));
    };
    placer.push(walk, {b});
    placer.push(some, {u});
    addBlock(some, placer.let("first", (kir::ref(b) * imm(blocksAhead) + kir::ref(u)) * imm(sums.fold)), sums.fold,
             ahead);
    placer.pop();
    walk.add(loop(LoopKind::unroll, u, imm(blocksAhead), some.take()));
    placer.pop();
    task.add(loop(LoopKind::serial, b, imm(whole / blocksAhead), walk.take()));
    if (rest) {
      placer.push(last, {});
      addBlock(last, imm(whole * sums.fold), rest, rowsAhead(rest));
      placer.pop();
      task.add(kir::block(last.take()));
    }
    task.add(perLane(width, [&](Seq &element, const Expr &v) {
      std::vector<Expr> values;
      for (unsigned k = 0; k < sums.size(); ++k)
        values.push_back(load(totals[k], v));
      finishResults(element, values, col + v);
    }));
    placer.pop();
    body.push_back(threadsLoop(t, columns / width, s.threads, task.take()));
  }

  void threadPhases() {
    makeWorkspaces();
    const int width = threadWidth();
    const int64_t whole = rows / sums.fold, rest = rows % sums.fold, ahead = rowsAhead(std::gcd(sums.fold, rest));
    Var t = makeVar("t");
    Seq task;
    placer.push(task, {t});
    Expr b = placer.let("b", kir::ref(t) / imm(columns / width)),
         col = placer.let("col", kir::ref(t) % imm(columns / width) * imm(width));
    Expr first = placer.let("first", b * imm(sums.fold));
    const std::vector<Buffer> acc = registers(task, "acc", width);
    Expr n = rest == 0 ? imm(sums.fold / ahead) : select(lt(b, imm(whole)), imm(sums.fold / ahead), imm(rest / ahead));
    sumRows(task, acc, first, n, ahead, col, width);
    task.add(perLane(width, [&](Seq &element, const Expr &v) {
      for (unsigned k = 0; k < sums.size(); ++k)
        element.add(store(workspaces[k], b * imm(columns) + col + v, load(acc[k], v)));
    }));
    placer.pop();
    body.push_back(threadsLoop(t, blocks * columns / width, s.threads, task.take()));

    Var column = makeVar("col");
    placer.push(task, {column});
    addBlocks(task, kir::ref(column), kir::ref(column), columns);
    placer.pop();
    body.push_back(threadsLoop(column, columns, s.threads, task.take()));
  }

  GroupEval g;
  const Schedule &s;
  const Type domain;
  llvm::ArrayRef<Dim> rowDims, columnDims;
  int64_t rows = 1, columns = 1, blocks = 0;
  const Var rowVar = makeVar("row"), colVar = makeVar("col"), cVar = makeVar("c");
  Point point, columnPoint;
  Placer placer;
  std::vector<Output> results, full;
  FoldSums sums;
  std::vector<Buffer> part, total, workspaces;
  std::vector<Stmt> body;
};

bool matches(const Op &fused) {
  unsigned lead = leadOf(fused);
  if (lead == 0)
    return false;
  Type domain = groupDomain(fused);
  int64_t fold = -1;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield, OpKind::reshape))
      continue;
    FusionKind f = op.def().fusion;
    if (f == FusionKind::fold) {
      int64_t n = op.attrs.getInt("fold");
      if (!sameExtents(op.operand(0)->type.dims, domain.dims) || (fold >= 0 && n != fold))
        return false;
      fold = n;
    } else if (f != FusionKind::pointwise && f != FusionKind::gather) {
      return false;
    }
  }
  return true;
}

Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  const Type domain = groupDomain(fused);
  const unsigned lead = leadOf(fused);
  int64_t rows = domain.slice(0, lead).elements(), columns = domain.elements() / rows, fold = 0;
  for (const Op &op : *fused.body)
    if (op.def().fusion == FusionKind::fold)
      fold = op.attrs.getInt("fold");
  if (target.isCuda()) {
    s.threads = 64;  // small blocks, since there are few threads
    s.unroll = 8;
    // As wide accesses as leave enough threads for a GPU, without a second phase if that is so for columns alone.
    constexpr int64_t many = 1 << 15;
    const int64_t blocks = fold > 0 ? ceilDiv(rows, fold) : 1;
    s.mc = columns < many;
    for (s.vec = target.lanes(DType::f32); s.vec > 1; s.vec /= 2)
      if (columns % s.vec == 0 && (s.mc ? blocks * columns : columns) / s.vec >= many)
        break;
    return s;
  }
  const double bytes = trafficPerElement(fused, domain);
  s.vec = 2 * target.lanes(DType::f32);
  s.task = elementsPerTask(domain.elements(), bytes, target);
  // A single tensor in memory is read fastest as four rows side by side. Two or more tensors, or one in the cache, are
  // read fastest as one stream each (measured on Zen 5: 39 against 33 GB/s, 37 against 31, and 203 against 149 in L2).
  const bool fromMemory = bytes * double(domain.elements()) > double(target.l2Bytes);
  const bool alone = bytes <= sizeOf(domain.dtype);
  s.unroll = fromMemory && alone ? 4 : 1;
  s.nc = std::min<int64_t>(columns, s.unroll == 1 ? 4096 : 1024);
  if (s.task < domain.elements()) {
    int64_t blocks = fold > 0 ? ceilDiv(rows, fold) : 1;
    s.mc = blocks > 1;
    while (s.nc > 64 && target.threads > 1 && ceilDiv(columns, s.nc) * blocks < 2 * int64_t(target.threads))
      s.nc = roundUp(s.nc / 2, 16);
  }
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda())
    return ScheduleGrid(base)
        .over(&Schedule::threads, {64, 128, 256})
        .over(&Schedule::vec, {1, 2, 4, 8})
        .over(&Schedule::unroll, {1, 4, 8, 16})
        .take();
  const int lanes = target.lanes(DType::f32);
  return ScheduleGrid(base)
      .over(&Schedule::vec, {lanes, 2 * lanes})
      .over(&Schedule::unroll, {1, 2, 4})
      .over(&Schedule::nc, {base.nc / 2 / 16 * 16, base.nc, 2 * base.nc})
      .take();
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  return FoldBuilder(fused, s, compute).build();
}

}  // namespace

const Recipe &foldRecipe() {
  static const Recipe recipe = {RecipeKind::fold, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

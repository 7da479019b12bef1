// The row_fold recipe, for CUDA: sums over rows and, of the same elements, sums over tokens, in one pass over memory.
// So the gradient of a norm's input is computed together with those of its weight and bias.
//
//   1. A block takes the `fold` rows of one block of the sums over tokens, a few rows (a batch) at a time.
//   2. All threads load the batch, 16 bytes each, into shared memory. So no element is read twice, and a batch's loads
//      are under way together. Rows that have no room there are loaded where they are used.
//   3. `vec` threads for each row add its terms, in the order of the row recipe. Then the lanes are folded by halves.
//   4. Threads take columns: each adds the batch's terms to its columns' sums over tokens, row after row.
//   5. Outputs of rows are stored, then the full ones, by threads that take elements again.
//   6. At its end the block leaves the sums of its rows in a workspace. A second kernel phase adds blocks in order, as
//      the fold recipe does.
//
// All sums have the order of the recipes row and fold, so the bits are those of two groups.
#include "codegen/recipes/fold_sums.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/row_sums.h"
#include "ir/access.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>
#include <numeric>

namespace gptc {

using namespace kir;

namespace {

class RowFoldBuilder {
public:
  RowFoldBuilder(const Op &fused, const Schedule &s, const Target &target, DType compute)
      : g(fused, compute), s(s), domain(groupDomain(fused)), columns(domain.dim(-1)), rows(domain.rows()), lanes(s.vec),
        batch(s.vec ? s.threads / s.vec : 0), width(std::gcd<int64_t>(columns, columnsAtOnce(fused))), target(target) {
    GPTC_CHECK(lanes > 0 && s.threads == batch * lanes && batch > 0 && s.threads % 32 == 0,
               "a row_fold schedule with {} threads for {} lanes", s.threads, lanes);
  }

  /// Evaluates the group: outputs, sums of rows by level, sums over tokens, and what is loaded.
  void evaluate() {
    g.approximates = true;
    const llvm::ArrayRef<Dim> dims = domain.dims;
    point.add(kir::ref(rowVar), dims.drop_back()).add(kir::ref(c), dims.take_back());
    rowPoint.add(kir::ref(rowVar), dims.drop_back());
    columnPoint.add(kir::ref(c), dims.take_back());
    g.setDomain(point);
    for (unsigned i = 0; i < g.fused.numResults(); ++i) {
      const llvm::ArrayRef<Dim> d = g.fused.result(i)->type.dims;
      if (sameExtents(d, dims))
        full.push_back({i, placer.intern(g.stored(i, point))});
      else if (sameExtents(d, dims.drop_back()))
        perRow.push_back({i, placer.intern(g.at(g.output(i), rowPoint))});
      else
        perColumn.push_back({i, placer.intern(g.at(g.output(i), columnPoint))});
    }
    std::vector<Expr> roots;
    for (const Output &o : perColumn)
      roots.push_back(o.value);
    folds = FoldSums(roots, rows);
    for (const FoldSum &sum : folds)
      terms.push_back(sum.element);
    takeSums();
    findLoads();
  }
  int64_t rowsOfBlock() const { return folds.fold; }

  /// Shared memory of a block that takes `batch` rows at a time and keeps them there, in bytes.
  int64_t sharedBytes(int64_t batch) const {
    int64_t bytes = 0;
    auto add = [&](DType type, int64_t elements) { bytes += roundUp(elements * int64_t(sizeOf(type)), 128); };
    for (const Buffer &part : parts)
      add(part->dtype, batch * lanes);
    for (const FoldSum &sum : folds)
      add(sum.node->dtype, columns);
    for (const Loaded &l : loads)
      add(l.load->buffer->dtype, (l.ofRow ? batch : 1) * (l.ofColumn ? columns : 1));
    return bytes;
  }

  LoweredGroup build() {
    evaluate();
    GPTC_CHECK(rows % folds.fold == 0 && folds.fold % batch == 0, "{} rows in blocks of {} and batches of {}", rows,
               folds.fold, batch);
    if (sharedBytes(batch) <= target.sharedBytes)
      stageLoads();
    for (unsigned k = 0; k < folds.size(); ++k)
      workspaces.push_back(
          makeBuffer(fmt::format("ws{}", k), folds[k].node->dtype, Storage::global, rows / folds.fold * columns, true));

    LoweredGroup out;
    out.kernel.name = g.kernelName();
    out.kernel.params = g.params(workspaces);
    out.kernel.body.push_back(blocks());
    out.kernel.body.push_back(addBlocks());
    for (const Buffer &w : workspaces)
      out.workspaceBytes.push_back(w->size * int64_t(sizeOf(w->dtype)));
    return out;
  }

private:
  struct Output {
    unsigned result;
    Expr value;
  };
  struct Loaded {
    Expr load;
    bool ofRow, ofColumn;  // what its index depends on
  };
  struct Staged {
    Buffer buffer;
    Expr load;
    Expr at;  // its place in the buffer
  };

  /// Sums of a row stand in shared memory.
  void takeSums() {
    levels = takeRowSums(placer, all());
    std::map<const VarNode *, Expr> held;
    for (const std::vector<RowSum> &sums : levels)
      for (const RowSum &sum : sums) {
        parts.push_back(makeBuffer("part", sum.node->dtype, Storage::shared, batch * lanes));
        held[sum.result.get()] = load(parts.back(), kir::ref(r) * lanes);
      }
    replace([&](const Expr &n) -> Expr {
      auto it = n->kind == ExprKind::Var ? held.find(n->var.get()) : held.end();
      return it == held.end() ? nullptr : it->second;
    });
  }

  void findLoads() {
    std::vector<Expr> roots;
    for (const Expr *e : all())
      roots.push_back(*e);
    for (const Expr &e : collect(
             roots, [](const Expr &n) { return n->kind == ExprKind::Load && n->buffer->storage == Storage::global; }))
      if (const bool ofRow = isOf(e, rowVar), ofColumn = isOf(e, c); ofRow || ofColumn)
        loads.push_back({e, ofRow, ofColumn});
  }
  /// Makes every load read shared memory.
  void stageLoads() {
    std::map<const ExprNode *, Expr> again;
    for (const auto &[e, ofRow, ofColumn] : loads) {
      std::vector<Staged> &list = !ofRow ? stagedColumns : !ofColumn ? stagedRows : staged;
      const Expr at = !ofRow ? kir::ref(c) : !ofColumn ? kir::ref(r) : kir::ref(r) * columns + kir::ref(c);
      list.push_back(
          {makeBuffer("staged", e->buffer->dtype, Storage::shared, (ofRow ? batch : 1) * (ofColumn ? columns : 1)), e,
           at});
      again[e.get()] = load(list.back().buffer, at);
    }
    replace([&](const Expr &n) -> Expr {
      auto it = again.find(n.get());
      return it == again.end() ? nullptr : it->second;
    });
  }

  /// What the loops over a batch compute.
  std::vector<Expr *> all() {
    std::vector<Expr *> roots;
    for (auto *list : {&full, &perRow})
      for (Output &o : *list)
        roots.push_back(&o.value);
    for (Expr &e : terms)
      roots.push_back(&e);
    for (std::vector<RowSum> &sums : levels)
      for (RowSum &sum : sums)
        roots.push_back(&sum.element);
    return roots;
  }
  void replace(const std::function<Expr(const Expr &)> &f) {
    std::map<const ExprNode *, Expr> memo;
    for (Expr *e : all())
      *e = placer.intern(substitute(*e, memo, f));
  }
  static bool isOf(const Expr &e, const Var &v) {
    return !collect({e}, [&](const Expr &n) { return n->kind == ExprKind::Var && n->var == v; }).empty();
  }

  /// A loop over the threads of a block, of which `body` gets one's number.
  Stmt threadLoop(int64_t threads, const std::function<void(Seq &, const Expr &t)> &body) {
    const Var t = makeVar("t");
    Seq thread;
    placer.push(thread, {t});
    body(thread, kir::ref(t));
    placer.pop();
    return loop(LoopKind::block_thread, t, imm(threads), thread.take());
  }
  /// Shares `count` items among the threads of a block: thread t takes t, t + threads, ...
  void eachItem(Seq &thread, const Expr &t, int64_t count, const std::function<void(Seq &, const Expr &item)> &body) {
    const int64_t threads = s.threads;
    Expr steps = imm(count / threads);
    if (count % threads)
      steps = steps + select(lt(t, imm(count % threads)), imm(1), imm(0));
    const Var i = makeVar("i");
    Seq item;
    placer.push(item, {i});
    body(item, placer.let("item", kir::ref(i) * threads + t));
    placer.pop();
    thread.add(loop(LoopKind::serial, i, steps, item.take()));
  }
  /// The elements of a batch, `width` neighbours at a time: row r, column c.
  void eachElement(Seq &thread, const Expr &t, const std::function<void(Seq &)> &body) {
    const int64_t groups = columns / width;
    eachItem(thread, t, batch * groups, [&](Seq &item, const Expr &number) {
      bindRow(number / imm(groups));
      const Expr begin = placer.let("begin", number % imm(groups) * width);
      Seq element;
      placer.push(element, {c});
      body(element);
      placer.pop();
      item.add(width == 1 ? let(c, begin, element.take())
                          : loop(LoopKind::vector, c, imm(width), element.take(), int(width), begin));
    });
  }
  /// Binds the row of the batch, and so of the tensor.
  void bindRow(const Expr &row) {
    placer.let(r, row);
    placer.let(rowVar, first + kir::ref(r));
  }

  Stmt blocks() {
    const Var b = makeVar("b"), q = makeVar("q");
    Seq block, turn;
    placer.push(block, {b});
    for (const auto *list : {&staged, &stagedRows, &stagedColumns})
      for (const Staged &one : *list)
        block.alloc(one.buffer);
    for (const Buffer &part : parts)
      block.alloc(part);
    for (unsigned k = 0; k < folds.size(); ++k) {
      accs.push_back(makeBuffer("acc", folds[k].node->dtype, Storage::shared, columns));
      block.alloc(accs.back());
    }
    eachSum(block,
            [&](unsigned k, const Expr &column) { return store(accs[k], column, fimm(0, folds[k].node->dtype)); });
    stageColumns(block);
    placer.push(turn, {q});
    first = placer.let("first", kir::ref(b) * folds.fold + kir::ref(q) * batch);
    stage(turn);
    unsigned at = 0;
    for (const std::vector<RowSum> &sums : levels) {
      sumRows(turn, sums, at);
      at += unsigned(sums.size());
    }
    sumTokens(turn);
    storeElements(turn);
    placer.pop();
    block.add(loop(LoopKind::serial, q, imm(folds.fold / batch), turn.take()));
    eachSum(block, [&](unsigned k, const Expr &column) {
      return store(workspaces[k], kir::ref(b) * columns + column, load(accs[k], column));
    });
    placer.pop();
    return loop(LoopKind::grid, b, imm(rows / folds.fold), block.take());
  }

  /// A statement for every column's sum over tokens.
  void eachSum(Seq &block, const std::function<Stmt(unsigned k, const Expr &column)> &body) {
    block.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
      eachItem(thread, t, columns, [&](Seq &item, const Expr &column) {
        for (unsigned k = 0; k < folds.size(); ++k)
          item.add(body(k, column));
      });
    }));
  }

  /// Copies to shared memory what a thread's row, column or both hold.
  void copy(Seq &thread, const std::vector<Staged> &list) {
    std::vector<Expr> values;
    for (const Staged &one : list)
      values.push_back(one.load);
    values = placer.place(values, values.size() > 1);
    for (auto [one, value] : llvm::zip(list, values))
      thread.add(store(one.buffer, placer.place(one.at), value));
  }
  void stage(Seq &turn) {
    if (!staged.empty())
      turn.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        eachElement(thread, t, [&](Seq &element) { copy(element, staged); });
      }));
    if (!stagedRows.empty())
      turn.add(threadLoop(batch, [&](Seq &thread, const Expr &t) {
        bindRow(t);
        copy(thread, stagedRows);
      }));
  }
  void stageColumns(Seq &block) {
    if (!stagedColumns.empty())
      block.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        eachItem(thread, t, columns, [&](Seq &item, const Expr &column) {
          placer.let(c, column);
          copy(item, stagedColumns);
        });
      }));
  }

  /// The sums of a level, which are the `at`th and so on of all.
  void sumRows(Seq &turn, const std::vector<RowSum> &sums, unsigned at) {
    turn.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
      bindRow(t / imm(lanes));
      const Expr lane = placer.let("lane", t % imm(lanes));
      std::vector<Buffer> sum;
      for (const RowSum &n : sums) {
        sum.push_back(makeBuffer("acc", n.node->dtype, Storage::reg, 1));
        thread.alloc(sum.back());
        thread.add(store(sum.back(), imm(0), n.start()));
      }
      Expr steps = imm(columns / lanes);
      if (const int64_t rest = columns % lanes)
        steps = steps + select(lt(lane, imm(rest)), imm(1), imm(0));
      const Var i = makeVar("i");
      Seq element;
      placer.push(element, {i});
      placer.let(c, kir::ref(i) * lanes + lane);
      std::vector<Expr> values;
      for (const RowSum &n : sums)
        values.push_back(n.element);
      values = placer.place(values, values.size() > 1);
      for (unsigned n = 0; n < sums.size(); ++n)
        element.add(store(sum[n], imm(0), binary(sums[n].op, load(sum[n], imm(0)), values[n])));
      placer.pop();
      thread.add(loop(LoopKind::serial, i, steps, element.take()));
      for (unsigned n = 0; n < sums.size(); ++n)
        thread.add(store(parts[at + n], t, load(sum[n], imm(0))));
    }));
    for (int64_t half = lanes / 2; half > 0; half /= 2)
      turn.add(threadLoop(batch * half, [&](Seq &thread, const Expr &t) {
        const Expr place = placer.let("place", t / imm(half) * lanes + t % imm(half));
        for (unsigned n = 0; n < sums.size(); ++n)
          thread.add(store(parts[at + n], place,
                           binary(sums[n].op, load(parts[at + n], place), load(parts[at + n], place + half))));
      }));
  }

  /// A thread takes a few neighbouring columns, fewer where threads would have none.
  void sumTokens(Seq &turn) {
    const int64_t each = std::gcd(width, powerOfTwo(ceilDiv(columns, s.threads), 16));
    turn.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
      eachItem(thread, t, columns / each, [&](Seq &item, const Expr &number) {
        const Expr begin = placer.let("begin", number * each);
        auto eachColumn = [&](Seq &seq, const std::function<void(Seq &, const Expr &slot)> &body) {
          Seq column;
          placer.push(column, {c});
          body(column, each == 1 ? imm(0) : lane());
          placer.pop();
          seq.add(each == 1 ? let(c, begin, column.take())
                            : loop(LoopKind::vector, c, imm(each), column.take(), int(each), begin));
        };
        std::vector<Buffer> sum;
        for (const FoldSum &fold : folds) {
          sum.push_back(makeBuffer("acc", fold.node->dtype, Storage::reg, each));
          item.alloc(sum.back());
        }
        eachColumn(item, [&](Seq &column, const Expr &slot) {
          for (unsigned k = 0; k < folds.size(); ++k)
            column.add(store(sum[k], slot, load(accs[k], kir::ref(c))));
        });
        const Var i = makeVar("i");
        Seq row;
        placer.push(row, {i});
        bindRow(kir::ref(i));
        eachColumn(row, [&](Seq &column, const Expr &slot) {
          const std::vector<Expr> values = placer.place(terms, terms.size() > 1);
          for (unsigned k = 0; k < folds.size(); ++k)
            column.add(store(sum[k], slot, load(sum[k], slot) + values[k]));
        });
        placer.pop();
        item.add(loop(LoopKind::serial, i, imm(batch), row.take()));
        eachColumn(item, [&](Seq &column, const Expr &slot) {
          for (unsigned k = 0; k < folds.size(); ++k)
            column.add(store(accs[k], kir::ref(c), load(sum[k], slot)));
        });
      });
    }));
  }

  /// Outputs of rows first: full ones may take the memory of what they read.
  void storeElements(Seq &turn) {
    if (!perRow.empty())
      turn.add(threadLoop(batch, [&](Seq &thread, const Expr &t) {
        bindRow(t);
        storeAll(thread, perRow, rowPoint);
      }));
    if (!full.empty())
      turn.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        eachElement(thread, t, [&](Seq &element) { storeAll(element, full, point); });
      }));
  }
  void storeAll(Seq &seq, llvm::ArrayRef<Output> outputs, const Point &p) {
    std::vector<Expr> values;
    for (const Output &o : outputs)
      values.push_back(o.value);
    values = placer.place(values, values.size() > 1);
    for (auto [o, value] : llvm::zip(outputs, values)) {
      Stmt st = g.storeOutput(o.result, p, value);
      seq.add(store(st->buffer, placer.place(st->index), st->value));
    }
  }

  Stmt addBlocks() {
    const Var column = makeVar("col");
    Seq task;
    placer.push(task, {column});
    placer.let(c, kir::ref(column));
    std::vector<Expr> inits, values;
    for (const FoldSum &sum : folds)
      inits.push_back(sum.init);
    const std::vector<Expr> totals =
        folds.addBlocks(task, placer.place(inits), workspaces, kir::ref(column), columns, rows / folds.fold);
    std::vector<Output> outputs = perColumn;
    for (Output &o : outputs)
      o.value = folds.withTotals(o.value, totals);
    storeAll(task, outputs, columnPoint);
    placer.pop();
    return threadsLoop(column, columns, 64, task.take());
  }

  GroupEval g;
  const Schedule &s;
  const Type domain;
  const int64_t columns, rows, lanes, batch, width;
  const Target &target;
  const Var rowVar = makeVar("row"), c = makeVar("c"), r = makeVar("r");  // r: of the batch
  Point point, rowPoint, columnPoint;
  Placer placer;
  std::vector<Output> full, perRow, perColumn;
  FoldSums folds;
  std::vector<Expr> terms;  // of `folds`
  std::vector<std::vector<RowSum>> levels;
  std::vector<Buffer> parts;             // of the sums of rows: lanes of each row, whose first becomes the sum
  std::vector<Buffer> accs, workspaces;  // of the sums over tokens
  std::vector<Loaded> loads;
  std::vector<Staged> staged, stagedRows, stagedColumns;  // loads of elements, of one for a row, of one for a column
  Expr first;                                             // the batch's first row
};

/// Rows that no warp is too wide for, and blocks that batches divide.
bool matches(const Op &fused) {
  const Type domain = groupDomain(fused);
  if (domain.rank() < 2 || domain.dim(-1) < RowFoldLimits::leastColumns)
    return false;
  const llvm::ArrayRef<Dim> dims = domain.dims;
  if (sameExtents(dims.drop_back(), dims.take_back()))
    return false;  // a result of that type could be of rows or of columns
  int64_t fold = 0, sums = 0;
  bool row = false;
  llvm::DenseSet<const Value *> ofSums;  // what sums over tokens give: known only at the end
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield))
      continue;
    const bool follows = llvm::any_of(op.operands(), [&](const Value *v) { return ofSums.contains(v); });
    switch (op.def().fusion) {
    case FusionKind::pointwise:
      if (follows && !sameExtents(domainOf(op).dims, dims.take_back()))
        return false;
      break;
    case FusionKind::row:
      if (follows || !sameExtents(domainOf(op).dims, dims))
        return false;
      row = true;
      break;
    case FusionKind::fold: {
      const int64_t n = op.attrs.getInt("fold");
      if (follows || n <= 0 || n % RowFoldLimits::batch || domain.rows() % n || (fold && n != fold) ||
          !sameExtents(op.operand(0)->type.dims, dims) || op.result(0)->type.rank() != 1)
        return false;
      fold = n;
      sums += op.numResults() * domain.dim(-1);
      break;
    }
    default:
      return false;
    }
    if (follows || op.def().fusion == FusionKind::fold)
      for (unsigned i = 0; i < op.numResults(); ++i)
        ofSums.insert(op.result(i));
  }
  bool yieldsSum = false;
  for (const Value *v : fused.body->back()->operands()) {
    const llvm::ArrayRef<Dim> d = v->type.dims;
    const bool isSum = ofSums.contains(v);
    if (!sameExtents(d, isSum ? dims.take_back() : dims) && (isSum || !sameExtents(d, dims.drop_back())))
      return false;
    yieldsSum |= isSum;
  }
  return row && yieldsSum && sums <= RowFoldLimits::mostSums;
}

Schedule withBatch(int64_t batch) {
  Schedule s;
  s.vec = 64;  // does not vary: it determines the order of sums
  s.threads = int(batch) * s.vec;
  return s;
}

Schedule defaults(const Op &fused, const Target &target) {
  if (!target.isCuda())
    throw UserError(ErrorCode::NotBuiltYet, "a group of the recipe row_fold has no kernel for CPUs",
                    "write it as two groups, of the recipes row and fold");
  const Schedule one = withBatch(1);
  RowFoldBuilder trial(fused, one, target, DType::f32);
  trial.evaluate();
  // Two blocks of a multiprocessor: one computes while the other loads.
  int64_t batch = RowFoldLimits::batch;
  while (batch > 1 && 2 * (trial.sharedBytes(batch) + 1024) > target.processorShared)
    batch /= 2;
  return withBatch(batch);
}

std::vector<Schedule> space(const Op &fused, const Schedule &base, const Target &target) {
  const Schedule one = withBatch(1);
  RowFoldBuilder trial(fused, one, target, DType::f32);
  trial.evaluate();
  std::vector<Schedule> all;
  for (int64_t batch : {1, 2, 4, 8, 16})
    if (trial.rowsOfBlock() % batch == 0 && trial.sharedBytes(batch) <= target.sharedBytes) {
      all.push_back(base);
      all.back().threads = withBatch(batch).threads;
    }
  return all;
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &target, DType compute) {
  return RowFoldBuilder(fused, s, target, compute).build();
}

}  // namespace

const Recipe &row_foldRecipe() {
  static const Recipe recipe = {RecipeKind::row_fold, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

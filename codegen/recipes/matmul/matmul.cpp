// matmul: packed, register-tiled matrix multiplication with an epilogue (Goto & van de Geijn 2008).
//
//   1. A task owns a block of mc rows and nc columns of the result. For each block of kc steps:
//   2. it copies its part of B into panels [nc/nr][kc][nr], transposing when B comes as [N,K];
//   3. for each tile of mr rows it runs the micro-kernel over the panels: mr x nr accumulators, one chain of FMAs each.
//   4. After the last block of k the epilogue reads the finished tile from the first-level cache and stores the group's
//      outputs.
// A bias gradient is the sum of B's rows. The tasks with the first rows of the result add it up from each block of B
// right after packing it (cuBLASLt's BGRADB).
//
// bf16 and f16. Sums are always f32. Panels of B and copies of the tiles of A hold f32, because converting an element
// for each vector would cost more than the FMA. On CPUs that multiply pairs of bf16 (Schedule::pairs), panels and
// copies hold pairs of neighbours in k instead, and a step of the chain is kir::dot, at twice the speed. Pairs begin at
// every fold, or at k = 0; an odd last element is paired with zero. A as [M,K] already lies in pairs and needs no copy,
// unless folds are odd.
//
// Packed weights. If B is already packed in panels (op `unpack` before the matmul), step 2 is left out and the
// micro-kernel reads operand B in place. Panels of bf16 hold pairs. All tiles use one panel before the next, and each
// tile prefetches a share of the next panel, so that only a task's first panel waits for memory.
//
// Order of sums. fold=0: one chain over all k from init or +0; a later block of k loads the accumulators that the
// earlier one stored. fold=R: chains of R steps from +0, added to init or +0 in order. Neither depends on a size in the
// schedule.
//
// Ragged shapes. The last tile of rows is moved up until it fits and stores only its own rows. The last panel of
// columns is filled with zeros. Both compute additional elements, by the same chains, that are never stored.
#include "codegen/recipes/matmul/matmul.h"
#include "codegen/recipes/place.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/bit.h"

#include <algorithm>

namespace gptc {

using namespace kir;

namespace matmul {

/// The rest of a product with a weight of 8 or 4 bits, whose operands and anchor are known.
static void readQuantized(Problem &p) {
  const Type &a = p.anchor->operand(0)->type, &y = p.anchor->result()->type;
  p.scales = int(p.anchor->operand(2)->index);
  p.supers = p.anchor->numOperands() > 3 ? int(p.anchor->operand(3)->index) : -1;
  p.panels = p.anchor->operand(1)->type.dim(2);
  p.k = p.lda = a.dim(-1);
  p.n = y.dim(-1);
  p.m = a.elements() / p.k;
  p.stored = a.dtype;
}

std::string Problem::read(const Op &fused, Problem &p) {
  if (!fused.body)
    return "no body";
  const Op *unpack = nullptr;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::matmul, OpKind::quantized_matmul)) {
      if (p.anchor)
        return "two matmuls";
      p.anchor = &op;
    } else if (op.is(OpKind::reduce_sum)) {
      if (p.columnSum)
        return "two sums";
      p.columnSum = &op;
    } else if (op.is(OpKind::unpack)) {
      unpack = &op;
    } else if (!op.isOneOf(OpKind::yield, OpKind::constant) && op.def().fusion != FusionKind::pointwise) {
      return fmt::format("{} is not pointwise", op.name());
    }
  }
  if (!p.anchor)
    return "no matmul";
  const Op &op = *p.anchor;
  auto input = [&](unsigned i) {
    const Value *v = op.operand(i);
    return i == 1 && unpack && v == unpack->result() ? unpack->operand(0) : v;
  };
  for (unsigned i = 0; i < op.numOperands(); ++i)
    if (input(i)->def)
      return "the matmul's operands are not inputs of the group";
  p.a = input(0)->index;
  p.b = input(1)->index;
  for (const Value *v : fused.body->back()->operands())
    if (!v->type.sameShape(op.result()->type) && v->def != p.columnSum)
      return "a result of another shape than the matmul's";
  if (op.is(OpKind::quantized_matmul)) {
    if (p.columnSum || unpack)
      return "a quantized_matmul with something else";
    readQuantized(p);
    return "";
  }
  p.init = op.numOperands() > 2 ? int(op.operand(2)->index) : -1;
  p.ta = op.attrs.getBool("ta");
  p.tb = op.attrs.getBool("tb");
  p.fold = op.attrs.getInt("fold");
  p.batchDims = unsigned(op.attrs.getInt("batch"));
  if (unpack) {
    if (op.operand(1) != unpack->result() || !unpack->result()->hasOneUse() || unpack->attrs.getBool("tb") != p.tb ||
        p.batchDims || p.fold || p.columnSum)
      return "panels of something else than the second operand";
    const Type &panels = unpack->operand(0)->type;
    p.panels = panels.dim(-1) / stepOfPanels(panels.dtype);
  }

  if (const Op *sum = p.columnSum) {
    const Value *from = sum->operand(0);
    if (from->def && from->def->is(OpKind::cast))
      from = from->def->operand(0);
    const Value *init = sum->numOperands() > 1 ? sum->operand(1) : nullptr;
    if (from != op.operand(1) || p.tb || p.batchDims || !p.fold || sum->attrs.getInt("fold") != p.fold ||
        sum->attrs.getInt("lead") + 1 != int64_t(from->type.rank()) || (init && init->def))
      return "a sum of something else than the second operand's rows";
  }

  const Type &a = op.operand(0)->type, &b = op.operand(1)->type, &c = op.result()->type;
  // Dimensions that are walked by one index must follow each other in memory without gaps.
  for (const Type *t : {&a, &b, &c})
    for (unsigned i = 1; i + 1 < t->rank(); ++i)
      if (i != p.batchDims && t->dims[i].logical != t->dims[i].padded)
        return "padding inside merged dimensions";
  p.batch = 1;
  for (unsigned i = 0; i < p.batchDims; ++i)
    p.batch *= a.dim(int(i));
  const int64_t bRows = b.elements() / p.batch / b.dim(-1);
  p.n = p.tb ? bRows : b.dim(-1);
  p.k = p.tb ? b.dim(-1) : bRows;
  p.fold = std::min(p.fold, p.k);  // one block, and sums with it stay in range
  p.m = a.elements() / p.batch / p.k;
  p.stored = a.dtype;
  p.lda = a.padded(-1);
  p.ldb = b.padded(-1);
  p.aBatch = a.paddedElements() / p.batch;
  p.bBatch = b.paddedElements() / p.batch;
  return "";
}

Point Epilogue::point(const Expr &batch, const Expr &row, const Expr &col) {
  const Type &t = problem.anchor->result()->type;
  llvm::ArrayRef<Dim> dims = t.dims;
  Point p;
  if (problem.batchDims)
    p.add(batch, dims.take_front(problem.batchDims));
  if (t.rank() - 1 > problem.batchDims)
    p.add(row, dims.slice(problem.batchDims, t.rank() - 1 - problem.batchDims));
  p.add(col, dims.take_back(1));
  return p;
}

Expr Epilogue::init(const Expr &batch, const Expr &row, const Expr &col) {
  return group.at(group.body.args[unsigned(problem.init)].get(), point(batch, row, col));
}

std::vector<Expr> Epilogue::valuesAt(const Point &p, const Expr &sum, std::vector<unsigned> &results) {
  group.setDomain(p);
  group.bind(problem.anchor->result(), [sum](const Point &) { return sum; });
  std::vector<Expr> values;
  for (unsigned r = 0; r < group.outputs.size(); ++r)
    if (isElement(r)) {
      results.push_back(r);
      values.push_back(group.at(group.output(r), p));
    }
  return values;
}

Stmt Epilogue::emit(const Expr &batch, const Expr &firstRow, const Expr &rows, const Expr &firstCol, const Expr &cols,
                    int lanes, const std::function<Expr(const Expr &, const Expr &)> &sum) {
  Var i = makeVar("i"), j = makeVar("j");
  Expr element = sum(kir::ref(i), kir::ref(j));
  // The variables of the loops around this one are known outside it.
  std::vector<Var> around;
  for (const Expr &e :
       collect({batch, firstRow, firstCol, element}, [](const Expr &e) { return e->kind == ExprKind::Var; }))
    if (e->var != i && e->var != j && !llvm::is_contained(around, e->var))
      around.push_back(e->var);
  Seq outer, inRow, inCol;
  Placer placer;
  placer.push(outer, around);
  placer.push(inRow, {i});
  placer.push(inCol, {j});
  Point p = point(batch, firstRow + kir::ref(i), firstCol + kir::ref(j));
  std::vector<unsigned> results;
  const std::vector<Expr> roots = placer.place(valuesAt(p, element, results));
  for (auto [r, root] : llvm::zip_equal(results, roots)) {
    Stmt st = group.storeOutput(r, p, root);
    inCol.add(store(st->buffer, placer.place(st->index), st->value));
  }
  inRow.add(loop(LoopKind::vector, j, cols, inCol.take(), lanes));
  outer.add(loop(LoopKind::serial, i, rows, inRow.take()));
  return block(outer.take());
}

Stmt Epilogue::prefetch(const Expr &batch, const Expr &firstRow, int64_t rows, const Expr &firstCol, int64_t cols) {
  struct Full {
    Buffer buffer;
    const Type *type;
  };
  std::vector<Full> all;
  const Type &shape = problem.anchor->result()->type;
  for (unsigned i = 0; i < group.outputs.size(); ++i)
    if (isElement(i))
      all.push_back({group.outputs[i], &group.output(i)->type});
  for (unsigned i = 0; i < group.inputs.size(); ++i)
    if (i != problem.a && i != problem.b && group.body.args[i]->type.sameShape(shape))
      all.push_back({group.inputs[i], &group.body.args[i]->type});
  return serial("i", imm(rows), [&](const Expr &i) {
    Body body;
    for (const Full &f : all) {
      const int64_t line = cacheLine / int64_t(sizeOf(f.buffer->dtype));
      for (int64_t c = 0; c < cols; c += line) {
        Expr col = firstCol + imm(c);
        if (problem.n % cols)
          col = min(col, imm(problem.n - 1));
        body.push_back(kir::prefetch(f.buffer, group.offset(*f.type, point(batch, firstRow + i, col))));
      }
    }
    return body;
  });
}

bool Epilogue::isElement(unsigned result) const {
  const Op *maker = group.output(result)->def;
  return !isColumnSum(result) && !(maker && maker->def().fusion == FusionKind::attention);
}

bool Epilogue::isColumnSum(unsigned result) const {
  const Op *maker = group.output(result)->def;
  return maker && maker == problem.columnSum;
}

Expr Epilogue::columnInit(const Expr &col) {
  const Op &sum = *problem.columnSum;
  return sum.numOperands() > 1 ? group.at(sum.operand(1), Point().add(col, sum.operand(1)->type.dims))
                               : fimm(0, group.compute);
}

Expr Epilogue::columnTerm(const Expr &k, const Expr &col) {
  const Value *v = problem.columnSum->operand(0);
  llvm::ArrayRef<Dim> dims = v->type.dims;
  return group.at(v, Point().add(k, dims.drop_back(1)).add(col, dims.take_back(1)));
}

Stmt Epilogue::storeColumn(const Expr &col, const Expr &sum) {
  for (unsigned r = 0; r < group.outputs.size(); ++r)
    if (isColumnSum(r))
      return group.storeOutput(r, Point().add(col, problem.columnSum->result()->type.dims), sum);
  GPTC_UNREACHABLE("{} without a result", problem.columnSum->name());
}

}  // namespace matmul

namespace {

using matmul::Epilogue;
using matmul::Problem;

/// All sizes that follow from a schedule.
struct BlockSizes {
  Tile tile;
  bool pairs = false;  // a step takes two elements of k, a pair of bf16
  bool copyA = false;  // tiles of A are copied into a buffer
  int64_t group = 1;   // tiles copied together
  int64_t tiles, tilesPerTask, rowTasks;
  int64_t panels, panelsPerTask, colTasks;
  int64_t tailCols;  // columns of the last panel if it is not full, else 0
  int64_t kc, kBlocks;
  /// Elements between rows (A as [M,K]) or steps (A as [K,M]) of the copy of A.
  int64_t strideA(const Problem &p) const { return oddLines(p.ta ? groupRows(p) : stepsOf(p, kc), DType::f32); }
  int64_t groupRows(const Problem &p) const { return std::min(group * tile.rows, p.m); }
  /// Steps of the chain in the first `k` elements of a block.
  int64_t stepsOf(const Problem &p, int64_t k) const {
    if (!pairs)
      return k;
    return p.fold ? k / p.fold * ceilDiv(p.fold, 2) + ceilDiv(k % p.fold, 2) : ceilDiv(k, 2);
  }
  /// Steps of a packed operand B, whose bf16 panels hold pairs even if the schedule does not multiply pairs.
  static int64_t stepsInMemory(const Problem &p, int64_t k) { return ceilDiv(k, stepOfPanels(p.stored)); }
  /// Elements of all stack buffers: panels of B, copies of A, and the sums of one tile, or of all tiles if k has
  /// several blocks.
  int64_t stackElements(const Problem &p) const {
    const int64_t steps = stepsOf(p, kc);
    return (p.panels ? 0 : panelsPerTask * steps * tile.cols()) + (p.columnSum ? 2 * panelsPerTask * tile.cols() : 0) +
           (copyA ? (p.ta ? steps : groupRows(p)) * strideA(p) : 0) +
           tile.rows * tile.cols() * (kc < p.k ? tilesPerTask * panelsPerTask : 1);
  }
  int64_t tasks(const Problem &p) const { return p.batch * rowTasks * colTasks; }
};

/// A block of k must be a multiple of this, so that no partial sum and no pair crosses its end.
int64_t unitOf(const Problem &p, bool pairs) { return p.fold ? p.fold : pairs ? 2 : 1; }

BlockSizes blocksOf(const Problem &p, const Schedule &s, DType dtype) {
  BlockSizes b;
  b.tile.dtype = dtype;
  b.tile.lanes = s.vec;
  b.tile.vecs = s.nr / s.vec;
  b.tile.rows = int(std::min<int64_t>(s.mr, p.m));
  b.pairs = s.pairs && dtype == DType::f32 && p.stored == DType::bf16;
  b.copyA = matmul::copiesA(p, b.pairs, dtype, b.tile.rows);
  b.tiles = ceilDiv(p.m, b.tile.rows);
  b.tilesPerTask = std::clamp<int64_t>(s.mc / b.tile.rows, 1, b.tiles);
  // A tile takes a part of a line of each row of a transposed A, and its neighbours take the rest. Copy as many tiles
  // together as give the fewest vectors and lines.
  if (b.copyA && p.ta) {
    auto cost = [&](int64_t n) { return ceilDiv(b.tilesPerTask, n) * (ceilDiv(n * b.tile.rows, b.tile.lanes) + 1); };
    for (int64_t n = 2; n <= std::min<int64_t>(5, b.tilesPerTask); ++n)
      if (cost(n) < cost(b.group))
        b.group = n;
  }
  b.panels = ceilDiv(p.n, b.tile.cols());
  b.panelsPerTask = std::clamp<int64_t>(s.nc / b.tile.cols(), 1, b.panels);
  b.tailCols = p.n % b.tile.cols();
  const int64_t unit = unitOf(p, b.pairs);
  b.kc = std::min(p.k, std::max<int64_t>(1, s.kc / unit) * unit);
  while (b.stackElements(p) * int64_t(sizeOf(dtype)) > stackBudget) {  // f64 takes twice the room
    if (b.panelsPerTask > 1)
      b.panelsPerTask = ceilDiv(b.panelsPerTask, 2);
    else if (b.kc < p.k && b.tilesPerTask > 1)
      b.tilesPerTask = ceilDiv(b.tilesPerTask, 2);
    else if (b.kc > unit)
      b.kc = ceilDiv(b.kc, 2 * unit) * unit;
    else
      break;
  }
  b.rowTasks = ceilDiv(b.tiles, b.tilesPerTask);
  b.colTasks = ceilDiv(b.panels, b.panelsPerTask);
  b.kBlocks = ceilDiv(p.k, b.kc);
  return b;
}

class Builder {
public:
  Builder(GroupEval &group, const Problem &p, const BlockSizes &b) : group(group), p(p), b(b), epilogue(group, p) {
    needsStart = p.fold || p.init >= 0 || b.kBlocks > 1;
  }

  Stmt task(const Expr &t) {
    Expr perBatch = imm(b.rowTasks * b.colTasks);
    batch = p.batch > 1 ? t / perBatch : imm(0);
    Expr inBatch = p.batch > 1 ? t % perBatch : t;
    Expr rowTask = inBatch % imm(b.rowTasks), colTask = inBatch / imm(b.rowTasks);
    return bindTo("tile0", rowTask * b.tilesPerTask, [&](const Expr &tile0) {
      return Body{bindTo("panel0", colTask * b.panelsPerTask,
                         [&](const Expr &panel0) { return Body{taskBody(tile0, panel0, colTask)}; })};
    });
  }

private:
  DType dtype() const { return b.tile.dtype; }
  DType packedType() const { return b.pairs ? DType::u32 : dtype(); }
  int64_t nr() const { return b.tile.cols(); }
  int64_t tileSize() const { return b.tile.rows * nr(); }
  /// min(per, total - first), as a constant if `per` divides `total`.
  static Expr part(int64_t total, int64_t per, const Expr &first) {
    return total % per == 0 ? imm(per) : min(imm(per), imm(total) - first);
  }

  Stmt taskBody(const Expr &tile0, const Expr &panel0, const Expr &colTask) {
    const int64_t steps = b.stepsOf(p, b.kc);
    if (!p.panels)
      packedB = makeBuffer("bp", packedType(), Storage::stack, b.panelsPerTask * steps * nr());
    if (b.copyA)
      copyOfA = makeBuffer("ap", packedType(), Storage::stack, (p.ta ? steps : b.groupRows(p)) * b.strideA(p));
    if (p.columnSum) {
      columnSums = makeBuffer("db", dtype(), Storage::stack, b.panelsPerTask * nr());
      columnPart = makeBuffer("part", dtype(), Storage::stack, b.panelsPerTask * nr());
    }
    sums =
        makeBuffer("c", dtype(), Storage::stack, tileSize() * (b.kBlocks > 1 ? b.tilesPerTask * b.panelsPerTask : 1));
    Expr panels = part(b.panels, b.panelsPerTask, panel0), tiles = part(b.tiles, b.tilesPerTask, tile0);
    Expr last = eq(colTask, imm(b.colTasks - 1));
    // The panel with fewer columns is the last panel of the last task. It gets a micro-kernel of its own if it needs
    // fewer vectors.
    Expr fullPanels = b.tailCols ? panels - select(last, imm(1), imm(0)) : panels;
    bool ownTail = b.tailCols && ceilDiv(b.tailCols, b.tile.lanes) < b.tile.vecs;

    Stmt body = serial("kb", imm(b.kBlocks), [&](const Expr &kb) {
      Expr k0 = kb * b.kc;
      return Body{bindTo("kl", part(p.k, b.kc, k0), [&](const Expr &kl) {
        auto onTile = [&](const Expr &tile, const Expr &inGroup, const Expr &a0) {
          Body out;
          out.push_back(serial("panel", ownTail ? fullPanels : panels, [&](const Expr &panel) {
            Body one = panelBody(b.tile, kb, kl, tile0, tile, a0, panel, panel0 + panel);
            if ((b.copyA || p.ta) && p.m * p.k * int64_t(sizeOf(p.stored)) > largeA)
              one.insert(one.begin(), fetchNextGroup(tile0 + tile, inGroup, k0, kl, panel));
            return one;
          }));
          if (ownTail) {
            Tile t = b.tile;
            t.vecs = int(ceilDiv(b.tailCols, t.lanes));
            out.push_back(ifThen(last, panelBody(t, kb, kl, tile0, tile, a0, fullPanels, panel0 + fullPanels)));
          }
          return out;
        };
        if (readsPanelByPanel())
          return panelByPanel(kb, k0, kl, tile0, tiles, panel0, panels, ownTail ? fullPanels : panels,
                              ownTail ? last : nullptr);
        Body out;
        if (!p.panels)
          out = packB(panel0, fullPanels, last, k0, kl);
        if (p.columnSum)
          out.push_back(ifThen(eq(tile0, imm(0)), addColumns(panel0, panels, kb, k0, kl)));
        out.push_back(serial("group", (tiles + (b.group - 1)) / imm(b.group), [&](const Expr &g) {
          Expr first = g * b.group, i0 = firstRow(tile0 + first, b.group);
          Expr base = batch * p.aBatch + (p.ta ? k0 * p.lda + i0 : i0 * p.lda + k0);
          return Body{bindTo("a0", base, [&](const Expr &a0) {
            if (!b.copyA)
              return onTile(first, imm(0), a0);
            Body all = copyGroup(a0, kl);
            all.push_back(serial("tile", min(imm(b.group), tiles - first), [&](const Expr &t) {
              return Body{bindTo("row0", firstRow(tile0 + first + t) - i0,
                                 [&](const Expr &row0) { return onTile(first + t, t, row0); })};
            }));
            return all;
          })};
        }));
        return out;
      })};
    });
    if (b.copyA)
      body = alloc(copyOfA, {body});
    if (p.columnSum)
      body = alloc(columnSums, {alloc(columnPart, {body})});
    body = alloc(sums, {body});
    return p.panels ? body : alloc(packedB, {body});
  }

  /// Whether all tiles use one panel before the next, so that a prefetched panel has time to arrive. Not if tiles of A
  /// are copied: each would be copied once per panel.
  bool readsPanelByPanel() const { return p.panels && !b.copyA; }

  /// All tiles of a task by `count` panels, over a block of k. If `tail` (a pred, or null) holds, one more panel with
  /// fewer columns follows.
  Body panelByPanel(const Expr &kb, const Expr &k0, const Expr &kl, const Expr &tile0, const Expr &tiles,
                    const Expr &panel0, const Expr &all, const Expr &count, const Expr &tail) {
    auto byTiles = [&](const Tile &t, const Expr &panel) {
      return serial("tile", tiles, [&](const Expr &tile) {
        Expr i0 = firstRow(tile0 + tile);
        return Body{bindTo("a0", p.ta ? k0 * p.lda + i0 : i0 * p.lda + k0, [&](const Expr &a0) {
          Body out = panelBody(t, kb, kl, tile0, tile, a0, panel, panel0 + panel);
          out.insert(out.begin(), fetchNextPanel(kb, tile, panel, panel0, all));
          return out;
        })};
      });
    };
    Body out = {serial("panel", count, [&](const Expr &panel) { return Body{byTiles(b.tile, panel)}; })};
    if (tail) {
      Tile t = b.tile;
      t.vecs = int(ceilDiv(b.tailCols, t.lanes));
      out.push_back(ifThen(tail, {byTiles(t, count)}));
    }
    return out;
  }

  /// Prefetches a tile's share of the next panel: of this block of k, or the first panel of the next block, or after
  /// both the next task's, which some thread is about to read.
  Stmt fetchNextPanel(const Expr &kb, const Expr &tile, const Expr &panel, const Expr &panel0, const Expr &all) {
    const Buffer &from = group.inputs[p.b];
    const int64_t perLine = cacheLine / int64_t(sizeOf(p.stored)), together = stepOfPanels(p.stored);
    const int64_t ofStep = nr() * together, ofBlock = b.stepsInMemory(p, b.kc) * ofStep,
                  ofPanel = ceilDiv(p.k, together) * ofStep;
    const int64_t each = ceilDiv(ceilDiv(ofBlock, perLine), b.tilesPerTask);
    Expr next = (panel0 + panel + 1) * ofPanel + kb * ofBlock;
    if (b.kBlocks > 1) {
      const Expr done = binary(BinaryOp::and_, eq(panel, all - imm(1)), lt(kb, imm(b.kBlocks - 1)));
      next = select(done, panel0 * ofPanel + (kb + 1) * ofBlock, next);
    }
    return bindTo("next", next + tile * (each * perLine), [&](const Expr &first) {
      return Body{serial("q", imm(each), [&](const Expr &q) {
        return Body{prefetch(from, min(first + q * perLine, imm(b.panels * ofPanel - 1)))};
      })};
    });
  }

  /// The first row of a tile, or of `count` tiles together. The last ones are moved up until they fit.
  Expr firstRow(const Expr &tile, int64_t count = 1) const {
    return min(tile * int64_t(b.tile.rows), imm(p.m - std::min(count * b.tile.rows, p.m)));
  }

  static Expr eq(const Expr &x, const Expr &y) { return binary(BinaryOp::eq, x, y); }

  /// Splits a block of kl elements of k into runs that no pair crosses: body(first element, first step, steps, odd) for
  /// each run. With `odd` the run is one element, paired with zero. Without pairs there is one run of single elements.
  using Run = std::function<Body(const Expr &first, const Expr &step, const Expr &steps, bool odd)>;
  Body runs(const Expr &kl, const Run &body) const {
    if (!b.pairs)
      return body(imm(0), imm(0), kl, false);
    auto run = [&](const Expr &first, const Expr &step, const Expr &length, bool maybeOdd) {
      Expr whole = length / imm(2);
      Body out = body(first, step, whole, false);
      if (maybeOdd)
        out.push_back(ifThen(eq(length % imm(2), imm(1)), body(first + whole * 2, step + whole, imm(1), true)));
      return out;
    };
    if (p.fold % 2 == 0)  // or no fold: blocks are even but for the last
      return run(imm(0), imm(0), kl, p.k % 2 != 0);
    return {serial("f", folds(kl),
                   [&](const Expr &f) { return run(f * p.fold, f * ceilDiv(p.fold, 2), lengthOfFold(f, kl), true); })};
  }
  Expr folds(const Expr &kl) const { return (kl + (p.fold - 1)) / imm(p.fold); }
  Expr lengthOfFold(const Expr &f, const Expr &kl) const {
    return p.k % p.fold == 0 ? imm(p.fold) : min(imm(p.fold), kl - f * p.fold);
  }
  /// Steps of the chain in `k` elements.
  Expr stepsIn(const Expr &k) const { return b.pairs ? (k + 1) / imm(2) : k; }

  int64_t perStep() const { return b.pairs ? 2 : 1; }

  /// From so many bytes on B is expected in memory, not in the caches, and packing prefetches it.
  static constexpr int64_t largeB = 1 << 20;

  Body packB(const Expr &panel0, const Expr &fullPanels, const Expr &last, const Expr &k0, const Expr &kl) {
    PanelPack pack;
    pack.from = group.inputs[p.b];
    pack.to = packedB;
    pack.stepStride = p.tb ? 1 : p.ldb;
    pack.colStride = p.tb ? p.ldb : 1;
    Expr base = batch * p.bBatch + k0 * pack.stepStride + panel0 * (nr() * pack.colStride);
    pack.fullPanels = fullPanels;
    pack.tailCols = b.tailCols;
    pack.hasTail = b.colTasks > 1 ? last : nullptr;
    pack.width = int(nr());
    pack.lanes = b.tile.lanes;
    pack.panelSteps = b.stepsOf(p, b.kc);
    pack.fetch = p.n * p.k * int64_t(sizeOf(p.stored)) >= largeB;
    return runs(kl, [&](const Expr &first, const Expr &step, const Expr &steps, bool odd) {
      pack.base = base + first * pack.stepStride;
      pack.toBase = step * nr();
      pack.steps = steps;
      pack.perStep = odd ? 1 : perStep();
      if (b.pairs)
        pack.element = [&, odd, from = pack.base](const Expr &s, const Expr &col) {
          return stepOf(true, pack.from, from + s * (2 * pack.stepStride) + col * pack.colStride, pack.stepStride, odd);
        };
      return packPanels(pack);
    });
  }

  /// Adds the block of k from k0 on to the task's columns of columnSum.
  Body addColumns(const Expr &panel0, const Expr &panels, const Expr &kb, const Expr &k0, const Expr &kl) {
    Expr col0 = panel0 * nr(), cols = min(panels * nr(), imm(p.n) - col0);
    auto each = [&](const std::function<Stmt(const Expr &)> &body) {
      return vectorLoop("j", cols, b.tile.lanes, [&](const Expr &j) { return Body{body(j)}; });
    };
    Stmt start = each([&](const Expr &j) { return store(columnSums, j, epilogue.columnInit(col0 + j)); });
    Stmt folded = serial("f", folds(kl), [&](const Expr &f) {
      return Body{each([&](const Expr &j) { return store(columnPart, j, fimm(0, dtype())); }),
                  serial("r", lengthOfFold(f, kl),
                         [&](const Expr &r) {
                           Expr k = k0 + f * p.fold + r;
                           return Body{each([&](const Expr &j) {
                             return store(columnPart, j, load(columnPart, j) + epilogue.columnTerm(k, col0 + j));
                           })};
                         }),
                  each([&](const Expr &j) { return store(columnSums, j, load(columnSums, j) + load(columnPart, j)); })};
    });
    Stmt finish = each([&](const Expr &j) { return epilogue.storeColumn(col0 + j, load(columnSums, j)); });
    return {b.kBlocks > 1 ? ifThen(eq(kb, imm(0)), {start}) : start, folded,
            b.kBlocks > 1 ? ifThen(eq(kb, imm(b.kBlocks - 1)), {finish}) : finish};
  }

  /// Copies the group's tiles of A from a0 on as f32 or pairs: [rows][steps], or [steps][rows] if A is [K,M].
  Body copyGroup(const Expr &a0, const Expr &kl) {
    const Buffer &from = group.inputs[p.a];
    const int64_t stride = b.strideA(p);
    return runs(kl, [&](const Expr &first, const Expr &step, const Expr &steps, bool odd) {
      if (p.ta)
        return Body{serial("s", steps, [&](const Expr &s) {
          return Body{vectorLoop("i", imm(b.groupRows(p)), b.tile.lanes, [&](const Expr &i) {
            Expr at = a0 + (first + s * perStep()) * p.lda + i;
            return Body{store(copyOfA, (step + s) * stride + i, stepOf(b.pairs, from, at, p.lda, odd))};
          })};
        })};
      return Body{serial("i", imm(b.groupRows(p)), [&](const Expr &i) {
        return Body{vectorLoop("s", steps, b.tile.lanes, [&](const Expr &s) {
          Expr at = a0 + i * p.lda + first + s * perStep();
          return Body{store(copyOfA, i * stride + step + s, stepOf(b.pairs, from, at, 1, odd))};
        })};
      })};
    });
  }

  /// Bytes of A above which no cache is expected to hold it. Prefetching a smaller A gains nothing.
  static constexpr int64_t largeA = 16 << 20;

  /// Prefetches a part of the next group's tiles of A; each tile and panel takes another part. Otherwise the next copy
  /// would wait for memory: the hardware prefetcher does not follow so many pieces of rows, each in a page of its own.
  Stmt fetchNextGroup(const Expr &tile, const Expr &inGroup, const Expr &k0, const Expr &kl, const Expr &panel) {
    const Buffer &from = group.inputs[p.a];
    const int64_t perLine = cacheLine / int64_t(sizeOf(p.stored)), rows = b.groupRows(p);
    // [K,M]: some lines of each row; the group before has read the first one. [M,K]: whole lines.
    const int64_t perRow = ceilDiv(p.ta ? rows : b.kc, perLine), lines = (p.ta ? b.kc : rows) * perRow;
    const int64_t perPanel = ceilDiv(lines, b.group * b.panelsPerTask);
    Expr i0 = firstRow(tile - inGroup + b.group, b.group), end = kl - imm(1);
    return serial("q", imm(perPanel), [&](const Expr &q) {
      Expr n = (inGroup * b.panelsPerTask + panel) * perPanel + q;
      Expr at =
          p.ta ? (k0 + min(n / imm(perRow), end)) * p.lda + i0 + min((n % imm(perRow) + 1) * perLine, imm(rows - 1))
               : (i0 + min(n % imm(rows), imm(rows - 1))) * p.lda + k0 + min(n / imm(rows) * perLine, end);
      return Body{prefetch(from, batch * p.aBatch + at)};
    });
  }

  Expr elementA(const Expr &a0, int row, const Expr &k) const {
    if (b.copyA)
      return load(copyOfA, a0 + (p.ta ? k * b.strideA(p) + int64_t(row) : k + row * b.strideA(p)));
    if (b.pairs)
      return loadPair(group.inputs[p.a], a0 + k * 2 + row * p.lda);
    return load(group.inputs[p.a], a0 + (p.ta ? k * p.lda + int64_t(row) : k + row * p.lda));
  }
  /// The value of step `step` of block kb in a column of a packed panel of operand B.
  Expr elementOfPanel(const Expr &panel, const Expr &kb, const Expr &step, const Expr &col) const {
    const Buffer &from = group.inputs[p.b];
    const int64_t together = stepOfPanels(p.stored), steps = ceilDiv(p.k, together);
    Expr at = kb * b.stepsOf(p, b.kc) + step;
    if (b.pairs)
      return loadPair(from, ((panel * steps + at) * nr() + col) * 2);
    if (together == 1)
      return load(from, (panel * steps + at) * nr() + col);
    // Memory holds pairs, but a step takes one half: the CPU has no dot products, or sums are f64.
    const Expr pair = ((panel * steps + at / imm(together)) * nr() + col) * together, half = at % imm(together);
    if (group.compute != DType::f32)
      return load(from, pair + half);
    const Expr bits = binary(BinaryOp::shl, loadPair(from, pair), cast(DType::u32, imm(1) - half) * 16);
    return bitcast(DType::f32, binary(BinaryOp::and_, bits, imm(0xffff0000, DType::u32)));
  }
  /// Whether a block may end with an element that has no partner in memory.
  bool endsOdd() const { return b.pairs && !b.copyA && p.k % 2; }

  /// The micro-kernel of one tile, which begins at a0 in A or in its copy, and one panel. The epilogue follows after
  /// the last block of k.
  Body panelBody(const Tile &t, const Expr &kb, const Expr &kl, const Expr &tile0, const Expr &tile, const Expr &a0,
                 const Expr &panel, const Expr &panelOfN) {
    Expr i0 = firstRow(tile0 + tile), ownRow = (tile0 + tile) * int64_t(b.tile.rows) - i0;
    Expr c0 = b.kBlocks > 1 ? (tile * b.panelsPerTask + panel) * tileSize() : imm(0);
    Expr col0 = panelOfN * nr();
    Expr cols = b.tailCols ? min(imm(nr()), imm(p.n) - col0) : imm(nr());
    auto sumAt = [&](int row, int vec, const Expr &j) { return c0 + int64_t(row * nr() + vec * t.lanes) + j; };
    Body out;

    if (needsStart) {
      Body start = {serial("i", imm(t.rows), [&](const Expr &i) {
        Body row;
        if (p.init < 0 || b.tailCols)
          row.push_back(vectorLoop("j", imm(t.cols()), t.lanes, [&](const Expr &j) {
            return Body{store(sums, c0 + i * nr() + j, fimm(0, dtype()))};
          }));
        if (p.init >= 0)
          row.push_back(vectorLoop("j", cols, t.lanes, [&](const Expr &j) {
            return Body{store(sums, c0 + i * nr() + j, epilogue.init(batch, i0 + i, col0 + j))};
          }));
        return row;
      })};
      out.push_back(b.kBlocks > 1 ? ifThen(eq(kb, imm(0)), start) : block(start));
    }

    Stmt fetch = epilogue.prefetch(batch, i0, t.rows, col0, nr());
    out.push_back(b.kBlocks > 1 ? ifThen(eq(kb, imm(b.kBlocks - 1)), {fetch}) : fetch);

    // The steps of `length` elements of k, from step `first` of the block on.
    auto micro = [&](const Expr &first, const Expr &length) {
      TileLoop loop;
      loop.tile = t;
      loop.steps = endsOdd() ? length / imm(2) : stepsIn(length);
      loop.pairs = b.pairs;
      loop.a = [&, first](int row, const Expr &k) { return elementA(a0, row, first + k); };
      if (endsOdd()) {
        loop.more = eq(length % imm(2), imm(1));
        loop.last = [&, first, whole = loop.steps](int row) {
          return stepOf(true, group.inputs[p.a], a0 + (first + whole) * 2 + row * p.lda, 1, /*odd=*/true);
        };
      }
      Expr b0 = panel * (b.stepsOf(p, b.kc) * nr()) + first * nr();
      loop.b = [&, b0, first](int vec, const Expr &k, const Expr &j) {
        return p.panels ? elementOfPanel(panelOfN, kb, first + k, j + int64_t(vec * t.lanes))
                        : load(packedB, b0 + k * nr() + int64_t(vec * t.lanes) + j);
      };
      if (needsStart && !p.fold)
        loop.start = [&](int row, int vec, const Expr &j) { return load(sums, sumAt(row, vec, j)); };
      loop.finish = [&](int row, int vec, const Expr &j, const Expr &acc) {
        Expr at = sumAt(row, vec, j);
        return store(sums, at, p.fold ? load(sums, at) + acc : acc);
      };
      return tileLoop(loop);
    };
    if (p.fold)
      out.push_back(serial("f", folds(kl),
                           [&](const Expr &f) { return Body{micro(f * b.stepsOf(p, p.fold), lengthOfFold(f, kl))}; }));
    else
      out.push_back(micro(imm(0), kl));

    // One vector loop takes a whole row of the tile, so that the latencies of its vectors overlap.
    const int lanes = int(llvm::bit_floor(unsigned(t.cols())));
    Stmt finish =
        epilogue.emit(batch, i0 + ownRow, imm(t.rows) - ownRow, col0, cols, lanes,
                      [&](const Expr &row, const Expr &col) { return load(sums, c0 + (ownRow + row) * nr() + col); });
    out.push_back(b.kBlocks > 1 ? ifThen(eq(kb, imm(b.kBlocks - 1)), {finish}) : finish);
    return out;
  }

  GroupEval &group;
  const Problem &p;
  const BlockSizes &b;
  Epilogue epilogue;
  Buffer packedB, copyOfA, sums, columnSums, columnPart;
  Expr batch;
  bool needsStart;  // sums begin in memory instead of at +0 in registers
};

Problem problemOf(const Op &fused) {
  Problem p;
  std::string why = Problem::read(fused, p);
  GPTC_CHECK(why.empty(), "{}", why);
  return p;
}

bool matches(const Op &fused) {
  Problem p;
  return Problem::read(fused, p).empty();
}

/// The same for a group to run on `target`. UserError(NotBuiltYet) for packed weights on CUDA, but those of few bits.
Problem problemFor(const Op &fused, const Target &target) {
  const Problem p = problemOf(fused);
  if (p.panels && p.scales < 0 && target.isCuda())
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("'{}' reads a weight in panels, which only CPUs do yet", fused.loc),
                    "compile for the GPU from model.toml, or without the pass pack-weights");
  return p;
}

Schedule defaults(const Op &fused, const Target &target) {
  const Problem p = problemFor(fused, target);
  if (p.scales >= 0)
    return target.isCuda() ? matmul::cudaQuantizedSchedule(p, target) : matmul::quantizedSchedule(p, target);
  return target.isCuda() ? matmul::cudaSchedule(p, target) : matmul::cpuSchedule(p, target);
}

std::vector<Schedule> space(const Op &fused, const Schedule &base, const Target &target) {
  const Problem p = problemFor(fused, target);
  if (p.scales >= 0)
    return target.isCuda() ? matmul::cudaQuantizedSpace(p, base, target) : matmul::quantizedSpace(p, base);
  return target.isCuda() ? matmul::cudaSpace(p, base, target) : matmul::cpuSpace(p, base, target);
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &target, DType compute) {
  const Problem p = problemFor(fused, target);
  if (target.isCuda())
    return p.scales >= 0 ? matmul::buildCudaQuantized(fused, p, s, compute) : matmul::buildCuda(fused, p, s, compute);
  GroupEval group(fused, compute);
  if (p.scales >= 0)
    return matmul::buildQuantized(group, p, s);
  if (matmul::isFewRows(p))
    return matmul::buildFewRows(group, p, s);
  LoweredGroup out;
  out.kernel.name = group.kernelName();
  out.kernel.params = group.params();
  GPTC_CHECK(s.vec > 0 && s.mr > 0 && s.nr > 0 && s.nr % s.vec == 0 && s.mc > 0 && s.nc > 0 && s.kc > 0 &&
                 (!p.panels || s.nr == p.panels),
             "{}", s.str());
  BlockSizes b = blocksOf(p, s, compute);
  Builder builder(group, p, b);
  out.kernel.body = {parallel("task", b.tasks(p), [&](const Expr &t) { return Body{builder.task(t)}; })};
  return out;
}

}  // namespace

const Recipe &matmulRecipe() {
  static const Recipe recipe{RecipeKind::matmul, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

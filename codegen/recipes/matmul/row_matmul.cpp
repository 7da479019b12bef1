// The row_matmul recipe, for CUDA: a product of up to four rows (decoding), cut over k, with what makes its first
// operand in front of it and what follows its result behind it. So a norm, the product that reads it and the residual
// sum are one kernel.
//
// Attention of one new token may be in front too. Its parts (recipe attention_split) are a launch before, and step 1
// adds them up.
//
//   1. A block takes `nc` columns. It makes all rows of the first operand in shared memory: sums of a row in a lane for
//      each thread, then the elements. Every block does, as that costs less than one more kernel.
//   2. Reading B limits the speed, so threads are spread over k too: each adds every S-th step of k for its columns,
//      16 bytes of B at a time. B [K,N]: nc / nr neighbours take the columns of one step. B [N,K]: S neighbours take nr
//      steps each of one row of B.
//   3. Sums of the slices of k are added in order, in two stages, by threads that then compute the results.
//
// Order of sums. The slices follow from `threads`, `nr` and `nc`, whose defaults depend on the product's shape and
// types alone: not on the number of rows, on other sequences of a batch or on the GPU.
#include "codegen/recipes/attention/attention.h"
#include "codegen/recipes/matmul/matmul.h"
#include "codegen/recipes/place.h"
#include "codegen/recipes/row_sums.h"
#include "ir/access.h"
#include "ir/quantized_cache.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace gptc {

using namespace kir;
using matmul::Epilogue;
using matmul::Problem;

namespace {

/// Loads of B of a thread that are under way together.
constexpr int64_t loadsAhead = 8;

/// The op that makes the first operand of the product if it is attention, else null.
const Op *attentionOf(const Problem &p) {
  const Op *def = p.anchor->operand(0)->def;
  return def && def->is(OpKind::attention_cached) ? def : nullptr;
}

/// Why the recipe does not cover a group with this attention; "" if it does.
std::string readAttention(const Op &op, const Op &fused) {
  if (op.operand(0)->type.dim(1) != 1)
    return "attention of several tokens";
  if (op.operand(1)->type.rank() != 3)
    return "attention in slots";
  if (hasQuantizedCache(op))
    return "a cache of 8 bits";
  if (llvm::any_of(op.operands(), [](const Value *v) { return v->def != nullptr; }))
    return "attention to what the group makes";
  const auto results = fused.body->back()->operands();
  if (llvm::is_contained(results, op.result(0)) || llvm::count(results, op.result(1)) != 1 ||
      llvm::count(results, op.result(2)) != 1)
    return "other results of attention than the caches";
  return "";
}

/// The product of a group. Returns "" if the recipe covers the group, else why it does not.
std::string read(const Op &fused, Problem &p) {
  if (!fused.body)
    return "no body";
  for (const Op &op : *fused.body)
    if (op.is(OpKind::matmul)) {
      if (p.anchor)
        return "two matmuls";
      p.anchor = &op;
    }
  if (!p.anchor)
    return "no matmul";
  const Op &op = *p.anchor;
  const Value *a = op.operand(0), *b = op.operand(1);
  if (op.numOperands() != 2 || b->def || op.attrs.getInt("fold") || op.attrs.getInt("batch") || op.attrs.getBool("ta"))
    return "not a product of rows with a matrix in memory";
  const Type &type = a->type, &matrix = b->type, &result = op.result()->type;
  p.b = b->index;
  p.tb = op.attrs.getBool("tb");
  p.k = type.dim(-1);
  p.n = result.dim(-1);
  p.m = type.rows();
  p.ldb = matrix.padded(-1);
  p.stored = matrix.dtype;
  if (matrix.rank() != 2 || p.m > RowMatmulLimits::mostRows || p.k > RowMatmulLimits::mostColumns || p.m < 1 ||
      p.k < 1 || p.n < 1)
    return "another number of rows";
  for (const Type *t : {&type, &result})
    for (unsigned i = 0; i + 1 < t->rank(); ++i)
      if (t->dims[i].logical != t->dims[i].padded)
        return "padding between rows";
  // Before the product: rows of its first operand. Behind it: elements of its result.
  llvm::DenseSet<const Op *> before, behind = {&op};
  const Op *attention = attentionOf(p);
  std::vector<const Value *> needed = {a};
  if (attention) {
    if (const std::string why = readAttention(*attention, fused); !why.empty() || a->index != 0)
      return why.empty() ? "a product of a cache" : why;
    before.insert(attention);
    needed.clear();
  }
  while (!needed.empty()) {
    const Op *def = needed.back()->def;
    needed.pop_back();
    if (!def || def->is(OpKind::constant) || !before.insert(def).second)
      continue;
    if (def->def().fusion != FusionKind::row && def->def().fusion != FusionKind::pointwise)
      return fmt::format("{} before the product", def->name());
    needed.insert(needed.end(), def->operands().begin(), def->operands().end());
  }
  for (const Op &o : *fused.body) {
    if (&o == &op || before.contains(&o))
      continue;
    auto isCache = [&](const Value *v) { return attention && v->def == attention && v->index > 0; };
    if (llvm::any_of(o.operands(),
                     [&](const Value *v) { return before.contains(v->def) && !(isCache(v) && o.is(OpKind::yield)); }))
      return "a value that is used before the product and elsewhere";
    if (o.isOneOf(OpKind::constant, OpKind::yield))
      continue;
    const bool isBehind = llvm::any_of(o.operands(), [&](const Value *v) { return behind.contains(v->def); });
    if (o.def().fusion != FusionKind::pointwise || (isBehind && !o.result()->type.sameShape(result)))
      return fmt::format("{} behind the product", o.name());
    if (isBehind)
      behind.insert(&o);
  }
  for (const Value *v : fused.body->back()->operands())
    if (!v->type.sameShape(result) && !(attention && v->def == attention))
      return "a result of another shape than the product's";
  return "";
}

Problem problemOf(const Op &fused) {
  Problem p;
  const std::string why = read(fused, p);
  GPTC_CHECK(why.empty(), "{}", why);
  return p;
}

class RowMatmulBuilder {
public:
  RowMatmulBuilder(const Op &fused, const Schedule &s, const Target &target, DType compute)
      : g(fused, compute), s(s), p(problemOf(fused)), epilogue(g, p), width(s.nr),
        slices(p.tb ? s.threads * s.mr / s.nc : s.threads / (s.nc / s.nr)), room(target.sharedBytes) {
    const bool fits = p.tb ? s.mr > 0 && s.nc > 0 && s.nc % s.mr == 0 && s.threads % (s.nc / s.mr) == 0
                           : s.nr > 0 && s.nc > 0 && s.nc % s.nr == 0 && s.threads % (s.nc / s.nr) == 0;
    GPTC_CHECK(fits && s.threads % 32 == 0 && slices > 0 && (p.tb ? p.k : p.n) % width == 0, "{}", s.str());
    while (rows > 1 && (p.m % rows || bytesOf(rows) > room))
      --rows;
  }

  LoweredGroup build() {
    attention::Phases out;
    if (const Op *op = attentionOf(p)) {
      Schedule split = attention::splitSchedule(op->operand(1)->type.dim(1));
      split.kb = s.kb;
      attention::SplitParts made = attention::splitParts(g, *op, split);
      out = std::move(made.phases);
      attentionResult = made.result;
      headSize = made.size;
    }
    a = makeBuffer("a", g.compute, Storage::shared, rows * p.k);
    parts = makeBuffer("parts", g.compute, Storage::shared, slices * rows * s.nc);
    Seq block;
    const Var number = makeVar("block");
    placer.push(block, {number});
    const int64_t across = ceilDiv(p.n, s.nc);
    first = placer.let("first", (rows < p.m ? kir::ref(number) % imm(across) : kir::ref(number)) * s.nc);
    firstRow = rows < p.m ? placer.let("firstRow", kir::ref(number) / imm(across) * rows) : imm(0);
    columns = p.n % s.nc ? placer.let("columns", min(imm(s.nc), imm(p.n) - first)) : imm(s.nc);
    makeRows(block);
    block.alloc(parts);
    threadLoop(block, s.threads, [&](Seq &thread, const Expr &t) { p.tb ? byRows(thread, t) : byColumns(thread, t); });
    addSlices(block);
    placer.pop();
    out.body.push_back(loop(LoopKind::grid, number, imm(across * (p.m / rows)), block.take()));
    return std::move(out).lowered(g);
  }

private:
  /// Shared memory for so many rows, but for those that several sweeps read.
  int64_t bytesOf(int64_t n) const {
    constexpr int64_t sums = 4 << 10;  // of rows
    return int64_t(sizeOf(g.compute)) * n * (p.k + slices * s.nc) + sums;
  }
  void threadLoop(Seq &block, int64_t threads, const std::function<void(Seq &, const Expr &t)> &body) {
    const Var t = makeVar("t");
    Seq thread;
    placer.push(thread, {t});
    body(thread, kir::ref(t));
    placer.pop();
    block.add(loop(LoopKind::block_thread, t, imm(threads), thread.take()));
  }
  /// Shares `count` pieces among all threads.
  void eachPiece(Seq &block, int64_t count, const std::function<void(Seq &, const Expr &piece)> &body) {
    threadLoop(block, s.threads, [&](Seq &thread, const Expr &t) {
      Expr steps = imm(count / s.threads);
      if (count % s.threads)
        steps = steps + select(lt(t, imm(count % s.threads)), imm(1), imm(0));
      const Var i = makeVar("i");
      Seq one;
      placer.push(one, {i});
      body(one, kir::ref(i) * s.threads + t);
      placer.pop();
      thread.add(loop(LoopKind::serial, i, steps, one.take()));
    });
  }
  /// The same with the elements of a row; c is the element.
  void eachElement(Seq &row, const std::function<void(Seq &)> &body) {
    eachPiece(row, p.k, [&](Seq &element, const Expr &n) {
      placer.let(c, n);
      body(element);
    });
  }

  /// Step 1 of attention: four elements at a time, so that a thread waits once for memory.
  void addParts(Seq &block) {
    block.alloc(a);
    const int64_t pack = std::gcd<int64_t>(4, headSize), pieces = headSize / pack;
    eachPiece(block, p.k / pack, [&](Seq &piece, const Expr &n) {
      const Expr head = placer.let("head", n / imm(pieces)), first = placer.let("x", n % imm(pieces) * pack);
      const Var j = makeVar("j");
      Seq element;
      placer.push(element, {j});
      const Value *o = p.anchor->operand(0);
      g.bind(o, [&](const Point &) { return attentionResult(head, first + kir::ref(j)); });
      const Expr value = g.at(o, Point().add(imm(0), o->type.dims));
      element.add(store(a, head * headSize + first + kir::ref(j), placer.place(value)));
      placer.pop();
      piece.add(loop(LoopKind::vector, j, imm(pack), element.take(), int(pack)));
    });
  }

  /// Step 1.
  void makeRows(Seq &block) {
    if (attentionResult)
      return addParts(block);
    const Type &type = p.anchor->operand(0)->type;
    const llvm::ArrayRef<Dim> dims = type.dims;
    Point point;
    point.add(firstRow + kir::ref(rowVar), dims.drop_back()).add(kir::ref(c), dims.take_back());
    g.approximates = true;
    g.setDomain(point);
    Expr value = placer.intern(g.at(p.anchor->operand(0), point));
    if (value->kind == ExprKind::Load) {
      inMemory = value;
      return;
    }
    block.alloc(a);
    std::vector<std::vector<RowSum>> levels = takeRowSums(placer, {&value});
    Sweeps sweeps;
    for (std::vector<RowSum> &sums : levels) {
      sweeps.emplace_back();
      for (RowSum &sum : sums)
        sweeps.back().push_back(&sum.element);
    }
    sweeps.push_back({&value});

    const int64_t lanes = int64_t(std::bit_floor(uint64_t(std::min<int64_t>(s.threads, p.k))));  // of a sum
    Seq row;
    placer.push(row, {rowVar});
    // All loads at once, not one sweep's behind another's.
    const std::vector<Expr> loads = levels.empty() ? std::vector<Expr>() : loadsOf(sweeps, c, 1);
    int64_t bytes = bytesOf(rows);
    for (const Expr &e : loads)
      bytes += p.k * int64_t(sizeOf(e->buffer->dtype));
    if (!loads.empty() && bytes <= room) {
      std::vector<Buffer> staged;
      for (const Expr &e : loads) {
        staged.push_back(makeBuffer("row", e->buffer->dtype, Storage::shared, p.k));
        row.alloc(staged.back());
      }
      eachElement(row, [&](Seq &element) {
        const std::vector<Expr> values = placer.place(loads);
        for (size_t n = 0; n < loads.size(); ++n)
          element.add(store(staged[n], kir::ref(c), values[n]));
      });
      replaceLoads(placer, sweeps, loads, staged, c);
    }
    for (std::vector<RowSum> &sums : levels) {
      std::vector<const RowSum *> all;
      std::vector<Buffer> parts;
      for (const RowSum &sum : sums) {
        all.push_back(&sum);
        parts.push_back(makeBuffer("part", sum.node->dtype, Storage::shared, lanes));
        row.alloc(parts.back());
      }
      row.add(sumByLanes(placer, c, all, parts, p.k));
      for (size_t n = 0; n < sums.size(); ++n)
        placer.let(sums[n].result, hreduce(parts[n], sums[n].op));
    }
    eachElement(
        row, [&](Seq &element) { element.add(store(a, kir::ref(rowVar) * p.k + kir::ref(c), placer.place(value))); });
    placer.pop();
    block.add(loop(LoopKind::serial, rowVar, imm(rows), row.take()));
  }

  /// Element k of row r of the first operand.
  Expr ofRow(int64_t r, const Expr &k) const {
    if (!inMemory)
      return load(a, imm(r * p.k) + k);
    std::map<const ExprNode *, Expr> memo;
    return substitute(inMemory, memo, [&](const Expr &n) -> Expr {
      return n->kind != ExprKind::Var ? nullptr : n->var == c ? k : n->var == rowVar ? imm(r) : nullptr;
    });
  }

  /// Runs body(seq, step) for the steps of a thread's slice, `count` in all, of which it takes `slice`, `slice` +
  /// slices, ...
  void eachStep(Seq &thread, const Expr &slice, int64_t count,
                const std::function<void(Seq &, const Expr &step)> &body) {
    auto steps = [&](Seq &seq, const Expr &from, int64_t n) {
      const Var u = makeVar("u");
      Seq one;
      placer.push(one, {u});
      body(one, placer.let("step", (from + kir::ref(u)) * slices + slice));
      placer.pop();
      seq.add(loop(LoopKind::unroll, u, imm(n), one.take()));
    };
    const int64_t ahead = p.tb ? std::max<int64_t>(1, loadsAhead / s.mr) : loadsAhead;
    const int64_t whole = count / slices, turns = whole / ahead;
    if (turns > 0) {
      const Var i = makeVar("i");
      Seq turn;
      placer.push(turn, {i});
      steps(turn, kir::ref(i) * ahead, ahead);
      placer.pop();
      thread.add(loop(LoopKind::serial, i, imm(turns), turn.take()));
    }
    if (whole % ahead)
      steps(thread, imm(turns * ahead), whole % ahead);
    if (count % slices) {
      Seq last;
      placer.push(last, {});
      steps(last, imm(whole), 1);
      placer.pop();
      thread.add(ifThen(lt(slice, imm(count % slices)), last.take()));
    }
  }
  void zero(Seq &thread, const Buffer &acc) {
    const int64_t rows = acc->size / width;
    for (int64_t r = 0; r < rows; ++r)
      thread.add(vectorLoop("l", imm(width), width, [&](const Expr &) {
        return Body{store(acc, imm(r * width) + lane(), fimm(0, g.compute))};
      }));
  }

  /// Step 2, B [K,N].
  void byColumns(Seq &thread, const Expr &t) {
    const int64_t across = s.nc / width;
    const Expr group = placer.let("group", t % imm(across)), slice = placer.let("slice", t / imm(across));
    const Buffer acc = makeBuffer("acc", g.compute, Storage::reg, rows * width);
    Seq own;
    placer.push(own, {});
    own.alloc(acc);
    zero(own, acc);
    const Expr column = placer.let("column", first + group * width);
    eachStep(own, slice, p.k, [&](Seq &step, const Expr &k) {
      std::vector<Expr> x;
      for (int64_t r = 0; r < rows; ++r)
        x.push_back(placer.let("x", ofRow(r, k)));
      const Expr at = placer.let("at", k * p.ldb + column);
      step.add(vectorLoop("j", imm(width), width, [&](const Expr &j) {
        Body body;
        for (int64_t r = 0; r < rows; ++r) {
          const Expr slot = imm(r * width) + lane();
          body.push_back(store(acc, slot, kir::fma(load(g.inputs[p.b], at + j), x[size_t(r)], load(acc, slot))));
        }
        return body;
      }));
    });
    for (int64_t r = 0; r < rows; ++r)
      own.add(vectorLoop("j", imm(width), width, [&](const Expr &j) {
        return Body{
            store(parts, (slice * rows + imm(r)) * s.nc + group * width + j, load(acc, imm(r * width) + lane()))};
      }));
    placer.pop();
    if (p.n % s.nc)
      thread.add(ifThen(lt(group * width, columns), own.take()));
    else
      thread.add(own.take());
  }

  /// Step 2, B [N,K]: a thread takes s.mr columns, s.nc / s.mr apart.
  void byRows(Seq &thread, const Expr &t) {
    const int64_t apart = s.nc / s.mr;
    const Expr slice = placer.let("slice", t % imm(slices)), group = placer.let("group", t / imm(slices));
    const Buffer acc = makeBuffer("acc", g.compute, Storage::reg, s.mr * rows * width);
    Seq own;
    placer.push(own, {});
    own.alloc(acc);
    zero(own, acc);
    std::vector<Expr> starts;  // of B; past the end the last one again, whose sums are not used
    for (int64_t i = 0; i < s.mr; ++i) {
      const Expr row = first + group + imm(i * apart);
      starts.push_back(placer.let("row", (p.n % s.nc ? min(row, imm(p.n - 1)) : row) * p.ldb));
    }
    eachStep(own, slice, p.k / width, [&](Seq &step, const Expr &k) {
      const Expr at = placer.let("k", k * width);
      step.add(vectorLoop("j", imm(width), width, [&](const Expr &j) {
        Body body;
        for (int64_t i = 0; i < s.mr; ++i)
          for (int64_t r = 0; r < rows; ++r) {
            const Expr slot = imm((i * rows + r) * width) + lane();
            body.push_back(
                store(acc, slot,
                      kir::fma(load(g.inputs[p.b], starts[size_t(i)] + at + j), ofRow(r, at + j), load(acc, slot))));
          }
        return body;
      }));
    });
    for (int64_t i = 0; i < s.mr; ++i)
      for (int64_t r = 0; r < rows; ++r) {
        const Expr sum =
            width == 1 ? load(acc, imm(i * rows + r)) : hreduce(acc, BinaryOp::add, imm((i * rows + r) * width), width);
        own.add(store(parts, (slice * rows + imm(r)) * s.nc + group + imm(i * apart), sum));
      }
    placer.pop();
    thread.add(own.take());
  }

  /// Runs body(seq, n) for n in [0, count), whose columns, n modulo s.nc, the matrix has.
  void shareOut(Seq &block, int64_t count, const std::function<void(Seq &, const Expr &n)> &body) {
    auto guarded = [&](Seq &seq, const Expr &condition, const std::function<void(Seq &)> &inner) {
      if (!condition)
        return inner(seq);
      Seq own;
      placer.push(own, {});
      inner(own);
      placer.pop();
      seq.add(ifThen(condition, own.take()));
    };
    auto one = [&](Seq &seq, const Expr &n) {
      guarded(seq, p.n % s.nc ? lt(n % imm(s.nc), columns) : nullptr, [&](Seq &own) { body(own, n); });
    };
    threadLoop(block, std::min<int64_t>(count, s.threads), [&](Seq &thread, const Expr &t) {
      if (count <= s.threads)
        return one(thread, t);
      const Var turn = makeVar("turn");
      Seq inner;
      placer.push(inner, {turn});
      const Expr n = placer.let("n", kir::ref(turn) * s.threads + t);
      guarded(inner, count % s.threads ? lt(n, imm(count)) : nullptr, [&](Seq &own) { one(own, n); });
      placer.pop();
      thread.add(loop(LoopKind::serial, turn, imm(ceilDiv(count, s.threads)), inner.take()));
    });
  }

  /// Step 3. The number of rows changes no order.
  void addSlices(Seq &block) {
    const int64_t elements = rows * s.nc;
    int64_t helpers = 1;  // that share the slices of an element
    while (2 * helpers * s.nc <= s.threads && 4 * helpers <= slices && slices % (2 * helpers) == 0)
      helpers *= 2;
    const int64_t each = slices / helpers;
    auto sum = [&](Seq &seq, const Expr &from, int64_t count, int64_t apart) {
      const Buffer acc = makeBuffer("total", g.compute, Storage::reg, 1);
      seq.alloc(acc);
      seq.add(store(acc, imm(0), load(parts, from)));
      seq.add(serial("i", imm(count - 1), [&](const Expr &i) {
        return Body{store(acc, imm(0), load(acc, imm(0)) + load(parts, from + (i + 1) * apart))};
      }));
      return acc;
    };
    // Helpers store where only they have read.
    if (helpers > 1)
      shareOut(block, helpers * elements, [&](Seq &seq, const Expr &n) {
        const Expr from = placer.let("from", n / imm(elements) * (each * elements) + n % imm(elements));
        const Buffer acc = sum(seq, from, each, elements);
        seq.add(store(parts, from, load(acc, imm(0))));
      });
    shareOut(block, elements, [&](Seq &seq, const Expr &n) {
      const Buffer acc = sum(seq, n, helpers > 1 ? helpers : slices, helpers > 1 ? each * elements : elements);
      Expr total = placer.let("total", load(acc, imm(0)));
      seq.add(epilogue.emit(imm(0), firstRow + placer.let("r", n / imm(s.nc)), imm(1), first + n % imm(s.nc), imm(1), 1,
                            [&](const Expr &, const Expr &) { return total; }));
    });
  }

  GroupEval g;
  const Schedule &s;
  const Problem p;
  Epilogue epilogue;
  const int width;       // elements of B that a thread loads at a time
  const int64_t slices;  // of k
  const int64_t room;    // bytes of shared memory
  int64_t rows = p.m;    // of a block: all, or fewer where a GPU has no room
  Placer placer;
  const Var rowVar = makeVar("row"), c = makeVar("c");
  std::function<Expr(const Expr &head, const Expr &x)> attentionResult;  // attention::SplitParts; null without
  int64_t headSize = 0;
  Buffer a, parts;  // rows of the first operand; sums by slice, row and column
  Expr inMemory;    // element c of row rowVar of the first operand, where nothing computes it
  Expr first, firstRow, columns;
};

bool matches(const Op &fused) {
  Problem p;
  return read(fused, p).empty();
}

// Depends on the matrix alone.
Schedule defaults(const Op &fused, const Target &target) {
  if (!target.isCuda())
    throw UserError(ErrorCode::NotBuiltYet, "a group of the recipe row_matmul has no kernel for CPUs",
                    "write it as groups of the recipes row and matmul");
  const Problem p = problemOf(fused);
  constexpr int64_t manyBlocks = 128;  // keep a GPU busy
  Schedule s;
  s.threads = 256;
  if (const Op *op = attentionOf(p))
    s.kb = attention::splitSchedule(op->operand(1)->type.dim(1)).kb;
  const int64_t atOnce = std::gcd<int64_t>(16 / int64_t(sizeOf(p.stored)), p.ldb);
  if (p.tb) {
    s.nr = int(std::gcd(atOnce, p.k));
    s.mr = 1;
    const int64_t groups = s.threads / 32;  // a warp reads a row
    while (s.mr < 4 && p.n / (2 * s.mr * groups) >= manyBlocks)
      s.mr *= 2;
    s.nc = groups * s.mr;
    return s;
  }
  s.nr = int(std::gcd(atOnce, p.n));
  s.nc = s.nr;
  while (s.nc < 16 * s.nr && p.n / (2 * s.nc) >= manyBlocks)
    s.nc *= 2;
  return s;
}

// Nothing to choose: all sizes order the sum.
std::vector<Schedule> space(const Op &, const Schedule &, const Target &) { return {}; }

LoweredGroup build(const Op &fused, const Schedule &s, const Target &target, DType compute) {
  return RowMatmulBuilder(fused, s, target, compute).build();
}

}  // namespace

const Recipe &row_matmulRecipe() {
  static const Recipe recipe = {RecipeKind::row_matmul, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

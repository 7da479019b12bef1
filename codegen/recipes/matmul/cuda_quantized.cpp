// quantized_matmul on CUDA: the integers and the chains of CPUs (quantized.cpp), and so their bits. Dot4 is dp4a.
//
//   1. A launch of its own rounds the rows of A, once for all columns. Eight threads take a block of 32 elements, a
//      word of four bytes each; they meet twice in shared memory, for the largest magnitude and for the sum.
//
// Up to eight rows (decoding) wait for the weight, of which every byte is read once:
//   2. A block takes `nc` columns, and its threads share out K as well, or few columns would leave a GPU idle: a thread
//      reads all words of one block of 32 of some neighbouring columns, 16 bytes at a time, and multiplies them with
//      all rows.
//   3. Those sums are exact, so they may meet in shared memory; there a thread for each result adds them, scaled, to
//      its chain in order.
//
// More rows wait for arithmetic:
//   4. A block takes mc x nc results. For each stage of K it copies words and scales of both operands into shared
//      memory, numbers of 4 bits as bytes.
//   5. A thread multiplies mr x nr of them. Between stages its chains lie in shared memory, as no loop tree keeps
//      registers across a barrier: 16 bytes for each row, beside 128 for each row of operands.
//
// The last columns of a panel have scales of 0, and what lies past the last panel or row reads the last one again:
// neither is stored. Blocks of 32 are never cut, so no size in the schedule shows in the bits.
#include "codegen/recipes/matmul/matmul.h"
#include "codegen/recipes/matmul/quantized.h"
#include "codegen/recipes/place.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace gptc::matmul {

using namespace kir;
using namespace quantized;

namespace {

constexpr int64_t roundingThreads = 256, blocksAtOnce = roundingThreads / words;
constexpr int64_t mostFewRows = 8;
constexpr int64_t quad = 4;      // words of 16 bytes
constexpr int64_t tileRows = 4;  // of a thread: a row and a column of it are read by one access each
constexpr int64_t mostTileThreads = 256;
constexpr int64_t stageBlocks = 4;  // of 32 elements in a stage of more rows, where K is a multiple of so many

bool isFew(const Problem &p) { return p.m <= mostFewRows; }
/// Neighbouring columns of a thread, which no panel cuts.
int64_t widthOf(const Problem &p) { return std::gcd(quad, p.panels); }
/// Words between rows of A in shared memory: a multiple of 16 bytes, and rows begin in different banks.
int64_t rowOfA(const Schedule &s) { return s.kc / 4 + quad; }

/// Bytes of shared memory of a block, with sums in f32.
int64_t sharedBytes(const Problem &p, const Schedule &s) {
  const int64_t minima = p.supers >= 0 ? 1 : 0;
  if (isFew(p))
    return 4 * (s.threads * widthOf(p) * (p.m + 1 + minima) + p.m * s.nc);
  return 4 * (s.mc * (s.nc + rowOfA(s)) + s.kc / 4 * s.nc + s.kc / quantBlock * (2 * s.mc + (1 + minima) * s.nc));
}

class CudaQuantized {
public:
  CudaQuantized(GroupEval &group, const Problem &p, const Schedule &s)
      : group(group), p(p), s(s), epilogue(group, p), format(quantFormatOf(*p.anchor)), blocks(p.k / quantBlock),
        inMemory(words * bitsOf(format) / 8), width(widthOf(p)), end(roundUp(p.n, p.panels)) {
    rounded = makeBuffer("q", DType::u32, Storage::global, p.m * blocks * words, true);
    scales = makeBuffer("da", group.compute, Storage::global, p.m * blocks, true);
    offsets = makeBuffer("sa", DType::i32, Storage::global, p.m * blocks, true);
  }

  LoweredGroup build() {
    LoweredGroup out;
    out.kernel.name = group.kernelName();
    const std::vector<Buffer> workspaces = {rounded, scales, offsets};
    for (const Buffer &b : workspaces)
      out.workspaceBytes.push_back(b->size * int64_t(sizeOf(b->dtype)));
    out.kernel.params = group.params(workspaces);
    out.kernel.body = {rounding(), isFew(p) ? fewRows() : manyRows()};
    return out;
  }

private:
  bool hasMinima() const { return format == QuantFormat::q4_k; }
  static Buffer shared(const char *name, DType dtype, int64_t size) {
    return makeBuffer(name, dtype, Storage::shared, size);
  }

  // ---- building blocks ----

  static Stmt threadLoop(int64_t threads, const std::function<void(Seq &, const Expr &t)> &body) {
    const Var t = makeVar("t");
    Seq thread;
    body(thread, kir::ref(t));
    return loop(LoopKind::block_thread, t, imm(threads), thread.take());
  }
  /// The statements of `body`, if `condition` is null or true.
  static void addIf(Seq &seq, const Expr &condition, const std::function<void(Seq &)> &body) {
    Seq own;
    body(own);
    if (condition)
      seq.add(ifThen(condition, own.take()));
    else
      seq.add(block(own.take()));
  }
  /// Shares `count` items among the threads of a block; t is one of them.
  void eachItem(Seq &thread, const Expr &t, int64_t count, const std::function<void(Seq &, const Expr &item)> &body) {
    const int64_t turns = ceilDiv(count, int64_t(s.threads));
    thread.add(serial("turn", imm(turns), [&](const Expr &turn) {
      Seq one;
      const Expr item = one.let("item", turns > 1 ? turn * s.threads + t : t);
      addIf(one, count % s.threads ? lt(item, imm(count)) : nullptr, [&](Seq &own) { body(own, item); });
      return one.take();
    }));
  }
  static Expr slot(int64_t first) { return imm(first) + lane(); }
  /// Copies four words from `at` on, 16 bytes, to elements `first` to first + 3 of a buffer in registers.
  static Stmt fourWords(const Buffer &to, int64_t first, const Buffer &from, const Expr &at) {
    return vectorLoop("j", imm(quad), int(quad),
                      [&](const Expr &j) { return Body{store(to, slot(first), load(from, at + j))}; });
  }
  Stmt eachColumn(const std::function<Body(const Expr &j)> &body) const {
    return vectorLoop("j", imm(width), int(width), body);
  }

  // ---- the weight ----

  /// Where `width` neighbouring columns lie.
  struct Columns {
    Expr panel, column;
  };
  Columns columnsFrom(Seq &seq, const Expr &first) const {
    const Expr known = roundUp(p.n, s.nc) > end ? min(first, imm(end - width)) : first;
    return {seq.let("panel", known / imm(p.panels)), seq.let("column", known % imm(p.panels))};
  }
  /// Their first element in row `row` of panels of `rows` rows.
  Expr placeOf(const Columns &c, int64_t rows, const Expr &row) const {
    return (c.panel * rows + row) * p.panels + c.column;
  }
  /// Stores the factors of block b of these columns from `at` on.
  Stmt storeFactors(const Columns &c, const Expr &b, const Buffer &toScales, const Buffer &toMinima, const Expr &at) {
    const Buffer &scalesOfB = group.inputs[unsigned(p.scales)];
    if (!hasMinima()) {
      const Expr from = placeOf(c, blocks, b);
      return eachColumn([&](const Expr &j) { return Body{store(toScales, at + j, load(scalesOfB, from + j))}; });
    }
    const Buffer &supers = group.inputs[unsigned(p.supers)];
    const Expr from = placeOf(c, blocks / 2, b / imm(2)),
               super = placeOf(c, blocks / 4, b / imm(superBlock / quantBlock) * 2);
    return eachColumn([&](const Expr &j) {
      return Body{bindTo("six", load(scalesOfB, from + j), [&](const Expr &word) {
        const Expr d = load(supers, super + j), dmin = load(supers, super + p.panels + j);
        return Body{store(toScales, at + j, d * sixBits(word, b, 0, group.compute)),
                    store(toMinima, at + j, -(dmin * sixBits(word, b, 8, group.compute)))};
      })};
    });
  }

  // ---- step 1 ----

  Stmt rounding() const {
    const int64_t all = p.m * blocks;
    const Buffer tops = shared("tops", DType::u32, roundingThreads),
                 parts = shared("parts", DType::i32, roundingThreads);
    const Var number = makeVar("block");
    Seq out;
    const Expr first = out.let("first", kir::ref(number) * blocksAtOnce);
    out.alloc(tops);
    out.alloc(parts);
    // `threads` for each block n of 32 elements.
    auto forBlocks = [&](int64_t threads, const std::function<void(Seq &, const Expr &t, const Expr &n)> &body) {
      out.add(threadLoop(blocksAtOnce * threads, [&](Seq &thread, const Expr &t) {
        const Expr n = thread.let("n", first + t / imm(threads));
        addIf(thread, all % blocksAtOnce ? lt(n, imm(all)) : nullptr, [&](Seq &own) { body(own, t, n); });
      }));
    };
    auto element = [&](const Expr &t, const Expr &n, int64_t byte) {  // of word t % words
      const Expr at = n * quantBlock + byte * words + t % imm(words);
      return bitcast(DType::u32, cast(DType::f32, load(group.inputs[p.a], at)));
    };
    forBlocks(words, [&](Seq &own, const Expr &t, const Expr &n) {
      Expr top;
      for (int64_t byte = 0; byte < 4; ++byte) {
        const Expr magnitude = magnitudeOf(element(t, n, byte));
        top = top ? max(top, magnitude) : magnitude;
      }
      own.add(store(tops, t, top));
    });
    forBlocks(words, [&](Seq &own, const Expr &t, const Expr &n) {
      const Expr from = own.let("from", t / imm(words) * words);
      Expr largest;
      for (int64_t w = 0; w < words; ++w) {
        const Expr top = load(tops, from + w);
        largest = largest ? max(largest, top) : top;
      }
      const Expr top = own.let("top", largest), exponent = own.let("exponent", exponentOf(top)),
                 steps = own.let("j", stepsOf(top));
      const Expr word = own.let("word", wordOf([&](int64_t byte) { return element(t, n, byte); }, exponent, steps));
      const Expr w = own.let("w", t % imm(words));
      own.add(store(rounded, n * words + w, word));
      own.add(store(parts, t, sumOfBytes(word)));
      own.add(ifThen(eq(w, imm(0)), {store(scales, n, scaleOf(exponent, steps, group.compute))}));
    });
    forBlocks(1, [&](Seq &own, const Expr &t, const Expr &n) {
      Expr sum;
      for (int64_t w = 0; w < words; ++w) {
        const Expr part = load(parts, t * words + w);
        sum = sum ? sum + part : part;
      }
      own.add(store(offsets, n, sum * factorOfSum(format)));
    });
    return loop(LoopKind::grid, number, imm(ceilDiv(all, blocksAtOnce)), out.take());
  }

  // ---- steps 2 and 3 ----

  Stmt fewRows() {
    const int64_t slices = s.threads / (s.nc / width), stages = ceilDiv(blocks, slices), results = p.m * s.nc;
    dots = shared("dots", DType::i32, slices * results);
    scalesHere = shared("db", group.compute, slices * s.nc);
    minimaHere = shared("mb", group.compute, slices * s.nc);
    sums = shared("c", group.compute, results);
    const Var number = makeVar("block");
    Seq out;
    const Expr col0 = out.let("col0", kir::ref(number) * s.nc);
    out.alloc(dots);
    out.alloc(scalesHere);
    if (hasMinima())
      out.alloc(minimaHere);
    if (stages > 1)
      out.alloc(sums);
    out.add(serial("stage", imm(stages), [&](const Expr &stage) {
      Seq one;
      const Expr b0 = stages > 1 ? one.let("b0", stage * slices) : imm(0);
      const Expr count = stages == 1       ? imm(blocks)
                         : blocks % slices ? one.let("count", min(imm(slices), imm(blocks) - b0))
                                           : imm(slices);
      one.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        const Expr slice = thread.let("slice", t / imm(s.nc / width));
        addIf(thread, blocks % slices ? lt(slice, count) : nullptr,
              [&](Seq &own) { multiplySlice(own, slice, t % imm(s.nc / width) * width, b0 + slice, col0); });
      }));
      one.add(threadLoop(results, [&](Seq &thread, const Expr &t) {
        const Buffer acc = makeBuffer("acc", group.compute, Storage::reg, 1);
        thread.alloc(acc);
        startChain(thread, stage, stages, {store(acc, imm(0), fimm(0, group.compute))},
                   {store(acc, imm(0), load(sums, t))});
        addSlices(thread, acc, t, b0, count);
        const Expr total = thread.let("total", load(acc, imm(0)));
        const Body finish = storeResult(t, col0, total);
        thread.add(stages == 1 ? block(finish) : ifThen(eq(stage, imm(stages - 1)), finish, {store(sums, t, total)}));
      }));
      return one.take();
    }));
    return loop(LoopKind::grid, number, imm(ceilDiv(p.n, s.nc)), out.take());
  }

  /// The statements that start chains in the first of `stages`, and those that go on with them in others.
  static void startChain(Seq &thread, const Expr &stage, int64_t stages, Body first, Body others) {
    thread.add(stages == 1 ? block(std::move(first)) : ifThen(eq(stage, imm(0)), std::move(first), std::move(others)));
  }

  /// The group's outputs at result t of a block, if there is such a column.
  Body storeResult(const Expr &t, const Expr &col0, const Expr &total) {
    Seq out;
    const Expr row = out.let("row", t / imm(s.nc)), col = out.let("col", col0 + t % imm(s.nc));
    addIf(out, p.n % s.nc ? lt(col, imm(p.n)) : nullptr, [&](Seq &own) {
      own.add(
          epilogue.emitRows(imm(0), row, imm(1), col, imm(1), 1, 1, [&](const Expr &, const Expr &) { return total; }));
    });
    return out.take();
  }

  /// Block b of the `width` columns from column `from` of this block on, by all rows.
  void multiplySlice(Seq &own, const Expr &slice, const Expr &from, const Expr &block, const Expr &col0) {
    const Expr b = own.let("b", block), first = own.let("first", from);
    const Columns c = columnsFrom(own, col0 + first);
    const Expr at = own.let("at", placeOf(c, blocks * inMemory, b * inMemory));
    const Buffer weight = makeBuffer("w", DType::u32, Storage::reg, inMemory * width);
    own.alloc(weight);
    for (int64_t i = 0; i < inMemory; ++i)
      own.add(eachColumn([&](const Expr &j) {
        return Body{store(weight, slot(i * width), load(group.inputs[p.b], at + i * p.panels + j))};
      }));
    own.add(storeFactors(c, b, scalesHere, minimaHere, slice * s.nc + first));
    const Var r = makeVar("r");
    Seq row;
    const Expr n = row.let("n", kir::ref(r) * blocks + b);
    const Buffer q = makeBuffer("a", DType::u32, Storage::reg, words),
                 part = makeBuffer("part", DType::i32, Storage::reg, width);
    row.alloc(q);
    row.alloc(part);
    for (int64_t w = 0; w < words; w += quad)
      row.add(fourWords(q, w, rounded, n * words + w));
    const Expr start = hasMinima() ? imm(0, DType::i32) : row.let("start", load(offsets, n));
    row.add(eachColumn([&](const Expr &) { return Body{store(part, slot(0), start)}; }));
    for (int64_t i = 0; i < inMemory; ++i)
      for (int64_t half = 0; half < words / inMemory; ++half)
        row.add(eachColumn([&](const Expr &) {
          const Expr bytes = bytesOf(load(weight, slot(i * width)), half, format);
          return Body{store(part, slot(0), dot4(load(part, slot(0)), bytes, load(q, imm(i + half * inMemory))))};
        }));
    row.add(eachColumn([&](const Expr &j) {
      return Body{store(dots, (slice * p.m + kir::ref(r)) * s.nc + first + j, load(part, slot(0)))};
    }));
    own.add(loop(LoopKind::unroll, r, imm(p.m), row.take()));
  }

  /// Adds `count` blocks from b0 on to the chain of result t.
  void addSlices(Seq &thread, const Buffer &acc, const Expr &t, const Expr &b0, const Expr &count) {
    const Expr row = thread.let("row", t / imm(s.nc)), col = thread.let("col", t % imm(s.nc));
    thread.add(serial("slice", count, [&](const Expr &slice) {
      Seq one;
      const Expr n = one.let("n", row * blocks + b0 + slice), at = one.let("at", slice * s.nc + col);
      const Factors f{load(scalesHere, at), hasMinima() ? load(minimaHere, at) : nullptr};
      const Expr sum = cast(group.compute, load(dots, slice * (p.m * s.nc) + t)),
                 own = hasMinima() ? cast(group.compute, load(offsets, n)) : nullptr;
      one.add(store(acc, imm(0), addBlock(sum, own, load(scales, n), f, load(acc, imm(0)))));
      return one.take();
    }));
  }

  // ---- steps 4 and 5 ----

  /// Stages in shared memory, numbers of 8 bits for all formats.
  struct Stage {
    Buffer a, b;             // words: rows of A, rowOfA apart; words of K by columns
    Buffer scales, offsets;  // of A: blocks by rows
  };

  Stmt manyRows() {
    const int64_t perStage = s.kc / quantBlock, rowTiles = ceilDiv(p.m, s.mc), across = s.nc / width;
    stage = {shared("a", DType::u32, s.mc * rowOfA(s)), shared("b", DType::u32, s.kc / 4 * s.nc),
             shared("da", group.compute, perStage * s.mc), shared("sa", DType::i32, perStage * s.mc)};
    scalesHere = shared("db", group.compute, perStage * s.nc);
    minimaHere = shared("mb", group.compute, perStage * s.nc);
    sums = shared("c", group.compute, s.mc * s.nc);
    const Var number = makeVar("block");
    Seq out;
    // Neighbours share columns of the weight, which are the larger part of what is read.
    const Expr row0 = rowTiles > 1 ? out.let("row0", kir::ref(number) % imm(rowTiles) * s.mc) : imm(0);
    const Expr col0 = out.let("col0", kir::ref(number) / imm(rowTiles) * s.nc);
    for (const Buffer &b : {stage.a, stage.b, stage.scales, stage.offsets, scalesHere, sums})
      out.alloc(b);
    if (hasMinima())
      out.alloc(minimaHere);
    out.add(serial("stage", imm(blocks / perStage), [&](const Expr &turn) {
      Seq one;
      const Expr b0 = one.let("b0", turn * perStage);
      one.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        copyRows(thread, t, row0, b0);
        copyWeight(thread, t, col0, b0);
      }));
      one.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
        multiplyTile(thread, turn, thread.let("row", t / imm(across) * tileRows),
                     thread.let("col", t % imm(across) * width));
      }));
      return one.take();
    }));
    out.add(threadLoop(s.threads, [&](Seq &thread, const Expr &t) {
      const Expr row = thread.let("row", t / imm(across) * tileRows), col = thread.let("col", t % imm(across) * width);
      const Expr rows = p.m % s.mc ? min(imm(tileRows), max(imm(p.m) - (row0 + row), imm(0))) : imm(tileRows);
      const Expr cols = p.n % width ? min(imm(width), imm(p.n) - (col0 + col)) : imm(width);
      addIf(thread, p.n % s.nc ? lt(col0 + col, imm(p.n)) : nullptr, [&](Seq &own) {
        own.add(
            epilogue.emitRows(imm(0), row0 + row, rows, col0 + col, cols, int(width), int(tileRows),
                              [&](const Expr &i, const Expr &j) { return load(sums, (row + i) * s.nc + (col + j)); }));
      });
    }));
    return loop(LoopKind::grid, number, imm(rowTiles * ceilDiv(p.n, s.nc)), out.take());
  }

  /// Step 4 of A: blocks from b0 on of the rows from row0 on.
  void copyRows(Seq &thread, const Expr &t, const Expr &row0, const Expr &b0) {
    const int64_t perStage = s.kc / quantBlock, quads = s.kc / 4 / quad;
    auto first = [&](const Expr &row) {  // block of a row of the tile
      const Expr known = p.m % s.mc ? min(row0 + row, imm(p.m - 1)) : row0 + row;
      return known * blocks + b0;
    };
    eachItem(thread, t, s.mc * quads, [&](Seq &own, const Expr &item) {
      const Expr row = own.let("row", item / imm(quads)), w = own.let("w", item % imm(quads) * quad);
      const Expr from = own.let("from", first(row) * words + w), to = own.let("to", row * rowOfA(s) + w);
      own.add(vectorLoop("j", imm(quad), int(quad),
                         [&](const Expr &j) { return Body{store(stage.a, to + j, load(rounded, from + j))}; }));
    });
    eachItem(thread, t, s.mc * perStage, [&](Seq &own, const Expr &item) {
      const Expr row = own.let("row", item / imm(perStage)), b = own.let("b", item % imm(perStage));
      const Expr n = own.let("n", first(row) + b), to = own.let("to", b * s.mc + row);
      own.add(store(stage.scales, to, load(scales, n)));
      own.add(store(stage.offsets, to, load(offsets, n)));
    });
  }

  /// Step 4 of the weight: blocks from b0 on of the columns from col0 on.
  void copyWeight(Seq &thread, const Expr &t, const Expr &col0, const Expr &b0) {
    const int64_t perStage = s.kc / quantBlock, across = s.nc / width;
    eachItem(thread, t, perStage * inMemory * across, [&](Seq &own, const Expr &item) {
      const Expr row = own.let("row", item / imm(across)), col = own.let("col", item % imm(across) * width);
      const Columns c = columnsFrom(own, col0 + col);
      const Expr from = own.let("from", placeOf(c, blocks * inMemory, b0 * inMemory + row));
      const Expr to = own.let("to", (row / imm(inMemory) * words + row % imm(inMemory)) * s.nc + col);
      own.add(eachColumn([&](const Expr &j) {
        return Body{bindTo("word", load(group.inputs[p.b], from + j), [&](const Expr &word) {
          Body halves;
          for (int64_t half = 0; half < words / inMemory; ++half)
            halves.push_back(store(stage.b, to + half * inMemory * s.nc + j, bytesOf(word, half, format)));
          return halves;
        })};
      }));
    });
    eachItem(thread, t, perStage * across, [&](Seq &own, const Expr &item) {
      const Expr b = own.let("b", item / imm(across)), col = own.let("col", item % imm(across) * width);
      const Columns c = columnsFrom(own, col0 + col);
      own.add(storeFactors(c, own.let("at", b0 + b), scalesHere, minimaHere, b * s.nc + col));
    });
  }

  /// Step 5: blocks of stage `turn` of tileRows x width results, from (row, col) of the tile on.
  void multiplyTile(Seq &thread, const Expr &turn, const Expr &row, const Expr &col) {
    const Buffer acc = makeBuffer("acc", group.compute, Storage::reg, tileRows * width),
                 part = makeBuffer("part", DType::i32, Storage::reg, tileRows * width),
                 q = makeBuffer("q", DType::u32, Storage::reg, tileRows * words);
    for (const Buffer &b : {acc, part, q})
      thread.alloc(b);
    auto eachRow = [&](const std::function<Stmt(int64_t i, const Expr &j)> &make) {
      return eachColumn([&](const Expr &j) {
        Body body;
        for (int64_t i = 0; i < tileRows; ++i)
          body.push_back(make(i, j));
        return body;
      });
    };
    auto resultAt = [&](int64_t i, const Expr &j) { return (row + i) * s.nc + (col + j); };
    startChain(
        thread, turn, p.k / s.kc,
        {eachRow([&](int64_t i, const Expr &) { return store(acc, slot(i * width), fimm(0, group.compute)); })},
        {eachRow([&](int64_t i, const Expr &j) { return store(acc, slot(i * width), load(sums, resultAt(i, j))); })});
    thread.add(serial("b", imm(s.kc / quantBlock), [&](const Expr &b) {
      Seq one;
      std::vector<Expr> ofA, start;
      for (int64_t i = 0; i < tileRows; ++i) {
        for (int64_t w = 0; w < words; w += quad)
          one.add(fourWords(q, i * words + w, stage.a, (row + i) * rowOfA(s) + b * words + w));
        const Expr at = b * s.mc + (row + i);
        ofA.push_back(one.let("da", load(stage.scales, at)));
        start.push_back(one.let("sa", load(stage.offsets, at)));
      }
      one.add(eachRow([&](int64_t i, const Expr &) {
        return store(part, slot(i * width), hasMinima() ? imm(0, DType::i32) : start[size_t(i)]);
      }));
      for (int64_t w = 0; w < words; ++w)
        one.add(eachColumn([&](const Expr &j) {
          return Body{bindTo("w", load(stage.b, (b * words + w) * s.nc + (col + j)), [&](const Expr &weight) {
            Body body;
            for (int64_t i = 0; i < tileRows; ++i)
              body.push_back(
                  store(part, slot(i * width), dot4(load(part, slot(i * width)), weight, load(q, imm(i * words + w)))));
            return body;
          })};
        }));
      one.add(eachColumn([&](const Expr &j) { return addTile(acc, part, ofA, start, b * s.nc + (col + j)); }));
      return one.take();
    }));
    thread.add(
        eachRow([&](int64_t i, const Expr &j) { return store(sums, resultAt(i, j), load(acc, slot(i * width))); }));
  }

  /// Adds the sums of a block, whose factors are at `at`, to the chains of a thread.
  Body addTile(const Buffer &acc, const Buffer &part, const std::vector<Expr> &ofA, const std::vector<Expr> &own,
               const Expr &at) const {
    return {bindTo("db", load(scalesHere, at), [&](const Expr &scale) {
      auto adds = [&](const Expr &minimum) {
        Body body;
        for (int64_t i = 0; i < tileRows; ++i)
          body.push_back(store(acc, slot(i * width),
                               addBlock(cast(group.compute, load(part, slot(i * width))),
                                        minimum ? cast(group.compute, own[size_t(i)]) : nullptr, ofA[size_t(i)],
                                        {scale, minimum}, load(acc, slot(i * width)))));
        return body;
      };
      return hasMinima() ? Body{bindTo("mb", load(minimaHere, at), adds)} : adds(nullptr);
    })};
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  const QuantFormat format;
  const int64_t blocks;             // of a row
  const int64_t inMemory;           // words of a block of the weight
  const int64_t width, end;         // columns of a thread, and of all panels
  Buffer rounded, scales, offsets;  // of A, as the first launch leaves them; offsets: what a block's sum starts with,
                                    // of Q4_K the sum of the row's integers
  Buffer dots;                      // few rows: sums of blocks, by slice, row and column
  Buffer scalesHere, minimaHere;    // Factors, by block and column
  Buffer sums;                      // the chains' ends, by row and column
  Stage stage;
};

/// The sizes that follow from a tile of mc x nc.
Schedule tileOf(const Problem &p, int64_t mc, int64_t nc) {
  const int64_t width = widthOf(p);
  while (mc > tileRows && mc / tileRows * (nc / width) > mostTileThreads)
    mc /= 2;
  Schedule s;
  s.mr = int(tileRows), s.nr = int(width);
  s.mc = mc, s.nc = nc;
  s.kc = std::gcd(stageBlocks, p.k / quantBlock) * quantBlock;
  s.threads = int(mc / tileRows * (nc / width));
  return s;
}

Schedule fewOf(int threads, int64_t nc) {
  Schedule s;
  s.threads = threads;
  s.nc = nc;
  return s;
}

}  // namespace

Schedule cudaQuantizedSchedule(const Problem &p, const Target &target) {
  auto tilesOf = [&](int64_t mc, int64_t nc) { return ceilDiv(p.m, mc) * ceilDiv(p.n, nc); };
  if (!isFew(p)) {
    const auto mc = std::clamp<int64_t>(int64_t(std::bit_ceil(uint64_t(p.m))), 16, 64);
    return tileOf(p, mc, tilesOf(mc, 64) < target.processors ? 32 : 64);
  }
  // Two blocks for each multiprocessor keep memory busy. Each reads all rows from the second-level cache, which takes a
  // quarter of the time of its columns of 8 bits if these are four times as many.
  int64_t nc = 32;
  while (nc > 8 && nc >= 4 * p.m && tilesOf(p.m, nc) < 2 * int64_t(target.processors))
    nc /= 2;
  return fewOf(256, nc);
}

std::vector<Schedule> cudaQuantizedSpace(const Problem &p, const Schedule &base, const Target &target) {
  std::vector<Schedule> space;
  if (isFew(p))
    for (int threads : {128, 256, 512})
      for (int64_t nc : {8, 16, 32, 64})
        space.push_back(fewOf(threads, nc));
  else
    for (int64_t mc : {16, 32, 64})
      for (int64_t nc : {32, 64, 128})
        space.push_back(tileOf(p, mc, nc));
  for (Schedule &s : space)
    s.recipe = base.recipe;
  std::erase_if(space, [&](const Schedule &s) {
    return sharedBytes(p, s) > target.sharedBytes || (isFew(p) && p.m * s.nc > s.threads);
  });
  return space;
}

LoweredGroup buildCudaQuantized(const Op &fused, const Problem &p, const Schedule &s, DType compute) {
  const int64_t width = widthOf(p), across = s.nc / width;
  GPTC_CHECK(p.lda == p.k && s.threads > 0 && s.nc > 0 && s.nc % width == 0 &&
                 (isFew(p) ? s.threads % across == 0 && p.m * s.nc <= s.threads
                           : s.mr == tileRows && s.nr == width && s.mc > 0 && s.mc % tileRows == 0 && s.kc > 0 &&
                                 p.k % s.kc == 0 && s.kc % quantBlock == 0 &&
                                 s.mc / tileRows * across == int64_t(s.threads)),
             "{}", s.str());
  GroupEval group(fused, compute);
  return CudaQuantized(group, p, s).build();
}

}  // namespace gptc::matmul

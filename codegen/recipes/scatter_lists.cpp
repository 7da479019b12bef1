// The scatter recipe on CUDA: every row of the table adds its own tokens.
//
// A stable counting sort by id makes one list of positions for each row, in the order of the tokens. The tokens are cut
// into chunks of one block each; the counts of all chunks are a matrix [chunks, rows].
//
//   1. The matrix is zeroed.
//   2. Each token counts those of its id before it in its chunk. The last one of an id writes the chunk's count.
//   3. For each row, counts become sums over the chunks before; segments of rows sum up their tokens, too.
//   4. Sums over the segments before.
//   5. Each token so knows its place, and writes its position there.
//   6. A block takes a row. A thread adds up to `vec` columns, from `init` or +0, in the order of the list. Up to
//      sixteen rows of dy are loaded at a time, before the first of them is added; positions of the next ones
//      meanwhile.
//
// The sums are those of one thread that walks all tokens, in the same order.
#include "codegen/recipes/scatter_lists.h"

#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"

#include <algorithm>
#include <numeric>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t chunkThreads = 512;  // of the block of a chunk
constexpr int64_t mostChunks = 256;    // counts of a row, where a chunk may be as large
constexpr int64_t segmentRows = 128;   // whose counts one thread adds up
constexpr int64_t rowsAhead = 16;      // rows of dy that a thread loads before it adds the first
constexpr int64_t mostAhead = 64;      // elements of them, at most
constexpr int64_t few = 4;             // rows of dy, behind the last whole batch
constexpr int mostColumns = 8;         // of a thread
constexpr int countsAtOnce = 4;        // that a thread zeroes

Expr wide(const Expr &e) { return cast(DType::i64, e); }
Expr narrow(const Expr &e) { return cast(DType::i32, e); }

class Lists {
public:
  Lists(GroupEval &g, const Op &op, llvm::ArrayRef<unsigned> tables, const Schedule &s, LoweredGroup &out)
      : g(g), op(op), tables(tables), out(out), dy(op.operand(0)), ids(op.operand(1)), table(op.result(0)->type),
        tokens(ids->type.elements()), rows(table.dim(0)), columns(table.dim(-1)),
        width(int(std::gcd(table.dim(-1), int64_t(powerOfTwo(s.vec, mostColumns))))),
        ahead(std::min(rowsAhead, mostAhead / width)) {
    each = s.task;
    chunks = ceilDiv(tokens, each);
    segments = ceilDiv(rows, segmentRows);
  }

  std::vector<Buffer> makeWorkspaces() {
    auto make = [&](const char *name, int64_t size, double growth = -1) {
      out.workspaceBytes.push_back(size * int64_t(sizeOf(DType::i32)));
      out.workspaceGrowth.push_back(growth);
      return makeBuffer(name, DType::i32, Storage::global, size, true);
    };
    counts = make("counts", chunks * rows);
    ranks = make("ranks", tokens);
    firsts = make("firsts", rows, double(tokens) / double(rows));  // as if all were one segment
    starts = make("starts", segments, 0);
    positions = make("positions", tokens);
    return {counts, ranks, firsts, starts, positions};
  }

  void build() {
    zeroCounts();
    rankTokens();
    sumChunks();
    sumSegments();
    placeTokens();
    addRows();
  }

private:
  GroupEval &g;
  const Op &op;
  const llvm::ArrayRef<unsigned> tables;
  LoweredGroup &out;
  const Value *dy, *ids;
  const Type &table;
  const int64_t tokens, rows, columns;
  const int width;                 // columns of a thread: `vec`, or what divides their number
  const int64_t ahead;             // rows of dy that are loaded before the first is added
  int64_t each, chunks, segments;  // tokens of a chunk; their number, that of segments
  Buffer counts, ranks, firsts, starts, positions;

  void add(Stmt s) { out.kernel.body.push_back(std::move(s)); }

  /// The row of a token, clamped to the table.
  Expr rowOf(Placer &placer, const Expr &token) {
    Point at;
    at.add(token, ids->type.dims);
    g.setDomain(at);
    return min(max(wide(placer.place(g.at(ids, at))), imm(0)), imm(rows - 1));
  }

  /// The number of tokens of rows before `row`.
  Expr firstOf(const Expr &row) { return wide(load(firsts, row)) + wide(load(starts, row / imm(segmentRows))); }

  void zeroCounts() {
    const Var t = makeVar("t"), c = makeVar("c");
    const int64_t all = chunks * rows;
    const Stmt four = loop(LoopKind::vector, c, min(imm(countsAtOnce), imm(all) - kir::ref(t) * countsAtOnce),
                           {store(counts, kir::ref(t) * countsAtOnce + kir::ref(c), imm(0, DType::i32))}, countsAtOnce);
    add(threadsLoop(t, ceilDiv(all, countsAtOnce), 256, {four}));
  }

  void rankTokens() {
    const Var chunk = makeVar("chunk"), load_ = makeVar("t"), t = makeVar("t"), k = makeVar("k"), j = makeVar("j");
    const Buffer chunkIds = makeBuffer("ids", DType::i32, Storage::shared, each);
    Seq one, fetch, fetched, rank, ranked;
    Placer placer;
    placer.push(one, {chunk});
    one.alloc(chunkIds);
    const int64_t turns = each / chunkThreads;
    {
      const Expr at = kir::ref(k) * chunkThreads + kir::ref(load_);
      const Expr token = kir::ref(chunk) * each + at;
      placer.push(fetch, {load_});
      placer.push(fetched, {k});
      // Behind the last token stands an id that no token has.
      const Expr row = rowOf(placer, min(token, imm(tokens - 1)));
      fetched.add(store(chunkIds, at, select(lt(token, imm(tokens)), narrow(row), imm(-1, DType::i32))));
      placer.pop();
      fetch.add(loop(LoopKind::serial, k, imm(turns), fetched.take()));
      placer.pop();
      one.add(loop(LoopKind::block_thread, load_, imm(chunkThreads), fetch.take()));
    }
    const Buffer before = makeBuffer("before", DType::i32, Storage::reg, 1),
                 behind = makeBuffer("behind", DType::i32, Storage::reg, 1);
    rank.alloc(before);
    rank.alloc(behind);
    const Expr at = ranked.let("at", kir::ref(k) * chunkThreads + kir::ref(t));
    const Expr token = ranked.let("token", kir::ref(chunk) * each + at);
    const Expr mine = ranked.let("mine", load(chunkIds, at));
    const Expr zero = imm(0, DType::i32), one32 = imm(1, DType::i32);
    ranked.add(store(before, imm(0), zero));
    ranked.add(store(behind, imm(0), zero));
    const Expr same = select(binary(BinaryOp::eq, load(chunkIds, kir::ref(j)), mine), one32, zero);
    const Expr earlier = select(lt(kir::ref(j), at), one32, zero), later = select(lt(at, kir::ref(j)), one32, zero);
    ranked.add(loop(LoopKind::serial, j, imm(each),
                    {store(before, imm(0), load(before, imm(0)) + same * earlier),
                     store(behind, imm(0), load(behind, imm(0)) + same * later)}));
    const Expr isLast = binary(BinaryOp::eq, load(behind, imm(0)), zero);
    ranked.add(
        ifThen(lt(token, imm(tokens)),
               {store(ranks, token, load(before, imm(0))),
                ifThen(isLast, {store(counts, kir::ref(chunk) * rows + wide(mine), load(before, imm(0)) + one32)})}));
    rank.add(loop(LoopKind::serial, k, imm(turns), ranked.take()));
    one.add(loop(LoopKind::block_thread, t, imm(chunkThreads), rank.take()));
    placer.pop();
    add(loop(LoopKind::grid, chunk, imm(chunks), one.take()));
  }

  /// Replaces `count` elements of a buffer, `stride` apart from `first` on, by the sums of those before each, and gives
  /// the sum of all to `rest`. Eight are loaded before the first is stored.
  void sumsBefore(Seq &seq, const Buffer &of, const Expr &first, int64_t stride, const Expr &count,
                  const std::function<std::vector<Stmt>(Expr)> &rest) {
    constexpr int64_t batch = 8;
    const Buffer sum = makeBuffer("sum", DType::i32, Storage::reg, 1),
                 next = makeBuffer("next", DType::i32, Storage::reg, batch);
    const Var b = makeVar("b"), u = makeVar("u"), v = makeVar("v");
    const Expr begin = kir::ref(b) * batch;
    auto at = [&](const Var &n) { return first + (begin + kir::ref(n)) * stride; };
    auto isThere = [&](const Var &n) { return lt(begin + kir::ref(n), count); };
    const Expr zero = imm(0, DType::i32);
    seq.alloc(sum);
    seq.alloc(next);
    seq.add(store(sum, imm(0), zero));
    const Expr last = first + (count + -1) * stride;
    const Stmt loads = loop(LoopKind::unroll, u, imm(batch),
                            {store(next, kir::ref(u), select(isThere(u), load(of, min(at(u), last)), zero))});
    const Stmt stores = loop(LoopKind::unroll, v, imm(batch),
                             {ifThen(isThere(v), {store(of, at(v), load(sum, imm(0)))}),
                              store(sum, imm(0), load(sum, imm(0)) + load(next, kir::ref(v)))});
    seq.add(loop(LoopKind::serial, b, (count + (batch - 1)) / imm(batch), {loads, stores}));
    seq.add(rest(load(sum, imm(0))));
  }

  void sumChunks() {
    const Var row = makeVar("row");
    Seq one;
    sumsBefore(one, counts, kir::ref(row), rows, imm(chunks),
               [&](const Expr &sum) { return std::vector<Stmt>{store(firsts, kir::ref(row), sum)}; });
    add(threadsLoop(row, rows, 256, one.take()));
    const Var segment = makeVar("segment");
    Seq few;
    const Expr first = few.let("first", kir::ref(segment) * segmentRows);
    sumsBefore(few, firsts, first, 1, min(imm(segmentRows), imm(rows) - first),
               [&](const Expr &sum) { return std::vector<Stmt>{store(starts, kir::ref(segment), sum)}; });
    add(threadsLoop(segment, segments, 32, few.take()));
  }

  void sumSegments() {
    Seq one;
    sumsBefore(one, starts, imm(0), 1, imm(segments), [](const Expr &) { return std::vector<Stmt>(); });
    add(threadsLoop(makeVar("t"), 1, 32, one.take()));
  }

  void placeTokens() {
    const Var token = makeVar("token");
    Seq one;
    Placer placer;
    placer.push(one, {token});
    const Expr row = placer.let("row", rowOf(placer, kir::ref(token)));
    const Expr inChunk =
        wide(load(counts, kir::ref(token) / imm(each) * imm(rows) + row)) + wide(load(ranks, kir::ref(token)));
    one.add(store(positions, placer.place(firstOf(row) + inChunk), narrow(kir::ref(token))));
    placer.pop();
    add(threadsLoop(token, tokens, 256, one.take()));
  }

  /// Loads the rows of dy at `batch` positions, then adds them to the sum. `isThere`: whether position u exists; null:
  /// all do. `meanwhile`, if not null, stands between the two.
  void addBatch(Placer &placer, Seq &seq, const Buffer &loaded, const Buffer &sum, int64_t batch, const Expr &column,
                const std::function<Expr(Expr u)> &position, const std::function<Expr(Expr u)> &isThere,
                const Stmt &meanwhile) {
    const Var u = makeVar("u"), c = makeVar("c"), v = makeVar("v");
    Seq fetch, four;
    placer.push(fetch, {u});
    const Expr token = placer.let("token", wide(position(kir::ref(u))));
    placer.push(four, {c});
    Point at;
    at.add(token, llvm::ArrayRef<Dim>(dy->type.dims).drop_back());
    at.add(column + kir::ref(c), llvm::ArrayRef<Dim>(dy->type.dims).take_back());
    g.setDomain(at);
    four.add(store(loaded, kir::ref(u) * width + lane(), placer.place(g.at(dy, at))));
    placer.pop();
    fetch.add(loop(LoopKind::vector, c, imm(width), four.take(), width));
    placer.pop();
    seq.add(loop(LoopKind::unroll, u, imm(batch), fetch.take()));
    if (meanwhile)
      seq.add(meanwhile);
    const Var l = makeVar("c");
    const Expr now = load(sum, lane()), then = now + load(loaded, kir::ref(v) * width + lane());
    const Expr there = isThere ? isThere(kir::ref(v)) : nullptr;
    seq.add(loop(
        LoopKind::unroll, v, imm(batch),
        {loop(LoopKind::vector, l, imm(width), {store(sum, lane(), there ? select(there, then, now) : then)}, width)}));
  }

  void addRows() {
    const int64_t pieces = ceilDiv(columns, width),
                  threads = std::min<int64_t>(roundUp(ceilDiv(pieces, ceilDiv(pieces, 256)), 32), 256),
                  slabs = ceilDiv(pieces, threads);
    const Var number = makeVar("number"), t = makeVar("t");
    Seq block, thread, body;
    Placer placer;
    placer.push(block, {number});
    const Expr row = placer.let("row", slabs == 1 ? kir::ref(number) : kir::ref(number) / imm(slabs));
    const Expr first = placer.let("first", firstOf(row));
    const Expr next = min(row + 1, imm(rows - 1));
    const Expr end = placer.let("end", select(lt(row + 1, imm(rows)), firstOf(next), imm(tokens)));
    const Expr count = placer.let("count", end - first);
    placer.push(thread, {t});
    Expr piece = kir::ref(t);
    if (slabs > 1)
      piece = kir::ref(number) % imm(slabs) * imm(threads) + piece;
    const Expr column = placer.let("column", piece * width);
    const bool whole = pieces == threads * slabs;
    Seq &in = whole ? thread : body;
    if (!whole)
      placer.push(body, {});
    addColumns(placer, in, row, first, count, column);
    if (!whole) {
      placer.pop();
      thread.add(ifThen(lt(column, imm(columns)), body.take()));
    }
    placer.pop();
    block.add(loop(LoopKind::block_thread, t, imm(threads), thread.take()));
    placer.pop();
    add(loop(LoopKind::grid, number, imm(rows * slabs), block.take()));
  }

  /// Adds the tokens of a row in a thread's columns.
  void addColumns(Placer &placer, Seq &seq, const Expr &row, const Expr &first, const Expr &count, const Expr &column) {
    const DType type = g.valueOf(table.dtype);
    const Buffer sum = makeBuffer("sum", type, Storage::reg, width),
                 loaded = makeBuffer("loaded", type, Storage::reg, ahead * width),
                 at = makeBuffer("at", DType::i32, Storage::reg, ahead);
    seq.alloc(sum), seq.alloc(loaded), seq.alloc(at);
    const Var c = makeVar("c"), d = makeVar("c"), b = makeVar("b"), r = makeVar("r"), u = makeVar("u");
    auto tablePoint = [&](const Expr &lane) {
      Point p;
      p.add(row, llvm::ArrayRef<Dim>(table.dims).take_front());
      p.add(column + lane, llvm::ArrayRef<Dim>(table.dims).take_back());
      return p;
    };
    Seq begin, end, batch, rest;
    placer.push(begin, {c});
    const Point from = tablePoint(kir::ref(c));
    g.setDomain(from);
    const Value *init = op.numOperands() > 2 ? op.operand(2) : nullptr;
    begin.add(store(sum, lane(), init ? placer.place(g.at(init, from)) : fimm(0, type)));
    placer.pop();
    seq.add(loop(LoopKind::vector, c, imm(width), begin.take(), width));

    // Whole batches. Places behind the list's end are clamped; nothing of them is added.
    const Expr last = imm(tokens - 1);
    auto place = [&](const Expr &n) { return load(positions, min(first + n, last)); };
    seq.add(ifThen(lt(imm(ahead - 1), count),
                   {loop(LoopKind::unroll, u, imm(ahead), {store(at, kir::ref(u), place(kir::ref(u)))})}));
    placer.push(batch, {b});
    const Var w = makeVar("w");
    addBatch(
        placer, batch, loaded, sum, ahead, column, [&](const Expr &n) { return load(at, n); }, nullptr,
        loop(LoopKind::unroll, w, imm(ahead),
             {store(at, kir::ref(w), place((kir::ref(b) + 1) * ahead + kir::ref(w)))}));
    placer.pop();
    const Expr batches = placer.let("batches", count / imm(ahead));
    seq.add(loop(LoopKind::serial, b, batches, batch.take()));

    placer.push(rest, {r});
    const Expr done = placer.let("done", batches * ahead + kir::ref(r) * few);
    addBatch(
        placer, rest, loaded, sum, few, column, [&](const Expr &n) { return place(min(done + n, count + -1)); },
        [&](const Expr &n) { return lt(done + n, count); }, nullptr);
    placer.pop();
    seq.add(loop(LoopKind::serial, r, (count % imm(ahead) + (few - 1)) / imm(few), rest.take()));

    placer.push(end, {d});
    const Point to = tablePoint(kir::ref(d));
    for (unsigned i : tables) {
      const Stmt st = g.storeOutput(i, to, load(sum, lane()));
      end.add(store(st->buffer, placer.place(st->index), placer.place(st->value)));
    }
    placer.pop();
    seq.add(loop(LoopKind::vector, d, imm(width), end.take(), width));
  }
};

}  // namespace

int64_t tokensOfChunk(int64_t tokens) {
  return std::min(roundUp(ceilDiv(tokens, mostChunks), chunkThreads), largestChunk);
}

void addByLists(GroupEval &g, const Op &scatter, llvm::ArrayRef<unsigned> tables, const Schedule &s,
                LoweredGroup &out) {
  Lists lists(g, scatter, tables, s, out);
  out.kernel.params = g.params(lists.makeWorkspaces());
  lists.build();
}

}  // namespace gptc

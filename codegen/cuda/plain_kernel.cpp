#include "codegen/cuda/plain_kernel.h"

#include "codegen/recipes/place.h"
#include "codegen/recipes/tile.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <set>

namespace gptc {

using namespace kir;

namespace {

constexpr int64_t side = 4;  // rows and columns of a thread's patch; a tile's rows and columns are multiples of it

/// Loop trees in place of one matmul statement: the threads of a block share out the patches of the tile.
class Product {
public:
  explicit Product(const StmtNode &s) : t(*s.matmul), c(s.buffer), type(c->dtype) {
    aBase = around.let("aBase", s.begin), bBase = around.let("bBase", s.extent);
    row0 = around.let("row0", s.index), col0 = around.let("col0", s.value);
    sums = makeBuffer("sums", type, Storage::reg, side * side);
    chain = makeBuffer("chain", type, Storage::reg, side * side);
  }

  Stmt loops() {
    const int64_t patches = t.rows / side * (t.cols / side), threads = std::min<int64_t>(t.threads, patches);
    Var v = makeVar("t");
    Stmt rounds = serial("round", imm(ceilDiv(patches, threads)), [&](const Expr &round) {
      Seq out;
      Expr at = out.let("patch", round * threads + kir::ref(v));
      Body work = patch(at);
      out.add(patches % threads ? Body{ifThen(lt(at, imm(patches)), work)} : work);
      return out.take();
    });
    around.add(loop(LoopKind::block_thread, v, imm(threads), {rounds}));
    return block(around.take());
  }

private:
  static int64_t slot(int64_t i, int64_t j) { return i * side + j; }
  static void each(const std::function<void(int64_t i, int64_t j)> &f) {
    for (int64_t i = 0; i < side; ++i)
      for (int64_t j = 0; j < side; ++j)
        f(i, j);
  }
  Stmt set(const Buffer &to, int64_t i, int64_t j, Expr value) const {
    return store(to, imm(slot(i, j)), std::move(value));
  }
  Expr get(const Buffer &from, int64_t i, int64_t j) const { return load(from, imm(slot(i, j))); }

  Body patch(const Expr &at) {
    Seq out;
    const int64_t across = t.cols / side;
    Expr i0 = out.let("i0", at / imm(across) * side), j0 = out.let("j0", at % imm(across) * side);
    // Rows and columns past the end of the matrices read the last one instead; nothing reads their sums.
    const bool rowsEnd = t.m % t.rows != 0, colsEnd = t.n % t.cols != 0;
    for (int64_t x = 0; x < side; ++x) {
      Expr row = row0 + (i0 + x), col = col0 + (j0 + x);
      row = rowsEnd ? min(row, imm(t.m - 1)) : row, col = colsEnd ? min(col, imm(t.n - 1)) : col;
      a[x] = out.let("a", aBase + (t.ta ? row : row * t.lda));
      b[x] = out.let("b", bBase + (t.tb ? col * t.ldb : col));
    }
    auto place = [&](int64_t i, int64_t j) { return (i0 + i) * t.ldc + (j0 + j); };
    out.alloc(sums);
    each([&](int64_t i, int64_t j) {
      if (!t.goesOn || rowsEnd || colsEnd)
        out.add(set(sums, i, j, fimm(0, type)));
      if (!t.goesOn)
        return;
      Stmt start = set(sums, i, j, load(c, place(i, j)));
      Expr isRow = lt(row0 + (i0 + i), imm(t.m)), isCol = lt(col0 + (j0 + j), imm(t.n));
      Expr isThere = rowsEnd && colsEnd ? binary(BinaryOp::and_, isRow, isCol) : rowsEnd ? isRow : isCol;
      out.add(rowsEnd || colsEnd ? ifThen(isThere, {start}) : start);
    });
    if (t.fold) {
      out.alloc(chain);
      out.add(serial("block", imm(ceilDiv(t.k, t.fold)), [&](const Expr &n) {
        Body body;
        each([&](int64_t i, int64_t j) { body.push_back(set(chain, i, j, fimm(0, type))); });
        Expr first = n * t.fold, count = imm(t.fold);
        if (t.k % t.fold)
          count = min(count, imm(t.k) - first);
        body.push_back(serial("step", count, [&](const Expr &x) { return step(chain, first + x); }));
        each([&](int64_t i, int64_t j) { body.push_back(set(sums, i, j, get(sums, i, j) + get(chain, i, j))); });
        return body;
      }));
    } else {
      out.add(serial("step", imm(t.k), [&](const Expr &x) { return step(sums, x); }));
    }
    each([&](int64_t i, int64_t j) { out.add(store(c, place(i, j), get(sums, i, j))); });
    return out.take();
  }

  /// Step k of all sums of the patch.
  Body step(const Buffer &acc, const Expr &k) {
    Seq out;
    Expr x[side], y[side];
    for (int64_t i = 0; i < side; ++i)
      x[i] = out.let("x", load(t.a, a[i] + (t.ta ? k * t.lda : k)));
    for (int64_t j = 0; j < side; ++j)
      y[j] = out.let("y", load(t.b, b[j] + (t.tb ? k : k * t.ldb)));
    each([&](int64_t i, int64_t j) { out.add(set(acc, i, j, kir::fma(x[i], y[j], get(acc, i, j)))); });
    return out.take();
  }

  const MatmulTile &t;
  const Buffer c;
  const DType type;
  Seq around;
  Expr aBase, bBase, row0, col0;
  Expr a[side], b[side];  // where the patch's rows and columns begin
  Buffer sums, chain;
};

class Rewriter {
public:
  bool changed = false;

  Body all(const Body &stmts) {
    Body out;
    for (const Stmt &s : stmts)
      llvm::append_range(out, one(s));
    return out;
  }

private:
  std::set<const BufferNode *> rooms;  // shared buffers of attention statements; nothing else uses them

  Body one(const Stmt &s) {
    if (s->kind == StmtKind::Matmul) {
      changed = true;
      return {Product(*s).loops()};
    }
    if (s->kind == StmtKind::Attention) {
      changed = true;
      rooms.insert(s->buffer.get());
      return all(s->body);
    }
    auto copy = std::make_shared<StmtNode>(*s);
    copy->body = all(s->body), copy->orelse = all(s->orelse);
    if (s->kind == StmtKind::Alloc && rooms.count(s->buffer.get()))
      return copy->body;
    return {copy};
  }
};

}  // namespace

std::optional<Kernel> withoutTemplates(const Kernel &k) {
  Rewriter rewriter;
  Kernel plain = k;
  plain.body = rewriter.all(k.body);
  return rewriter.changed ? std::optional(std::move(plain)) : std::nullopt;
}

}  // namespace gptc

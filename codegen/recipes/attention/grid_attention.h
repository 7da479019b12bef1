// Parts that attention's loop trees for GPUs share (cuda_kernel.cpp, cuda_cached.cpp).
#pragma once

#include "codegen/recipes/attention/attention.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace gptc::attention::grid {

using namespace kir;

constexpr int64_t sharedBudget = 48 << 10;  // bytes of shared memory of a block
constexpr int64_t fallbackSharedBudget = 227
                                         << 10;  // the same, of the loop trees for which a GPU has no attention kernel
constexpr int blockThreads = 256;                // of loop trees
constexpr int64_t rowsAhead = 8;                 // that a thread loads for a weighted sum before it waits

inline Stmt gridLoop(const char *name, int64_t count, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::grid, v, imm(count), body(ref(v)));
}
inline Stmt threadLoop(const char *name, int64_t count, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::block_thread, v, imm(count), body(ref(v)));
}

/// An element of a row: row(j, x).
using Rows = std::function<Expr(const Expr &j, const Expr &x)>;

/// Parts that the blocks of all forms share.
class GridAttention {
protected:
  GridAttention(GroupEval &group, const Op &op, const Shape &shape, const Schedule &s, const Buffer &rowsOf)
      : group(group), shape(shape), tiled(s.mr > 0), lanes(s.vec ? s.vec : lanesOf(shape)),
        threads(tiled ? blockThreads : s.threads), bias(group, op, shape), sight(group, op, shape),
        head0(firstHead(group, op)) {
    if (tiled && isNarrow(rowsOf->dtype))
      operand = rowsOf->dtype == DType::bf16 ? UnaryOp::round_bf16 : UnaryOp::round_f16;
    const int64_t whole = 16 / int64_t(sizeOf(rowsOf->dtype));
    pack = int(std::min<int64_t>(whole, int64_t(1) << std::countr_zero(uint64_t(shape.size))));
    groups = std::max<int64_t>(1, threads / (shape.size / pack));
  }

  static bool isNarrow(DType t) { return t == DType::bf16 || t == DType::f16; }
  /// Lanes of dot products: as many as allow loads of whole vectors, if rows begin at multiples of at least 4 elements.
  static int lanesOf(const Shape &shape) {
    const int64_t divisor = int64_t(1) << std::countr_zero(uint64_t(shape.size));
    return divisor >= 4 ? int(std::min<int64_t>(divisor, rowLanes)) : rowLanes;
  }

  DType dtype() const { return group.compute; }
  /// The weight that the second product takes. Bodies of statements round it to their operands' bf16 or f16.
  Expr weight(const Expr &e) const { return operand ? unary(*operand, e) : e; }
  Buffer input(const Op &op, unsigned i) const { return group.inputs[op.operand(i)->index]; }

  /// A buffer for `count` weights. It is shared if it fits shared memory beside the block's other shared buffers
  /// (`sums` weighted sums, `buffers` of these); else it is a workspace with `count` weights for each of `blocks`
  /// blocks.
  Buffer weights(const char *name, int64_t count, int sums, int64_t blocks, int buffers = 1) const {
    const bool fits = (2 * threads + sums * groups * shape.size + buffers * count) * int64_t(sizeOf(dtype())) <=
                      (tiled ? fallbackSharedBudget : sharedBudget);
    GPTC_CHECK(fits || !tiled, "{} tokens are too many for attention statements", shape.tokens);
    return fits ? makeBuffer(name, dtype(), Storage::shared, count)
                : makeBuffer(name, dtype(), Storage::global, blocks * count, true);
  }
  static Body within(const Buffer &weights, Body body) {
    return weights->storage == Storage::shared ? Body{alloc(weights, std::move(body))} : body;
  }

  /// a . b in `lanes` lanes: f(sum).
  Stmt dot(const char *name, const std::function<Expr(const Expr &x)> &a, const std::function<Expr(const Expr &x)> &b,
           const std::function<Body(const Expr &)> &f) const {
    Buffer acc = makeBuffer(name, dtype(), Storage::reg, lanes);
    Stmt clear = vectorLoop("x", imm(lanes), lanes,
                            [&](const Expr &) { return Body{kir::store(acc, lane(), fimm(0, dtype()))}; });
    Stmt sum = vectorLoop("x", imm(shape.size), lanes, [&](const Expr &x) {
      return Body{kir::store(acc, lane(), kir::fma(a(x), b(x), load(acc, lane())))};
    });
    return alloc(acc, {clear, sum, bindTo(name, hreduce(acc, BinaryOp::add), f)});
  }

  /// f(n) for n = first, first + step, ... below `count`; first < step. The loop form lets emitters bound the index.
  static Stmt every(const char *name, const Expr &first, int64_t step, const Expr &count,
                    const std::function<Body(const Expr &)> &f) {
    return serial("k", (count + (step - 1)) / imm(step), [&](const Expr &k) {
      return Body{bindTo(name, k * step + first, [&](const Expr &n) { return Body{ifThen(lt(n, count), f(n))}; })};
    });
  }
  /// The same, `ahead` numbers in each turn but the last ones, so that their loads do not wait for each other.
  static Body everyAhead(const char *name, const Expr &first, int64_t step, int64_t ahead, const Expr &count,
                         const std::function<Body(const Expr &)> &f) {
    const Expr turns = count / imm(step * ahead);
    Stmt whole = serial("k", turns, [&](const Expr &k) {
      Var u = makeVar("u");
      return Body{loop(LoopKind::unroll, u, imm(ahead),
                       {bindTo(name, (k * ahead + ref(u)) * step + first, [&](const Expr &n) { return f(n); })})};
    });
    Stmt rest = serial("k", imm(ahead), [&](const Expr &k) {
      return Body{bindTo(name, (turns * ahead + k) * step + first,
                         [&](const Expr &n) { return Body{ifThen(lt(n, count), f(n))}; })};
    });
    return {whole, rest};
  }
  /// f(the first key that query i of sequence b sees), bound to a name if it is not always 0.
  Body fromFirstKey(const Expr &b, const Expr &i, const std::function<Body(const Expr &)> &f) const {
    return sight.varies() ? Body{bindTo("first", sight.firstKey(b, i), f)} : f(imm(0));
  }

  /// f(j) for each row below `count` that thread t takes.
  Stmt eachRow(const Expr &t, const Expr &count, const std::function<Body(const Expr &j)> &f) const {
    return every("j", t, threads, count, f);
  }
  /// f(j) for each row below `count`, shared out to all threads.
  Stmt allRows(const Expr &count, const std::function<Body(const Expr &j)> &f) const {
    return threadLoop("t", threads, [&](const Expr &t) { return Body{eachRow(t, count, f)}; });
  }
  /// Folds a value of each row and emits body(result).
  Body foldRows(const char *name, BinaryOp op, double start, const Expr &count,
                const std::function<Body(const Expr &j, const Fold &fold)> &element,
                const std::function<Body(const Expr &)> &body) const {
    Buffer acc = makeBuffer("acc", dtype(), Storage::reg, 1), all = makeBuffer(name, dtype(), Storage::shared, threads);
    Stmt each = threadLoop("t", threads, [&](const Expr &t) {
      Stmt rows = eachRow(t, count, [&](const Expr &j) {
        return element(j, [&](Expr v) { return kir::store(acc, imm(0), binary(op, load(acc, imm(0)), std::move(v))); });
      });
      return Body{
          alloc(acc, {kir::store(acc, imm(0), fimm(start, dtype())), rows, kir::store(all, t, load(acc, imm(0)))})};
    });
    return {alloc(all, {each, bindTo(name, hreduce(all, op), body)})};
  }

  /// f(n) for n < count, shared out to all threads.
  Stmt shareOut(int64_t count, const std::function<Body(const Expr &)> &f) const {
    return threadLoop("t", std::min<int64_t>(count, threads), [&](const Expr &t) {
      return count <= threads ? f(t) : Body{every("slot", t, threads, imm(count), f)};
    });
  }

  Buffer partialSums(const char *name) const { return makeBuffer(name, dtype(), Storage::shared, groups * shape.size); }
  /// partial[group][x] = the sum of weights[at + j] * row(j, x) over the group's rows below `count`; with `goesOn` the
  /// chain starts from partial[group][x] instead of +0.
  Stmt sumRows(const Buffer &partial, bool goesOn, const Buffer &weights, const Expr &at, const Expr &count,
               const Rows &row) const {
    const int64_t pieces = shape.size / pack;
    return shareOut(groups * pieces, [&](const Expr &slot) {
      Expr first = slot / imm(pieces), x0 = slot % imm(pieces) * pack, to = first * shape.size + x0;
      Buffer acc = makeBuffer("acc", dtype(), Storage::reg, pack);
      auto eachLane = [&](const std::function<Stmt(const Expr &)> &f) {
        return vectorLoop("x", imm(pack), pack, [&](const Expr &x) { return Body{f(x)}; });
      };
      Stmt start = eachLane(
          [&](const Expr &x) { return kir::store(acc, lane(), goesOn ? load(partial, to + x) : fimm(0, dtype())); });
      Body all = everyAhead("j", first, groups, rowsAhead, count, [&](const Expr &j) {
        return Body{bindTo("w", load(weights, at + j), [&](const Expr &w) {
          return Body{eachLane(
              [&](const Expr &x) { return kir::store(acc, lane(), kir::fma(w, row(j, x0 + x), load(acc, lane()))); })};
        })};
      });
      all.insert(all.begin(), start);
      all.push_back(eachLane([&](const Expr &x) { return kir::store(partial, to + x, load(acc, lane())); }));
      return Body{alloc(acc, std::move(all))};
    });
  }
  /// Adds the groups' sums in order and emits f(x, sum) for each element.
  Stmt addGroups(const Buffer &partial, const std::function<Stmt(const Expr &x, const Expr &sum)> &f) const {
    return shareOut(shape.size, [&](const Expr &x) {
      Buffer acc = makeBuffer("all", dtype(), Storage::reg, 1);
      Stmt add = serial("g", imm(groups), [&](const Expr &g) {
        return Body{kir::store(acc, imm(0), load(acc, imm(0)) + load(partial, g * shape.size + x))};
      });
      return Body{alloc(acc, {kir::store(acc, imm(0), fimm(0, dtype())), add, f(x, load(acc, imm(0)))})};
    });
  }

  /// A query: its row begins at `query` in `queries`, its `position` among the keys is for ALiBi, and it sees the keys
  /// before `seen`. With a window keys count from the first that it sees. `keep` is the dropout mask (null: none).
  /// Scores are stored from `scoresAt` on.
  struct Row {
    Buffer queries;
    Expr query, seen, position;
    Rows key, value;
    std::function<Expr(const Expr &j)> keep;
    Buffer scores;
    Expr scoresAt;
  };
  /// Computes a row and emits finish(maximum, sum, partial sums of the output), which must divide outputs by `sum`.
  Body softmaxRow(const Row &r,
                  const std::function<Body(const Expr &most, const Expr &sum, const Buffer &partial)> &finish) const {
    auto score = [&](const Expr &j, const Fold &fold) {
      return Body{dot(
          "dot", [&](const Expr &x) { return load(r.queries, r.query + x); },
          [&](const Expr &x) { return r.key(j, x); },
          [&](const Expr &product) {
            Expr value = bias.of(product * fimm(shape.scale(), dtype()), j - r.position, imm(0));
            return Body{bindTo("score", value,
                               [&](const Expr &v) { return Body{kir::store(r.scores, r.scoresAt + j, v), fold(v)}; })};
          })};
    };
    Body all = foldRows("most", BinaryOp::max, -HUGE_VAL, r.seen, score, [&](const Expr &most) {
      auto exponential = [&](const Expr &j, const Fold &fold) {
        Expr e = unary(UnaryOp::exp, load(r.scores, r.scoresAt + j) - most);
        return Body{bindTo("e", e, [&](const Expr &e) {
          Expr kept = r.keep ? select(r.keep(j), e, fimm(0, dtype())) : e;
          return Body{kir::store(r.scores, r.scoresAt + j, weight(kept)), fold(e)};
        })};
      };
      return foldRows("sum", BinaryOp::add, 0, r.seen, exponential, [&](const Expr &sum) {
        Buffer partial = partialSums("partial");
        Body rest = finish(most, sum, partial);
        rest.insert(rest.begin(), sumRows(partial, false, r.scores, r.scoresAt, r.seen, r.value));
        return Body{alloc(partial, std::move(rest))};
      });
    });
    return within(r.scores, std::move(all));
  }

  /// A grid of attention statements, with one block for each tile, sequence and head, the longest first. row(b, head,
  /// i) is the loop tree of one row, from which the statements' bodies are made.
  Stmt statements(AttentionTile t, const Schedule &s, int64_t heads, Dropout &dropout,
                  const std::function<Body(const Expr &b, const Expr &head, const Expr &i)> &row) const {
    t.batch = shape.batch, t.tokens = shape.tokens, t.heads = shape.heads, t.keyHeads = shape.kvHeads;
    t.size = shape.size, t.causal = shape.causal, t.alibi = shape.alibi, t.p = dropout.active() ? shape.p : 0;
    t.scale = shape.factor, t.softcap = shape.softcap, t.window = shape.window;
    t.ofHeads = shape.ofHeads, t.head0 = head0;
    t.mma = s.mma, t.threads = s.threads, t.stages = s.stages;
    GPTC_CHECK(t.rows() > 0 && t.nr > 0 && t.stages > 0, "{}", s.str());
    const int64_t tiles = ceilDiv(shape.tokens, t.rows());
    const DType stored = t.operands[0]->dtype;
    Buffer room = makeBuffer("room", stored, Storage::shared, t.sharedBytes() / int64_t(sizeOf(stored)));
    return gridLoop("n", tiles * shape.batch * heads, [&](const Expr &n) {
      const int64_t each = shape.batch * heads;
      Expr tile = t.part == AttentionTile::Part::keyGrad ? n / imm(each) : imm(tiles - 1) - n / imm(each);
      return Body{bindTo("tile", tile, [&](const Expr &tile) {
        return Body{bindTo("b", n % imm(each) / imm(heads), [&](const Expr &b) {
          return Body{bindTo("h", n % imm(heads), [&](const Expr &h) {
            return Body{dropout.withKey(b, [&] {
              Stmt rows = serial("r", imm(t.rows()), [&](const Expr &r) {
                return Body{bindTo("i", tile * t.rows() + r, [&](const Expr &i) {
                  return Body{ifThen(lt(i, imm(shape.tokens)), row(b, h, i))};
                })};
              });
              return Body{alloc(room, {kir::attention(t, room, tile, b, h, dropout.packedKey(), {rows})})};
            })};
          })};
        })};
      })};
    });
  }

  GroupEval &group;
  const Shape shape;
  const bool tiled;  // uses attention statements
  const int lanes, threads;
  std::optional<UnaryOp> operand;
  Bias bias;
  const Sight sight;
  Buffer head0;
  int pack;        // elements of one memory access
  int64_t groups;  // groups of threads that share out rows for weighted sums
};

/// Where a block's weights begin.
inline Expr placeOf(const Buffer &weights, const Expr &block, int64_t count) {
  return weights->storage == Storage::shared ? imm(0) : block * count;
}

}  // namespace gptc::attention::grid

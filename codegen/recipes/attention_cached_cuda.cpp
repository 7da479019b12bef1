// attention_cached as grids, for GPUs.
//
//   1. A thread passes on one pack of a row of the caches, or takes it from the new rows.
//   2. A block takes one token of one head, as few tokens have to fill a GPU. Its threads take rows of keys in turn:
//      scores, each a dot product in `vec` lanes, then their maximum and the sum of the exponentials, a chain of each
//      thread's rows folded by halves. For the output they split into groups, each of which takes every so many-th row
//      of values, so that neighbours read neighbours and many loads are under way at once; the groups' sums are added
//      in order.
//
// Reading keys and values once from memory is all that counts: a row of 64 bf16 is a whole line of 128 bytes, which a
// thread reads in pieces of 16 bytes that the first-level cache keeps for it.
#include "codegen/recipes/attention.h"
#include "ir/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gptc::attention {

using namespace kir;

namespace {

constexpr int64_t sharedBudget = 48 << 10;

Stmt threadLoop(const char *name, int64_t count, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::block_thread, v, imm(count), body(ref(v)));
}

class Cached {
public:
  Cached(GroupEval &group, const Op &op, const Schedule &s)
      : group(group), shape(shapeOf(op, 0)), qkv{group.inputs[op.operand(0)->index], shape}, bias(shape, group.compute),
        lanes(s.vec), threads(s.threads) {
    rows = op.operand(1)->type.dim(1);
    for (int i = 0; i < 2; ++i) {
      from[i] = group.inputs[op.operand(1 + i)->index];
      to[i] = group.outputs[1 + i];
    }
    posIn = load(group.inputs[op.operand(3)->index], imm(0));
    const int64_t whole = 16 / int64_t(sizeOf(to[0]->dtype));
    pack = int(std::min<int64_t>(whole, int64_t(1) << std::countr_zero(uint64_t(shape.size))));
    groups = std::max<int64_t>(1, threads / (shape.size / pack));
    const DType t = group.compute;
    partial = makeBuffer("partial", t, Storage::shared, groups * shape.size);
    const bool fits = (2 * threads + groups * shape.size + rows) * int64_t(sizeOf(t)) <= sharedBudget;
    scores = fits ? makeBuffer("s", t, Storage::shared, rows)
                  : makeBuffer("s", t, Storage::global, shape.tokens * shape.heads * rows, true);
  }

  Body body() {
    return {store(), loopOver("n", shape.heads * shape.tokens, [&](const Expr &n) {
              return withPos([&](const Expr &pos) {
                return Body{bindTo("h", n / imm(shape.tokens), [&](const Expr &h) {
                  return Body{bindTo("i", n % imm(shape.tokens), [&](const Expr &i) {
                    return Body{bindTo("seen", pos + i + 1, [&](const Expr &seen) {
                      return Body{bias.withSlope(h, [&] { return token(n, h, i, pos, seen); })};
                    })};
                  })};
                })};
              });
            })};
  }
  std::vector<Buffer> workspaces() const {
    return scores->storage == Storage::global ? std::vector<Buffer>{scores} : std::vector<Buffer>{};
  }

private:
  static Stmt loopOver(const char *name, int64_t blocks, const std::function<Body(const Expr &)> &body) {
    Var v = makeVar(name);
    return loop(LoopKind::grid, v, imm(blocks), body(ref(v)));
  }
  /// The position, clamped so that all new rows exist.
  Body withPos(const std::function<Body(const Expr &)> &f) {
    return {bindTo("pos", max(imm(0), min(posIn, imm(rows - shape.tokens))), f)};
  }

  Stmt store() {
    const int64_t pieces = shape.size / pack;
    Var n = makeVar("n");
    Expr kv = ref(n) / imm(pieces * rows), j = ref(n) / imm(pieces) % imm(rows), x0 = ref(n) % imm(pieces) * pack;
    auto move = [&](const std::function<Expr(int side, const Expr &x)> &element) {
      Body out;
      for (int side = 0; side < 2; ++side)
        out.push_back(vectorLoop("x", imm(pack), pack, [&](const Expr &x) {
          return Body{kir::store(to[side], (kv * rows + j) * shape.size + x0 + x, element(side, x0 + x))};
        }));
      return out;
    };
    Body body = withPos([&](const Expr &pos) {
      Expr row = j - pos;  // among the new ones
      Expr isNew =
          binary(BinaryOp::and_, binary(BinaryOp::ge, row, imm(0)), binary(BinaryOp::lt, row, imm(shape.tokens)));
      return Body{
          ifThen(isNew, move([&](int side, const Expr &x) {
                   Expr at = side ? qkv.value(imm(0), row, kv) : qkv.key(imm(0), row, kv);
                   return load(qkv.buffer, at + x);
                 }),
                 move([&](int side, const Expr &x) { return load(from[side], (kv * rows + j) * shape.size + x); }))};
    });
    return threadsLoop(n, shape.kvHeads * rows * pieces, threads, std::move(body));
  }

  /// f(j) for each row that thread t takes.
  Stmt eachRow(const Expr &t, const Expr &seen, const std::function<Body(const Expr &j)> &f) {
    Expr count = (seen + (threads - 1) - t) / imm(threads);
    return serial("k", count, [&](const Expr &k) { return Body{bindTo("j", k * int64_t(threads) + t, f)}; });
  }
  /// Folds over all rows, of which each thread has its own: body(result).
  Body foldRows(const char *name, BinaryOp op, double start, const Expr &seen,
                const std::function<Body(const Expr &j, const Fold &fold)> &element,
                const std::function<Body(const Expr &)> &body) {
    const DType type = group.compute;
    Buffer acc = makeBuffer("acc", type, Storage::reg, 1), all = makeBuffer(name, type, Storage::shared, threads);
    Stmt each = threadLoop("t", threads, [&](const Expr &t) {
      Stmt rows = eachRow(t, seen, [&](const Expr &j) {
        return element(j, [&](Expr v) { return kir::store(acc, imm(0), binary(op, load(acc, imm(0)), std::move(v))); });
      });
      return Body{
          alloc(acc, {kir::store(acc, imm(0), fimm(start, type)), rows, kir::store(all, t, load(acc, imm(0)))})};
    });
    return {alloc(all, {each, bindTo(name, hreduce(all, op), body)})};
  }

  Body token(const Expr &n, const Expr &h, const Expr &i, const Expr &pos, const Expr &seen) {
    const DType type = group.compute;
    Expr cache = h / imm(shape.group()) * (rows * shape.size);
    Expr scoresAt = scores->storage == Storage::shared ? imm(0) : n * rows;
    auto score = [&](const Expr &j, const Fold &fold) {
      Buffer acc = makeBuffer("dot", type, Storage::reg, lanes);
      Stmt clear = vectorLoop("x", imm(lanes), lanes,
                              [&](const Expr &) { return Body{kir::store(acc, lane(), fimm(0, type))}; });
      Stmt sum = vectorLoop("x", imm(shape.size), lanes, [&](const Expr &x) {
        Expr q = load(qkv.buffer, qkv.query(imm(0), i, h) + x), k = load(to[0], cache + j * shape.size + x);
        return Body{kir::store(acc, lane(), kir::fma(q, k, load(acc, lane())))};
      });
      Expr value = bias.add(hreduce(acc, BinaryOp::add) * fimm(shape.scale(), type), j - (pos + i), imm(0));
      return Body{alloc(acc, {clear, sum, bindTo("score", value, [&](const Expr &v) {
                                return Body{kir::store(scores, scoresAt + j, v), fold(v)};
                              })})};
    };
    Body all = foldRows("most", BinaryOp::max, -HUGE_VAL, seen, score, [&](const Expr &most) {
      auto exponential = [&](const Expr &j, const Fold &fold) {
        Expr e = unary(UnaryOp::exp, load(scores, scoresAt + j) - most);
        return Body{bindTo("e", e, [&](const Expr &e) { return Body{kir::store(scores, scoresAt + j, e), fold(e)}; })};
      };
      return foldRows("sum", BinaryOp::add, 0, seen, exponential,
                      [&](const Expr &sum) { return output(h, i, seen, cache, scoresAt, sum); });
    });
    return scores->storage == Storage::shared ? Body{alloc(scores, std::move(all))} : all;
  }

  Body output(const Expr &h, const Expr &i, const Expr &seen, const Expr &cache, const Expr &scoresAt,
              const Expr &sum) {
    const DType type = group.compute;
    const int64_t pieces = shape.size / pack;
    auto ofGroup = [&](const Expr &slot) {
      Expr first = slot / imm(pieces), x0 = slot % imm(pieces) * pack;
      Buffer acc = makeBuffer("o", type, Storage::reg, pack);
      auto lanesOf = [&](const std::function<Stmt(const Expr &)> &f) {
        return vectorLoop("x", imm(pack), pack, [&](const Expr &x) { return Body{f(x)}; });
      };
      Stmt clear = lanesOf([&](const Expr &) { return kir::store(acc, lane(), fimm(0, type)); });
      Stmt add = serial("k", (seen + (groups - 1) - first) / imm(groups), [&](const Expr &k) {
        return Body{bindTo("j", k * groups + first, [&](const Expr &j) {
          return Body{bindTo("p", load(scores, scoresAt + j), [&](const Expr &p) {
            return Body{lanesOf([&](const Expr &x) {
              Expr v = load(to[1], cache + j * shape.size + x0 + x);
              return kir::store(acc, lane(), kir::fma(p, v, load(acc, lane())));
            })};
          })};
        })};
      });
      Stmt keep =
          lanesOf([&](const Expr &x) { return kir::store(partial, first * shape.size + x0 + x, load(acc, lane())); });
      return Body{alloc(acc, {clear, add, keep})};
    };
    /// f(n) for n < count, by all threads in turn.
    auto shareOut = [&](int64_t count, const std::function<Body(const Expr &)> &f) {
      return threadLoop("t", std::min<int64_t>(count, threads), [&](const Expr &t) {
        if (count <= threads)
          return f(t);
        return Body{serial("r", (imm(count + threads - 1) - t) / imm(threads),
                           [&](const Expr &r) { return Body{bindTo("slot", r * int64_t(threads) + t, f)}; })};
      });
    };
    auto element = [&](const Expr &x) {
      Buffer acc = makeBuffer("all", type, Storage::reg, 1);
      Stmt add = serial("g", imm(groups), [&](const Expr &g) {
        return Body{kir::store(acc, imm(0), load(acc, imm(0)) + load(partial, g * shape.size + x))};
      });
      Stmt keep = kir::store(group.outputs[0], (i * shape.heads + h) * shape.size + x, load(acc, imm(0)) / sum);
      return Body{alloc(acc, {kir::store(acc, imm(0), fimm(0, type)), add, keep})};
    };
    return {alloc(partial, {shareOut(groups * pieces, ofGroup), shareOut(shape.size, element)})};
  }

  GroupEval &group;
  const Shape shape;
  Packed qkv;
  Bias bias;
  const int lanes, threads;
  int pack;        // elements that one access moves
  int64_t groups;  // of threads that share rows of values
  int64_t rows;    // of the cache
  Buffer from[2], to[2], scores, partial;
  Expr posIn;
};

}  // namespace

Schedule cachedOnCuda(const Op &op) {
  const int64_t size = shapeOf(op, 0).size, divisor = int64_t(1) << std::countr_zero(uint64_t(size));
  Schedule s;
  s.vec = divisor >= 4 ? int(std::min<int64_t>(divisor, rowLanes)) : rowLanes;
  s.threads = 256;
  return s;
}

std::vector<Buffer> cachedOnCuda(GroupEval &group, const Op &op, const Schedule &s, Body &body) {
  Cached cached(group, op, s);
  body = cached.body();
  return cached.workspaces();
}

}  // namespace gptc::attention

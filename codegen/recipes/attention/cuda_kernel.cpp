// Attention as grid loops. The loop trees take any shape and dtype, f64 included. Attention with a cache always uses
// them. In training they are the bodies of attention statements (kir::AttentionTile), which the emitter writes as calls
// of templates for tensor cores, and they replace statements that do not fit.
//
// A block of threads takes one row of one head: a query in the forward pass and for dq, a key for dk and dv. Its
// threads share out the rows that this row meets. A thread computes a weight for each of its rows, by dot products in
// `vec` lanes. For the maximum and sum of all weights each thread folds its own in a chain, and the threads' values are
// folded by halves. For the weighted sum of rows the threads form groups, and each group takes every so many-th row:
// neighbours read neighbouring elements, and many loads are in flight. The groups' sums are added in order.
//
// For one new token, only reading keys and values once from memory counts. A row of 64 bf16 is a whole line of 128
// bytes; a thread reads it in pieces of 16 bytes, for which the first-level cache keeps the line. In training this form
// reads each key and value from the cache once per query, and is many times slower than a statement.
//
// Masked keys and values are never read, so they need not be finite.
#include "codegen/recipes/attention/attention.h"
#include "ir/access.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace gptc::attention {

using namespace kir;

namespace {

constexpr int64_t sharedBudget = 48 << 10;  // bytes of shared memory of a block
constexpr int64_t fallbackSharedBudget = 227
                                         << 10;  // the same, of the loop trees for which a GPU has no attention kernel
constexpr int blockThreads = 256;                // of loop trees
constexpr int64_t rowsAhead = 8;                 // that a thread loads for a weighted sum before it waits

Stmt gridLoop(const char *name, int64_t count, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::grid, v, imm(count), body(ref(v)));
}
Stmt threadLoop(const char *name, int64_t count, const std::function<Body(const Expr &)> &body) {
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
        threads(tiled ? blockThreads : s.threads), bias(group, op, shape), head0(firstHead(group, op)) {
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
  /// f(the first key that query i sees), bound to a name if there is a window.
  Body fromFirstKey(const Expr &i, const std::function<Body(const Expr &)> &f) const {
    return shape.window ? Body{bindTo("first", shape.firstKey(i), f)} : f(imm(0));
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
  Buffer head0;
  int pack;        // elements of one memory access
  int64_t groups;  // groups of threads that share out rows for weighted sums
};

/// A grid with a block for each (sequence, head, row), or with at most `blocks` blocks that take several.
Stmt eachHeadsRow(const Shape &shape, int64_t heads, int64_t blocks,
                  const std::function<Body(const Expr &block, const Expr &b, const Expr &head, const Expr &i)> &body) {
  const int64_t all = shape.batch * heads * shape.tokens;
  auto one = [&](const Expr &block, const Expr &n) {
    return Body{bindTo("b", n / imm(heads * shape.tokens), [&](const Expr &b) {
      return Body{bindTo("h", n / imm(shape.tokens) % imm(heads), [&](const Expr &h) {
        return Body{bindTo("i", n % imm(shape.tokens), [&](const Expr &i) { return body(block, b, h, i); })};
      })};
    })};
  };
  return gridLoop("n", std::min(all, blocks), [&](const Expr &n) {
    if (all <= blocks)
      return one(n, n);
    return Body{serial("r", imm(ceilDiv(all, blocks)), [&](const Expr &r) {
      return Body{
          bindTo("row", r * blocks + n, [&](const Expr &row) { return Body{ifThen(lt(row, imm(all)), one(n, row))}; })};
    })};
  });
}
/// Most blocks if their weights do not fit shared memory, but stand in a workspace.
constexpr int64_t fewBlocks = 1024;
int64_t blocksOf(const Shape &shape, int64_t heads, const Buffer &weights) {
  const int64_t all = shape.batch * heads * shape.tokens;
  return weights->storage == Storage::shared ? all : std::min(all, fewBlocks);
}
Expr placeOf(const Buffer &weights, const Expr &block, int64_t count) {
  return weights->storage == Storage::shared ? imm(0) : block * count;
}

class Cached : GridAttention {
public:
  Cached(GroupEval &group, const Op &op, const Schedule &s)
      : GridAttention(group, op, shapeOf(op, 0), s, group.outputs[1]), qkv{input(op, 0), shape},
        rows(op.operand(1)->type.dim(1)), scores(weights("s", rows, 1, shape.heads * shape.tokens)) {
    for (int i = 0; i < 2; ++i) {
      from[i] = input(op, 1 + i);
      to[i] = group.outputs[1 + i];
    }
    stay = inPlaceOperand(group.fused, 1) && inPlaceOperand(group.fused, 2);
    posIn = load(input(op, 3), imm(0));
  }

  Phases phases() {
    Stmt tokens = gridLoop("n", shape.heads * shape.tokens, [&](const Expr &n) {
      return withPos([&](const Expr &pos) {
        return Body{bindTo("h", n / imm(shape.tokens), [&](const Expr &h) {
          return Body{bindTo("i", n % imm(shape.tokens), [&](const Expr &i) {
            return Body{bindTo("seen", pos + i + 1, [&](const Expr &seen) {
              return Body{bias.withSlope(h, [&] { return token(n, h, i, pos, seen); })};
            })};
          })};
        })};
      });
    });
    return {{passOn(), tokens},
            scores->storage == Storage::global ? std::vector<Buffer>{scores} : std::vector<Buffer>{}};
  }
  /// Whether both results share memory with their operands.
  bool stays() const { return stay; }
  /// The position of the first new row, clamped so that all new rows lie in the cache.
  Body withPos(const std::function<Body(const Expr &)> &f) const {
    return {bindTo("pos", max(imm(0), min(posIn, imm(rows - shape.tokens))), f)};
  }

  /// Each thread copies one pack of a row of both caches, from the operands or from the new rows. If both results share
  /// memory with their operands (inPlaceOperand), only new rows are stored.
  Stmt passOn() {
    const int64_t pieces = shape.size / pack;
    Var n = makeVar("n");
    if (stay) {
      Expr kv = ref(n) / imm(pieces * shape.tokens), row = ref(n) / imm(pieces) % imm(shape.tokens),
           x0 = ref(n) % imm(pieces) * pack;
      Body body = withPos([&](const Expr &pos) {
        Body out;
        for (int side = 0; side < 2; ++side)
          out.push_back(vectorLoop("x", imm(pack), pack, [&](const Expr &x) {
            Expr at = side ? qkv.value(imm(0), row, kv) : qkv.key(imm(0), row, kv);
            return Body{
                kir::store(to[side], (kv * rows + pos + row) * shape.size + x0 + x, load(qkv.buffer, at + x0 + x))};
          }));
        return out;
      });
      return threadsLoop(n, shape.kvHeads * shape.tokens * pieces, threads, std::move(body));
    }
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
      Expr isNew = binary(BinaryOp::and_, binary(BinaryOp::ge, row, imm(0)), lt(row, imm(shape.tokens)));
      return Body{
          ifThen(isNew, move([&](int side, const Expr &x) {
                   Expr at = side ? qkv.value(imm(0), row, kv) : qkv.key(imm(0), row, kv);
                   return load(qkv.buffer, at + x);
                 }),
                 move([&](int side, const Expr &x) { return load(from[side], (kv * rows + j) * shape.size + x); }))};
    });
    return threadsLoop(n, shape.kvHeads * rows * pieces, threads, std::move(body));
  }

private:
  Body token(const Expr &n, const Expr &h, const Expr &i, const Expr &pos, const Expr &seen) {
    return fromFirstKey(pos + i, [&](const Expr &first) { return tokenFrom(first, n, h, i, pos, seen); });
  }
  Body tokenFrom(const Expr &first, const Expr &n, const Expr &h, const Expr &i, const Expr &pos, const Expr &seen) {
    Expr cache = h / imm(shape.group()) * (rows * shape.size);
    Row r;
    r.queries = qkv.buffer;
    r.query = qkv.query(imm(0), i, h);
    r.seen = seen - first;
    r.position = pos + i - first;
    r.key = [&](const Expr &j, const Expr &x) { return load(to[0], cache + (first + j) * shape.size + x); };
    r.value = [&](const Expr &j, const Expr &x) { return load(to[1], cache + (first + j) * shape.size + x); };
    r.scores = scores;
    r.scoresAt = placeOf(scores, n, rows);
    return softmaxRow(r, [&](const Expr &, const Expr &sum, const Buffer &partial) {
      return Body{addGroups(partial, [&](const Expr &x, const Expr &all) {
        return kir::store(group.outputs[0], (i * shape.heads + h) * shape.size + x, all / sum);
      })};
    });
  }

  Packed qkv;
  const int64_t rows;  // of the cache
  Buffer from[2], to[2], scores;
  bool stay;
  Expr posIn;
};

/// One new token, with blocks for parts of the keys, so that more of a GPU reads the cache. A part is a sum of weighted
/// values, the sum of the weights, and the maximum of the scores that weights are relative to. Phases: 1. The parts, of
/// which the last is the new token; its block stores the new rows. 2. Their sum, in order.
class Split : GridAttention {
public:
  Split(GroupEval &group, const Op &op, const Schedule &s)
      : GridAttention(group, op, shapeOf(op, 0), s, group.outputs[1]), cached(group, op, s), qkv{input(op, 0), shape},
        rows(op.operand(1)->type.dim(1)), each(s.kb), old(ceilDiv(rows, each)),
        scores(makeBuffer("s", dtype(), Storage::shared, each)),
        sums(makeBuffer("sums", dtype(), Storage::global, shape.heads * (old + 1) * shape.size, true)),
        weightsOf(makeBuffer("weights", dtype(), Storage::global, shape.heads * (old + 1) * 2, true)) {
    for (int i = 0; i < 2; ++i)
      cache[i] = cached.stays() ? group.outputs[1 + i] : input(op, 1 + i);
  }

  Phases phases() {
    Stmt parts = gridLoop("n", shape.heads * (old + 1), [&](const Expr &n) {
      return cached.withPos([&](const Expr &pos) {
        return Body{bindTo("h", n / imm(old + 1), [&](const Expr &h) {
          return Body{bindTo("part", n % imm(old + 1), [&](const Expr &part) {
            return Body{bias.withSlope(
                h, [&] { return Body{ifThen(lt(part, imm(old)), ofOld(n, h, part, pos), ofNew(n, h, pos))}; })};
          })};
        })};
      });
    });
    Phases out{{parts, total()}, {sums, weightsOf}};
    if (!cached.stays())
      out.body.insert(out.body.begin(), cached.passOn());
    return out;
  }

private:
  Stmt keep(const Expr &n, const Expr &sum, const Expr &most) const {
    return threadLoop("one", 1, [&](const Expr &) {
      return Body{kir::store(weightsOf, n * 2, sum), kir::store(weightsOf, n * 2 + 1, most)};
    });
  }

  /// Keys from part * each on, of those that are seen. There may be none.
  Body ofOld(const Expr &n, const Expr &h, const Expr &part, const Expr &pos) const {
    const Expr begin = max(part * each, shape.firstKey(pos)), end = min(part * each + each, pos);
    return {bindTo("begin", begin, [&](const Expr &begin) {
      return Body{bindTo("count", max(imm(0), end - begin), [&](const Expr &count) {
        const Expr from = h / imm(shape.group()) * (rows * shape.size) + begin * shape.size;
        Row r;
        r.queries = qkv.buffer;
        r.query = qkv.query(imm(0), imm(0), h);
        r.seen = count;
        r.position = pos - begin;
        r.key = [&](const Expr &j, const Expr &x) { return load(cache[0], from + j * shape.size + x); };
        r.value = [&](const Expr &j, const Expr &x) { return load(cache[1], from + j * shape.size + x); };
        r.scores = scores;
        r.scoresAt = imm(0);
        return softmaxRow(r, [&](const Expr &most, const Expr &sum, const Buffer &partial) {
          return Body{addGroups(partial, [&](const Expr &x,
                                             const Expr &all) { return kir::store(sums, n * shape.size + x, all); }),
                      keep(n, sum, max(most, fimm(noScore, dtype())))};
        });
      })};
    })};
  }

  Body ofNew(const Expr &n, const Expr &h, const Expr &pos) const {
    const Expr kv = h / imm(shape.group()), key = qkv.key(imm(0), imm(0), kv), value = qkv.value(imm(0), imm(0), kv);
    Body all = {shareOut(shape.size / pack, [&](const Expr &piece) {
      auto copy = [&](const Buffer &to, const Expr &at, const Expr &from) {
        return vectorLoop("x", imm(pack), pack, [&](const Expr &x) {
          return Body{kir::store(to, at + piece * pack + x, load(qkv.buffer, from + piece * pack + x))};
        });
      };
      Body body = {copy(sums, n * shape.size, value)};
      if (cached.stays()) {
        const Expr at = (kv * rows + pos) * shape.size;
        body.push_back(ifThen(binary(BinaryOp::eq, h % imm(shape.group()), imm(0)),
                              {copy(cache[0], at, key), copy(cache[1], at, value)}));
      }
      return body;
    })};
    all.push_back(threadLoop("one", 1, [&](const Expr &) {
      return Body{dot(
          "dot", [&](const Expr &x) { return load(qkv.buffer, qkv.query(imm(0), imm(0), h) + x); },
          [&](const Expr &x) { return load(qkv.buffer, key + x); },
          [&](const Expr &product) {
            return Body{
                kir::store(weightsOf, n * 2, fimm(1, dtype())),
                kir::store(weightsOf, n * 2 + 1, bias.of(product * fimm(shape.scale(), dtype()), imm(0), imm(0)))};
          })};
    }));
    return all;
  }

  /// The new token's score is finite, so parts without keys weigh nothing.
  Stmt total() const {
    return gridLoop("h", shape.heads, [&](const Expr &h) {
      return Body{shareOut(shape.size, [&](const Expr &x) {
        const Buffer most = makeBuffer("most", dtype(), Storage::reg, 1),
                     sum = makeBuffer("sum", dtype(), Storage::reg, 1),
                     out = makeBuffer("out", dtype(), Storage::reg, 1);
        auto eachPart = [&](const std::function<Body(const Expr &n)> &f) {
          return serial("p", imm(old + 1), [&](const Expr &p) { return Body{bindTo("n", h * (old + 1) + p, f)}; });
        };
        Stmt largest = eachPart([&](const Expr &n) {
          return Body{kir::store(most, imm(0), max(load(most, imm(0)), load(weightsOf, n * 2 + 1)))};
        });
        Stmt add = eachPart([&](const Expr &n) {
          return Body{
              bindTo("w", unary(UnaryOp::exp, load(weightsOf, n * 2 + 1) - load(most, imm(0))), [&](const Expr &w) {
                return Body{kir::store(sum, imm(0), kir::fma(w, load(weightsOf, n * 2), load(sum, imm(0)))),
                            kir::store(out, imm(0), kir::fma(w, load(sums, n * shape.size + x), load(out, imm(0))))};
              })};
        });
        return Body{alloc(most, {alloc(sum, {alloc(out, {kir::store(most, imm(0), fimm(noScore, dtype())),
                                                         kir::store(sum, imm(0), fimm(0, dtype())),
                                                         kir::store(out, imm(0), fimm(0, dtype())), largest, add,
                                                         kir::store(group.outputs[0], h * shape.size + x,
                                                                    load(out, imm(0)) / load(sum, imm(0)))})})})};
      })};
    });
  }

  static constexpr double noScore = -1e30;  // stands for minus infinity, below all scores

  Cached cached;
  const Packed qkv;
  const int64_t rows, each, old;  // rows of the cache, of a part, and parts of the cache
  const Buffer scores, sums, weightsOf;
  Buffer cache[2];
};

class Forward : GridAttention {
public:
  Forward(GroupEval &group, const Op &op, const Schedule &s)
      : GridAttention(group, op, shapeOf(op, 0), s, group.inputs[op.operand(0)->index]), qkv{input(op, 0), shape},
        dropout(group, op, 1, shape), scores(weights("s", shape.tokens, 1, fewBlocks)), schedule(s) {}

  Phases phases() {
    if (tiled) {
      AttentionTile t{.operands = {qkv.buffer, group.outputs[0], group.outputs[1]}};
      t.mr = schedule.mr, t.nr = schedule.nr;
      return {{statements(t, schedule, shape.heads, dropout,
                          [&](const Expr &b, const Expr &h, const Expr &i) {
                            return Body{bias.withSlope(h, [&] { return query(imm(0), b, h, i); })};
                          })},
              {}};
    }
    Stmt all = eachHeadsRow(shape, shape.heads, blocksOf(shape, shape.heads, scores),
                            [&](const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
                              return Body{dropout.withKey(
                                  b, [&] { return Body{bias.withSlope(h, [&] { return query(block, b, h, i); })}; })};
                            });
    return {{all}, scores->storage == Storage::global ? std::vector<Buffer>{scores} : std::vector<Buffer>{}};
  }

private:
  Body query(const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    return fromFirstKey(i, [&](const Expr &first) { return queryFrom(first, block, b, h, i); });
  }
  Body queryFrom(const Expr &first, const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    Expr kv = h / imm(shape.group());
    Row r;
    r.queries = qkv.buffer;
    r.query = qkv.query(b, i, h);
    r.seen = (shape.causal ? i + 1 : imm(shape.tokens)) - first;
    r.position = i - first;
    r.key = [&](const Expr &j, const Expr &x) { return load(qkv.buffer, qkv.key(b, first + j, kv) + x); };
    r.value = [&](const Expr &j, const Expr &x) { return load(qkv.buffer, qkv.value(b, first + j, kv) + x); };
    if (dropout.active())
      r.keep = [&](const Expr &j) { return dropout.keep(h, i, first + j); };
    r.scores = scores;
    r.scoresAt = placeOf(scores, block, shape.tokens);
    return softmaxRow(r, [&](const Expr &most, const Expr &sum, const Buffer &partial) {
      Stmt lse = threadLoop("one", 1, [&](const Expr &) {
        return Body{
            kir::store(group.outputs[1], (b * shape.heads + h) * shape.tokens + i, most + unary(UnaryOp::log, sum))};
      });
      Expr one = fimm(dropout.active() ? dropout.keptScale() : 1.0, dtype());
      return Body{bindTo("factor", one / sum, [&](const Expr &factor) {
        return Body{addGroups(partial,
                              [&](const Expr &x, const Expr &all) {
                                Expr to = ((b * shape.tokens + i) * shape.heads + h) * shape.size + x;
                                return kir::store(group.outputs[0], to, all * factor);
                              }),
                    lse};
      })};
    });
  }

  Packed qkv;
  Dropout dropout;
  Buffer scores;
  const Schedule schedule;
};

/// Phases: 1. delta_i = do_i . o_i. 2. dq, with a block for each query. 3. dk and dv, with a block for each key, which
/// adds the heads that share the key in order.
class Backward : GridAttention {
public:
  Backward(GroupEval &group, const Op &op, const Schedule &s)
      : GridAttention(group, op, shapeOf(op, 1), s, group.inputs[op.operand(1)->index]), qkv{input(op, 1), shape},
        dqkv{group.outputs[0], shape}, dropout(group, op, 4, shape), dout(input(op, 0)), out(input(op, 2)),
        lse(input(op, 3)), dScores(weights("ds", shape.tokens, 2, fewBlocks, 2)),
        probs(weights("p", shape.tokens, 2, fewBlocks, 2)),
        delta(makeBuffer("delta", dtype(), Storage::global, shape.batch * shape.heads * shape.tokens, true)),
        schedule(s) {}

  Phases phases() {
    if (tiled) {
      AttentionTile t{.operands = {dout, qkv.buffer, lse, delta, dqkv.buffer}};
      t.part = AttentionTile::Part::queryGrad, t.mr = int(schedule.qb), t.nr = int(schedule.kb);
      Stmt queries = statements(t, schedule, shape.heads, dropout, [&](const Expr &b, const Expr &h, const Expr &i) {
        return Body{bias.withSlope(h, [&] { return query(imm(0), b, h, i); })};
      });
      t.part = AttentionTile::Part::keyGrad, t.mr = schedule.mr, t.nr = schedule.nr;
      Stmt keys = statements(t, schedule, shape.kvHeads, dropout,
                             [&](const Expr &b, const Expr &kv, const Expr &j) { return key(imm(0), b, kv, j); });
      return {{deltas(), queries, keys}, {delta}};
    }
    Stmt queries = eachHeadsRow(shape, shape.heads, blocksOf(shape, shape.heads, dScores),
                                [&](const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
                                  return Body{dropout.withKey(b, [&] {
                                    return Body{bias.withSlope(h, [&] { return query(block, b, h, i); })};
                                  })};
                                });
    Stmt keys = eachHeadsRow(shape, shape.kvHeads, blocksOf(shape, shape.kvHeads, dScores),
                             [&](const Expr &block, const Expr &b, const Expr &kv, const Expr &j) {
                               return Body{dropout.withKey(b, [&] { return key(block, b, kv, j); })};
                             });
    std::vector<Buffer> workspaces = {delta};
    if (dScores->storage == Storage::global)
      workspaces.insert(workspaces.end(), {dScores, probs});
    return {{deltas(), queries, keys}, std::move(workspaces)};
  }

private:
  Expr perRow(const Expr &b, const Expr &h, const Expr &i) const { return (b * shape.heads + h) * shape.tokens + i; }
  Expr outAt(const Expr &b, const Expr &i, const Expr &h) const {
    return ((b * shape.tokens + i) * shape.heads + h) * shape.size;
  }

  Stmt deltas() {
    const int64_t rows = shape.batch * shape.heads * shape.tokens, some = std::min<int64_t>(rows, 16);
    // Threads of one row are neighbours, and so are what they read.
    const int64_t across = rowLanes;
    return gridLoop("n", ceilDiv(rows, some), [&](const Expr &n) {
      Buffer parts = makeBuffer("parts", dtype(), Storage::shared, some * across);
      auto each = [&](int64_t threads, const std::function<Body(const Expr &row, const Expr &t)> &f) {
        return threadLoop("t", some * threads, [&](const Expr &t) {
          return Body{bindTo("row", n * some + t / imm(threads), [&](const Expr &row) {
            return rows % some ? Body{ifThen(lt(row, imm(rows)), f(row, t))} : f(row, t);
          })};
        });
      };
      Buffer acc = makeBuffer("acc", dtype(), Storage::reg, 1);
      Stmt products = each(across, [&](const Expr &row, const Expr &t) {
        Stmt sum = every("x", t % imm(across), across, imm(shape.size), [&](const Expr &x) {
          Expr at = row * shape.size + x;
          return Body{kir::store(acc, imm(0), load(acc, imm(0)) + load(dout, at) * load(out, at))};
        });
        return Body{
            alloc(acc, {kir::store(acc, imm(0), fimm(0, dtype())), sum, kir::store(parts, t, load(acc, imm(0)))})};
      });
      Stmt sums = each(1, [&](const Expr &row, const Expr &t) {
        Stmt sum = serial("x", imm(across), [&](const Expr &x) {
          return Body{kir::store(acc, imm(0), load(acc, imm(0)) + load(parts, t * across + x))};
        });
        Expr b = row / imm(shape.heads * shape.tokens), i = row / imm(shape.heads) % imm(shape.tokens);
        return Body{alloc(acc, {kir::store(acc, imm(0), fimm(0, dtype())), sum,
                                kir::store(delta, perRow(b, row % imm(shape.heads), i), load(acc, imm(0)))})};
      });
      return Body{alloc(parts, {products, sums})};
    });
  }

  /// f(p, ds) for query i of head h and key j: the probability after dropout and the gradient of the scaled score.
  Stmt pair(const Expr &b, const Expr &h, const Expr &kv, const Expr &i, const Expr &j,
            const std::function<Body(const Expr &p, const Expr &ds)> &f) {
    return dot(
        "qk", [&](const Expr &x) { return load(qkv.buffer, qkv.query(b, i, h) + x); },
        [&](const Expr &x) { return load(qkv.buffer, qkv.key(b, j, kv) + x); },
        [&](const Expr &product) {
          return Body{dot(
              "dv", [&](const Expr &x) { return load(dout, outAt(b, i, h) + x); },
              [&](const Expr &x) { return load(qkv.buffer, qkv.value(b, j, kv) + x); },
              [&](const Expr &dp) {
                auto withScore = [&](const Expr &score, const Expr &slope) {
                  Expr e = unary(UnaryOp::exp, score - load(lse, perRow(b, h, i)));
                  return Body{bindTo("e", e, [&](const Expr &e) {
                    Expr p = e, arrived = dp;
                    if (dropout.active()) {
                      Expr scaled = fimm(dropout.keptScale(), dtype()), zero = fimm(0, dtype());
                      Expr factor = select(dropout.keep(h, i, j), scaled, zero);
                      p = e * factor, arrived = dp * factor;
                    }
                    Expr ds = e * (arrived - load(delta, perRow(b, h, i)));
                    return f(p, slope ? ds * slope : ds);
                  })};
                };
                Expr scaled = product * fimm(shape.scale(), dtype());
                if (shape.softcap != 0)
                  return Body{bias.withDerivative(scaled, j - i, imm(0), withScore)};
                return withScore(bias.of(scaled, j - i, imm(0)), nullptr);
              })};
        });
  }

  Body query(const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    return fromFirstKey(i, [&](const Expr &first) { return queryFrom(first, block, b, h, i); });
  }
  Body queryFrom(const Expr &first, const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    Expr kv = h / imm(shape.group()), seen = (shape.causal ? i + 1 : imm(shape.tokens)) - first;
    Expr at = placeOf(dScores, block, shape.tokens);
    Stmt rows = allRows(seen, [&](const Expr &j) {
      return Body{pair(b, h, kv, i, first + j,
                       [&](const Expr &, const Expr &ds) { return Body{kir::store(dScores, at + j, weight(ds))}; })};
    });
    Buffer partial = partialSums("dq");
    Stmt sum = sumRows(partial, false, dScores, at, seen,
                       [&](const Expr &j, const Expr &x) { return load(qkv.buffer, qkv.key(b, first + j, kv) + x); });
    Stmt keep = addGroups(partial, [&](const Expr &x, const Expr &all) {
      return kir::store(dqkv.buffer, dqkv.query(b, i, h) + x, all * fimm(shape.scale(), dtype()));
    });
    return within(dScores, {alloc(partial, {rows, sum, keep})});
  }

  Body key(const Expr &block, const Expr &b, const Expr &kv, const Expr &j) {
    Buffer dKey = partialSums("dk"), dValue = partialSums("dv");
    Expr at = placeOf(dScores, block, shape.tokens), first = shape.causal ? j : imm(0);
    Expr count = shape.endOfQueries(j) - first;
    Stmt clear = shareOut(dKey->size, [&](const Expr &x) {
      return Body{kir::store(dKey, x, fimm(0, dtype())), kir::store(dValue, x, fimm(0, dtype()))};
    });
    Stmt heads = serial("g", imm(shape.group()), [&](const Expr &g) {
      return Body{bindTo("h", kv * shape.group() + g, [&](const Expr &h) {
        return Body{bias.withSlope(h, [&] {
          Stmt rows = allRows(count, [&](const Expr &r) {
            return Body{pair(b, h, kv, first + r, j, [&](const Expr &p, const Expr &ds) {
              return Body{kir::store(probs, at + r, weight(p)), kir::store(dScores, at + r, weight(ds))};
            })};
          });
          Stmt sumKeys = sumRows(dKey, true, dScores, at, count, [&](const Expr &r, const Expr &x) {
            return load(qkv.buffer, qkv.query(b, first + r, h) + x);
          });
          Stmt sumValues = sumRows(dValue, true, probs, at, count, [&](const Expr &r, const Expr &x) {
            return load(dout, outAt(b, first + r, h) + x);
          });
          return Body{rows, sumKeys, sumValues};
        })};
      })};
    });
    auto storeTo = [&](const Buffer &partial, const Expr &to, double scale) {
      return addGroups(partial, [&](const Expr &x, const Expr &all) {
        return kir::store(dqkv.buffer, to + x, scale == 1 ? all : all * fimm(scale, dtype()));
      });
    };
    Body body = {clear, heads, storeTo(dKey, dqkv.key(b, j, kv), shape.scale()),
                 storeTo(dValue, dqkv.value(b, j, kv), 1)};
    return within(dScores, within(probs, {alloc(dKey, {alloc(dValue, std::move(body))})}));
  }

  Packed qkv, dqkv;
  Dropout dropout;
  Buffer dout, out, lse, dScores, probs, delta;
  const Schedule schedule;
};

}  // namespace

Phases cachedBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Cached(group, op, s).phases(); }
Phases splitBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Split(group, op, s).phases(); }
Phases forwardBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Forward(group, op, s).phases(); }
Phases backwardBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Backward(group, op, s).phases(); }

}  // namespace gptc::attention

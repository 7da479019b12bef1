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
// Masked keys and values are never read, so they need not be finite.
#include "codegen/recipes/attention/grid_attention.h"

#include <algorithm>
#include <cmath>

namespace gptc::attention {

using namespace kir;
using namespace grid;

namespace {

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
    return fromFirstKey(b, i, [&](const Expr &first) { return queryFrom(first, block, b, h, i); });
  }
  Body queryFrom(const Expr &first, const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    Expr kv = h / imm(shape.group());
    Row r;
    r.queries = qkv.buffer;
    r.query = qkv.query(b, i, h);
    r.seen = sight.endOfKeys(b, i) - first;
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
    return fromFirstKey(b, i, [&](const Expr &first) { return queryFrom(first, block, b, h, i); });
  }
  Body queryFrom(const Expr &first, const Expr &block, const Expr &b, const Expr &h, const Expr &i) {
    Expr kv = h / imm(shape.group()), seen = sight.endOfKeys(b, i) - first;
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
    Expr at = placeOf(dScores, block, shape.tokens), first = sight.firstQuery(b, j);
    Expr count = sight.endOfQueries(b, j) - first;
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

Phases forwardBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Forward(group, op, s).phases(); }
Phases backwardBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Backward(group, op, s).phases(); }

}  // namespace gptc::attention

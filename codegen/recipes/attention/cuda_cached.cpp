// Attention of new tokens to a cache as grid loops; how a block computes a row says cuda_kernel.cpp. For one new token,
// only reading keys and values once from memory counts. A row of 64 bf16 is a whole line of 128 bytes; a thread reads
// it in pieces of 16 bytes, for which the first-level cache keeps the line.
#include "codegen/recipes/attention/grid_attention.h"
#include "codegen/recipes/place.h"
#include "ir/access.h"

#include <cmath>

namespace gptc::attention {

using namespace kir;
using namespace grid;

namespace {

class Cached : GridAttention {
public:
  Cached(GroupEval &group, const Op &op, const Schedule &s)
      : GridAttention(group, op, shapeOf(op, 0), s, group.inputs[op.operand(1)->index]), qkv{input(op, 0), shape},
        places(group, op, shape), rows(places.rows), scores(weights("s", rows, 1, shape.heads * shape.tokens)) {
    stay = true;
    for (int i = 0; i < 2; ++i) {
      const unsigned output = outputOf(group, op.result(unsigned(1 + i)));
      from[i] = input(op, 1 + i);
      to[i] = group.outputs[output];
      stay &= inPlaceOperand(group.fused, output).has_value();
    }
    posIn = load(input(op, 3), imm(0));
  }

  Phases phases() {
    Body body = passOn();
    body.push_back(gridLoop("n", shape.heads * shape.tokens, [&](const Expr &n) {
      auto inSequence = [&](const Expr &h, const Expr &i, const Expr &row) {
        return Body{bindTo("seen", row + 1, [&](const Expr &seen) {
          return Body{bias.withSlope(h, [&] { return token(n, h, i, row, seen); })};
        })};
      };
      auto withToken = [&](const std::function<Body(const Expr &h, const Expr &i)> &f) {
        return Body{bindTo("h", n / imm(shape.tokens), [&](const Expr &h) {
          return Body{bindTo("i", n % imm(shape.tokens), [&](const Expr &i) { return f(h, i); })};
        })};
      };
      if (!places.slots)
        return withPos([&](const Expr &pos) {
          return withToken([&](const Expr &h, const Expr &i) { return inSequence(h, i, pos + i); });
        });
      return withToken([&](const Expr &h, const Expr &i) {
        return Body{bindTo("row", places.row(i), [&](const Expr &row) {
          return places.ifThere(
              row, inSequence(h, i, row), {shareOut(shape.size, [&](const Expr &x) {
                return Body{kir::store(group.outputs[0], (i * shape.heads + h) * shape.size + x, fimm(0, dtype()))};
              })});
        })};
      });
    }));
    return {std::move(body), scores->storage == Storage::global ? std::vector<Buffer>{scores} : std::vector<Buffer>{}};
  }
  /// Whether both results share memory with their operands.
  bool stays() const { return stay; }
  /// The caches with the new rows.
  const Buffer &result(int side) const { return to[side]; }
  /// The position of the first new row, clamped so that all new rows lie in the cache.
  Body withPos(const std::function<Body(const Expr &)> &f) const {
    return {bindTo("pos", max(imm(0), min(posIn, imm(rows - shape.tokens))), f)};
  }

  /// Each thread copies one pack of a row of both caches, from the operands or from the new rows. If both results share
  /// memory with their operands (inPlaceOperand), only new rows are stored.
  Body passOn() {
    if (places.slots)
      return passOnSlots();
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
      return {threadsLoop(n, shape.kvHeads * shape.tokens * pieces, threads, std::move(body))};
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
    return {threadsLoop(n, shape.kvHeads * rows * pieces, threads, std::move(body))};
  }

private:
  /// The same of slots: all rows, unless they stay, and a launch later the new ones.
  Body passOnSlots() {
    const int64_t pieces = shape.size / pack;
    Body out;
    auto copy = [&](int64_t count, const std::function<Body(const Expr &n)> &body) {
      Var n = makeVar("n");
      out.push_back(threadsLoop(n, count, threads, body(ref(n))));
    };
    auto both = [&](const std::function<Stmt(int side, const Expr &x)> &element) {
      return Body{vectorLoop("x", imm(pack), pack, [&](const Expr &x) { return Body{element(0, x)}; }),
                  vectorLoop("x", imm(pack), pack, [&](const Expr &x) { return Body{element(1, x)}; })};
    };
    if (!stay)
      copy(places.slots * shape.kvHeads * rows * pieces, [&](const Expr &n) {
        return both([&](int side, const Expr &x) {
          const Expr at = n * pack + x;
          return kir::store(to[side], at, load(from[side], at));
        });
      });
    copy(shape.kvHeads * shape.tokens * pieces, [&](const Expr &n) {
      const Expr kv = n / imm(pieces * shape.tokens), i = n / imm(pieces) % imm(shape.tokens),
                 x0 = n % imm(pieces) * pack;
      return Body{bindTo("row", places.row(i), [&](const Expr &row) {
        return places.ifThere(row, both([&](int side, const Expr &x) {
                                const Expr at = side ? qkv.value(imm(0), i, kv) : qkv.key(imm(0), i, kv);
                                return kir::store(to[side], places.head(i, kv) + row * shape.size + x0 + x,
                                                  load(qkv.buffer, at + x0 + x));
                              }),
                              {});
      })};
    });
    return out;
  }

  Body token(const Expr &n, const Expr &h, const Expr &i, const Expr &row, const Expr &seen) {
    return fromFirstKey(imm(0), row, [&](const Expr &first) { return tokenFrom(first, n, h, i, row, seen); });
  }
  Body tokenFrom(const Expr &first, const Expr &n, const Expr &h, const Expr &i, const Expr &row, const Expr &seen) {
    Expr cache = places.head(i, h / imm(shape.group()));
    Row r;
    r.queries = qkv.buffer;
    r.query = qkv.query(imm(0), i, h);
    r.seen = seen - first;
    r.position = row - first;
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
  const Places places;
  const int64_t rows;  // of a sequence in the cache
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
      : GridAttention(group, op, shapeOf(op, 0), s, group.inputs[op.operand(1)->index]), cached(group, op, s),
        qkv{input(op, 0), shape}, rows(op.operand(1)->type.dim(1)), each(s.kb), old(ceilDiv(rows, each)),
        scores(makeBuffer("s", dtype(), Storage::shared, each)),
        sums(makeBuffer("sums", dtype(), Storage::global, shape.heads * (old + 1) * shape.size, true)),
        weightsOf(makeBuffer("weights", dtype(), Storage::global, shape.heads * (old + 1) * 2, true)) {
    for (int i = 0; i < 2; ++i)
      cache[i] = cached.stays() ? cached.result(i) : input(op, 1 + i);
  }

  Phases phases() {
    SplitParts made = parts();
    Phases &out = made.phases;
    out.body.push_back(gridLoop("h", shape.heads, [&](const Expr &h) {
      return Body{shareOut(shape.size, [&](const Expr &x) {
        Seq one;
        Placer placer;
        placer.push(one, {h->var, x->var});
        one.add(kir::store(group.outputs[0], h * shape.size + x, placer.place(made.result(h, x))));
        placer.pop();
        return one.take();
      })};
    }));
    return std::move(out);
  }

  SplitParts parts() {
    Stmt all = gridLoop("n", shape.heads * (old + 1), [&](const Expr &n) {
      return cached.withPos([&](const Expr &pos) {
        return Body{bindTo("h", n / imm(old + 1), [&](const Expr &h) {
          return Body{bindTo("part", n % imm(old + 1), [&](const Expr &part) {
            return Body{bias.withSlope(
                h, [&] { return Body{ifThen(lt(part, imm(old)), ofOld(n, h, part, pos), ofNew(n, h, pos))}; })};
          })};
        })};
      });
    });
    SplitParts out{{{all}, {sums, weightsOf}}, shape.size, {}};
    if (!cached.stays()) {
      const Body passed = cached.passOn();
      out.phases.body.insert(out.phases.body.begin(), passed.begin(), passed.end());
    }
    out.result = [sums = sums, weightsOf = weightsOf, size = shape.size,
                  count = old + 1](const Expr &h, const Expr &x) { return total(sums, weightsOf, size, count, h, x); };
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
  static Expr total(const Buffer &sums, const Buffer &weightsOf, int64_t size, int64_t count, const Expr &h,
                    const Expr &x) {
    const Expr first = h * count;
    auto most = [&](int64_t p) { return load(weightsOf, (first + p) * 2 + 1); };
    Expr largest = most(0), sum, out;
    for (int64_t p = 1; p < count; ++p)
      largest = max(largest, most(p));
    for (int64_t p = 0; p < count; ++p) {
      const Expr w = unary(UnaryOp::exp, most(p) - largest), weight = load(weightsOf, (first + p) * 2),
                 value = load(sums, (first + p) * size + x);
      sum = p ? kir::fma(w, weight, sum) : w * weight;
      out = p ? kir::fma(w, value, out) : w * value;
    }
    return out / sum;
  }

  static constexpr double noScore = -1e30;  // stands for minus infinity, below all scores

  Cached cached;
  const Packed qkv;
  const int64_t rows, each, old;  // rows of the cache, of a part, and parts of the cache
  const Buffer scores, sums, weightsOf;
  Buffer cache[2];
};

}  // namespace

Phases cachedBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Cached(group, op, s).phases(); }
Phases splitBlocks(GroupEval &group, const Op &op, const Schedule &s) { return Split(group, op, s).phases(); }
SplitParts splitParts(GroupEval &group, const Op &op, const Schedule &s) { return Split(group, op, s).parts(); }

}  // namespace gptc::attention

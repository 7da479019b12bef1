// attention_cached: attention of a few new tokens to a cache of keys and values, for sampling. attention_split, for
// CUDA: the same of one new token, cut over keys by the size of the cache alone.
//
//   1. The caches are copied to the results, then the new rows. If a result shares memory with its operand
//      (inPlaceOperand), only the new rows are stored.
//   2. For each head and token: scores against all rows of its sequence so far, or those of the window, each a dot
//      product in the lanes of a vector; softmax in 16 lanes; then a chain over rows for each element of the output. So
//      a token's sums are the same whatever other tokens there are.
#include "codegen/recipes/attention/attention.h"
#include "ir/access.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gptc {

using namespace kir;

namespace {

using namespace attention;

class Cached {
public:
  Cached(GroupEval &group, const Op &op, const Schedule &s)
      : group(group), shape(shapeOf(op, 0)), qkv{group.inputs[op.operand(0)->index], shape}, bias(group, op, shape),
        places(group, op, shape), lanes(s.vec) {
    for (int i = 0; i < 2; ++i) {
      from[i] = group.inputs[op.operand(1 + i)->index];
      to[i] = group.outputs[1 + i];
      stays[i] = inPlaceOperand(group.fused, 1 + i).has_value();
    }
  }

  Body body() {
    const Stmt storing = parallel("kv", shape.kvHeads, [&](const Expr &kv) { return store(kv); });
    auto withScores = [&](const std::function<Body()> &f) {
      scores = makeBuffer("s", group.compute, Storage::stack, places.rows);
      return Body{alloc(scores, f())};
    };
    // Sequences of their own make tasks of their own; the tokens of one share its cache.
    if (places.slots)
      return {storing, parallel("n", shape.heads * shape.tokens, [&](const Expr &n) {
                return withScores([&] {
                  const Expr h = n / imm(shape.tokens), i = n % imm(shape.tokens);
                  return Body{bias.withSlope(h, [&] { return token(h, i); })};
                });
              })};
    return {storing, parallel("h", shape.heads, [&](const Expr &h) {
              return withScores([&] {
                return Body{bias.withSlope(h, [&] {
                  return Body{serial("i", imm(shape.tokens), [&](const Expr &i) { return token(h, i); })};
                })};
              });
            })};
  }

private:
  Body store(const Expr &kv) {
    Body out;
    const int64_t sequence = places.rows * shape.size;
    for (int side = 0; side < 2; ++side) {
      if (!stays[side])
        out.push_back(serial("slot", imm(std::max<int64_t>(1, places.slots)), [&](const Expr &slot) {
          const Expr base = (slot * shape.kvHeads + kv) * sequence;
          return Body{vectorLoop("x", imm(sequence), lanes, [&](const Expr &x) {
            return Body{kir::store(to[side], base + x, load(from[side], base + x))};
          })};
        }));
      out.push_back(serial("i", imm(shape.tokens), [&](const Expr &i) {
        return Body{bindTo("row", places.row(i), [&](const Expr &row) {
          const Expr base = places.head(i, kv) + row * shape.size;
          const Expr at = side ? qkv.value(imm(0), i, kv) : qkv.key(imm(0), i, kv);
          return places.ifThere(row,
                                {vectorLoop("x", imm(shape.size), lanes,
                                            [&](const Expr &x) {
                                              return Body{kir::store(to[side], base + x, load(qkv.buffer, at + x))};
                                            })},
                                {});
        })};
      }));
    }
    return out;
  }

  Body token(const Expr &h, const Expr &i) {
    return {bindTo("row", places.row(i), [&](const Expr &row) {
      return places.ifThere(
          row, tokenAt(h, i, row), {vectorLoop("x", imm(shape.size), lanes, [&](const Expr &x) {
            return Body{kir::store(group.outputs[0], (i * shape.heads + h) * shape.size + x, fimm(0, group.compute))};
          })});
    })};
  }

  Body tokenAt(const Expr &h, const Expr &i, const Expr &row) {
    const DType t = group.compute;
    Expr cache = places.head(i, h / imm(shape.group()));
    Expr seen = row + 1, first = shape.firstKey(row), count = shape.window ? seen - first : seen;
    auto eachKey = [&](const std::function<Body(const Expr &)> &body) {
      if (!shape.window)
        return serial("j", seen, body);
      Var j = makeVar("j");
      return loop(LoopKind::serial, j, count, body(kir::ref(j)), 1, first);
    };
    Stmt dots = eachKey([&](const Expr &j) {
      Buffer acc = makeBuffer("dot", t, Storage::reg, lanes);
      Stmt clear =
          vectorLoop("x", imm(lanes), lanes, [&](const Expr &) { return Body{kir::store(acc, lane(), fimm(0, t))}; });
      Stmt sum = vectorLoop("x", imm(shape.size), lanes, [&](const Expr &x) {
        Expr q = load(qkv.buffer, qkv.query(imm(0), i, h) + x), k = load(to[0], cache + j * shape.size + x);
        return Body{kir::store(acc, lane(), kir::fma(q, k, load(acc, lane())))};
      });
      Expr score = hreduce(acc, BinaryOp::add) * fimm(shape.scale(), t);
      Stmt keep = kir::store(scores, j, bias.of(score, j - row, imm(0)));
      return Body{alloc(acc, {clear, sum, keep})};
    });
    Stmt rest = foldRow(
        "max", t, BinaryOp::max, -HUGE_VAL, count, rowLanes,
        [&](const Expr &j, const Fold &fold) { return Body{fold(load(scores, first + j))}; },
        [&](const Expr &most) {
          return Body{foldRow(
              "sum", t, BinaryOp::add, 0, count, rowLanes,
              [&](const Expr &j, const Fold &fold) {
                return Body{bindTo("e", unary(UnaryOp::exp, load(scores, first + j) - most),
                                   [&](const Expr &e) { return Body{fold(e), kir::store(scores, first + j, e)}; })};
              },
              [&](const Expr &sum) { return output(h, i, first, seen, cache, sum); })};
        });
    return {dots, rest};
  }

  Body output(const Expr &h, const Expr &i, const Expr &first, const Expr &seen, const Expr &cache, const Expr &sum) {
    // Vectors that end with the row: the next element may belong to another head or lie past the cache.
    Tile tile;
    tile.rows = 1;
    tile.dtype = group.compute;
    tile.lanes = std::min<int>(lanes, 1 << std::countr_zero(uint64_t(shape.size)));
    tile.vecs = int(std::min<int64_t>(8, shape.size / tile.lanes));
    return forPanels(tile, shape.size, [&](const Expr &d0, const Tile &narrow) {
      TileLoop t;
      t.tile = narrow;
      t.steps = seen;
      if (shape.window)
        t.begin = first;
      t.a = [&](int, const Expr &k) { return load(scores, k); };
      t.b = [&](int vec, const Expr &k, const Expr &x) {
        return load(to[1], cache + k * shape.size + d0 + int64_t(vec * tile.lanes) + x);
      };
      t.finish = [&](int, int vec, const Expr &x, const Expr &acc) {
        return kir::store(group.outputs[0], (i * shape.heads + h) * shape.size + d0 + int64_t(vec * tile.lanes) + x,
                          acc / sum);
      };
      return Body{tileLoop(t)};
    });
  }

  GroupEval &group;
  const Shape shape;
  Packed qkv;
  Bias bias;
  const Places places;
  const int lanes;
  Buffer from[2], to[2], scores;
  bool stays[2];
};

bool matches(const Op &fused) { return onlyOp(fused, OpKind::attention_cached); }

Schedule defaults(const Op &fused, const Target &target) {
  if (target.isCuda())
    return cachedSchedule();
  Schedule s;
  s.vec = rowLanes;
  return s;
}

// Its one size, `vec`, determines the order of sums and must not vary.
std::vector<Schedule> space(const Op &, const Schedule &, const Target &) { return {}; }

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  const Op *op = onlyOp(fused, OpKind::attention_cached);
  GPTC_CHECK(op && (s.vec > 0 || s.threads > 0), "{}", s.str());
  GroupEval group(fused, compute);
  Phases phases = s.threads ? cachedBlocks(group, *op, s) : Phases{Cached(group, *op, s).body(), {}};
  return std::move(phases).lowered(group);
}

bool takesSplit(const Op &fused) {
  const Op *op = onlyOp(fused, OpKind::attention_cached);
  return op && op->operand(0)->type.dim(1) == 1 && op->operand(1)->type.rank() == 3;
}

Schedule splitDefaults(const Op &fused, const Target &target) {
  if (!target.isCuda())
    throw UserError(ErrorCode::NotBuiltYet, "a group of the recipe attention_split has no kernel for CPUs",
                    "write it as a group of the recipe attention_cached");
  return splitSchedule(onlyOp(fused, OpKind::attention_cached)->operand(1)->type.dim(1));
}

LoweredGroup buildSplit(const Op &fused, const Schedule &s, const Target &, DType compute) {
  const Op *op = onlyOp(fused, OpKind::attention_cached);
  GPTC_CHECK(op && s.threads > 0 && s.kb > 0, "{}", s.str());
  GroupEval group(fused, compute);
  return splitBlocks(group, *op, s).lowered(group);
}

}  // namespace

const Recipe &attention_splitRecipe() {
  static const Recipe recipe{RecipeKind::attention_split, takesSplit, splitDefaults, space, buildSplit};
  return recipe;
}

const Recipe &attention_cachedRecipe() {
  static const Recipe recipe{RecipeKind::attention_cached, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

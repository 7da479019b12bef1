// attention_cached: attention of a few new tokens to a cache of keys and values, for sampling. attention_split, for
// CUDA: the same of one new token, cut over keys by the size of the cache alone.
//
//   1. The caches are copied to the results, then the new rows. If a result shares memory with its operand
//      (inPlaceOperand), only the new rows are stored.
//   2. For each head and token: scores against all rows of its sequence so far, or those of the window; softmax; the
//      sum of values. Every sum has the order, and every product the rounding, of attention.cpp, so a token has the
//      bits that it gets there, whatever other tokens there are: a score is one chain over d, a sum of exponentials has
//      16 lanes that begin with key 0, an element of the output is one chain over keys, in pairs if those there are.
//
// Lanes of scores are rows of the cache: squares of them are transposed in registers, which keeps up with memory.
//
// A cache of 8 bits (ir/quantized_cache.h): step 1 rounds the new rows, and step 2 reads what is stored, those rows
// too. A word has a byte of each quarter of a row, so a vector of words is read once for each quarter. Elements become
// f32, exactly, before they are multiplied: order and bits are those of an f32 cache of these elements.
#include "codegen/recipes/attention/attention.h"
#include "ir/access.h"
#include "ir/quantized_cache.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gptc {

using namespace kir;

namespace {

using namespace attention;

/// Where tokens stand; in a cache of 8 bits, by numbers of rows instead of elements.
Places placesOf(const GroupEval &group, const Op &op, const Shape &shape) {
  Places places(group, op, shape);
  if (hasQuantizedCache(op))
    places.size = 1;
  return places;
}

/// Elements of a vector. Of a cache of 8 bits, those of a vector are in one quarter of a row and in one block.
int lanesOf(const Op &op, const Shape &shape, int most) {
  const auto quarter = uint64_t(shape.size / 4);
  return hasQuantizedCache(op) ? int(std::min<uint64_t>({uint64_t(most), quarter & -quarter, quantBlock})) : most;
}

class Cached {
public:
  Cached(GroupEval &group, const Op &op, const Schedule &s)
      : group(group), shape(shapeOf(op, 0)), qkv{group.inputs[op.operand(0)->index], shape}, bias(group, op, shape),
        places(placesOf(group, op, shape)), quantized(hasQuantizedCache(op)), lanes(lanesOf(op, shape, s.vec)) {
    for (int i = 0; i < (quantized ? 4 : 2); ++i) {
      const unsigned operand = unsigned(i < 2 ? 1 + i : 2 + i);
      from[i] = group.inputs[op.operand(operand)->index];
      to[i] = group.outputs[size_t(1 + i)];
      stays[i] = inPlaceOperand(group.fused, unsigned(1 + i)).has_value();
      widths[i] = op.operand(operand)->type.dim(-1);
    }
    pairs = s.pairs && group.compute == DType::f32 && qkv.buffer->dtype == DType::bf16 && to[0]->dtype == DType::bf16;
    scaleLeft = pairs && !bias.active() ? shape.scale() : 1;
  }

  Body body() {
    const Stmt storing = parallel("kv", shape.kvHeads, [&](const Expr &kv) { return store(kv); });
    auto withScores = [&](const std::function<Body()> &f) {
      scores = makeBuffer("s", group.compute, Storage::stack, roundUp(places.rows, blockOfKeys()));
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
  /// Squares side by side, so that there are as many chains of products to hide their latency.
  static constexpr int64_t squares = 2;

  Body store(const Expr &kv) {
    Body out;
    for (int side = 0; side < 2; ++side) {
      for (int i = side; i < (quantized ? 4 : 2); i += 2)
        if (!stays[i])
          out.push_back(copy(i, kv));
      out.push_back(serial("i", imm(shape.tokens), [&](const Expr &i) {
        return Body{bindTo("row", places.row(i), [&](const Expr &row) {
          const Expr base = places.head(i, kv) + row * places.size;
          const Expr at = side ? qkv.value(imm(0), i, kv) : qkv.key(imm(0), i, kv);
          return places.ifThere(row, storeRow(side, base, at), {});
        })};
      }));
    }
    return out;
  }

  /// Copies a head of all sequences of cache i.
  Stmt copy(int i, const Expr &kv) const {
    const int64_t sequence = places.rows * widths[i];
    return serial("slot", imm(std::max<int64_t>(1, places.slots)), [&](const Expr &slot) {
      const Expr base = (slot * shape.kvHeads + kv) * sequence;
      return Body{vectorLoop("x", imm(sequence), lanes, [&](const Expr &x) {
        return Body{kir::store(to[i], base + x, load(from[i], base + x))};
      })};
    });
  }

  /// Stores the row at `at` of qkv. `base`: its first element in the cache; of 8 bits, its number.
  Body storeRow(int side, const Expr &base, const Expr &at) const {
    if (quantized)
      return storeRounded(side, base, at);
    return {vectorLoop("x", imm(shape.size), lanes,
                       [&](const Expr &x) { return Body{kir::store(to[side], base + x, load(qkv.buffer, at + x))}; })};
  }

  /// roundCacheBlock of each block of the row at `at` of qkv, to row `row` of the cache.
  Body storeRounded(int side, const Expr &row, const Expr &at) const {
    const Buffer scales = makeBuffer("scale", DType::f32, Storage::stack, blocks());
    const Buffer &kept = to[2 + side];
    auto bits = [&](const Expr &element) {
      return bitcast(DType::u32, cast(DType::f32, load(qkv.buffer, at + element)));
    };
    const Stmt find = serial("b", imm(blocks()), [&](const Expr &b) {
      const Buffer magnitudes = makeBuffer("m", DType::u32, Storage::reg, lanes);
      const Stmt fold = vectorLoop("x", imm(lanes), lanes, [&](const Expr &x) {
        Expr top;
        for (int64_t first = 0; first < quantBlock; first += lanes) {
          const Expr magnitude = binary(BinaryOp::and_, bits(b * quantBlock + first + x), imm(0x7fffffff, DType::u32));
          top = top ? max(top, magnitude) : magnitude;
        }
        return Body{kir::store(magnitudes, x, top)};
      });
      const Stmt keep = bindTo("scale", cacheScale(hreduce(magnitudes, BinaryOp::max)), [&](const Expr &scale) {
        return Body{kir::store(scales, b, scale), kir::store(kept, row * blocks() + b, cast(valueType(kept), scale))};
      });
      return Body{alloc(magnitudes, {fold, keep})};
    });
    const Stmt pack = serial("w", imm(words() / lanes), [&](const Expr &w) {
      return Body{vectorLoop("x", imm(lanes), lanes, [&](const Expr &x) {
        Expr word;
        for (int64_t quarter = 0; quarter < 4; ++quarter) {
          const Expr first = w * lanes + quarter * words();
          const Expr byte = binary(BinaryOp::shl, cacheByte(bits(first + x), load(scales, first / imm(quantBlock))),
                                   imm(8 * quarter, DType::u32));
          word = word ? binary(BinaryOp::or_, word, byte) : byte;
        }
        return Body{kir::store(to[side], row * words() + w * lanes + x, word)};
      })};
    });
    return {alloc(scales, {find, pack})};
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
    const int64_t depth = pairs ? ceilDiv(shape.size, 2) : shape.size;
    queries = makeBuffer("q", pairs ? DType::u32 : group.compute, Storage::stack, depth);
    probs = pairs ? makeBuffer("p", DType::bf16, Storage::stack, roundUp(places.rows, rowLanes)) : scores;
    Body body = {bindTo("cache", places.head(i, h / imm(shape.group())), [&](const Expr &cache) {
      return Body{bindTo("first", shape.firstKey(row), [&](const Expr &first) {
        const Token t{h, i, row, cache, first, first / imm(rowLanes) * rowLanes};
        Body all = {copyQuery(t)};
        for (const Body &part : {scoresOf(t), softmax(t)})
          all.insert(all.end(), part.begin(), part.end());
        return all;
      })};
    })};
    if (pairs)
      body = {alloc(probs, std::move(body))};
    return {alloc(queries, std::move(body))};
  }

  /// A token of a head: it stands in a row of its sequence, whose first key is at `cache` (of 8 bits: is row `cache`),
  /// and sees the rows from `first` on. `begin`: from where scores are computed, so that a key's lane does not depend
  /// on the window.
  struct Token {
    Expr h, i, row, cache, first, begin;
    Expr seen() const { return row + 1; }
  };

  Stmt copyQuery(const Token &t) const {
    auto at = [&](const Expr &) { return qkv.query(imm(0), t.i, t.h); };
    return pairs ? copyPairs(qkv.buffer, at, queries, 0, imm(1), shape.size, lanes)
                 : copyRows(qkv.buffer, at, queries, imm(0), 0, imm(1), shape.size, shape.size, lanes, shape.scale());
  }

  /// Scores of a block of keys at a time. Those after the token's own row are of any value.
  Body scoresOf(const Token &t) const {
    Var block = makeVar("p");
    const Expr p = kir::ref(block), from = t.begin / imm(blockOfKeys());
    const Buffer acc = makeBuffer("dot", group.compute, Storage::reg, blockOfKeys());
    auto everyKey = [&](const auto &body) { return vectorLoop("x", imm(blockOfKeys()), lanes, body); };
    Body body = {everyKey([&](const Expr &x) { return Body{kir::store(acc, x, zero())}; })};
    for (const Stmt &s : products(t, p, acc))
      body.push_back(s);
    body.push_back(everyKey([&](const Expr &x) {
      const Expr dot = load(acc, x), score = pairs && scaleLeft == 1 ? dot * fimm(shape.scale()) : dot;
      return Body{kir::store(scores, p * blockOfKeys() + x, bias.of(score, p * blockOfKeys() - t.row, x))};
    }));
    const Expr end = (t.seen() + (blockOfKeys() - 1)) / imm(blockOfKeys());
    return {loop(LoopKind::serial, block, end - from, {alloc(acc, std::move(body))}, 1, from)};
  }

  int64_t words() const { return shape.size / 4; }
  int64_t blocks() const { return shape.size / quantBlock; }

  /// Neighbours in a row of a cache of 8 bits: those of a quarter from a word on.
  struct Piece {
    Expr quarter, word;
  };
  /// Element x of them, in row `row`.
  Expr dequantized(int side, const Expr &row, const Piece &at, const Expr &x) const {
    const Expr block = (at.quarter * words() + at.word) / imm(quantBlock);
    return cacheElement(load(to[side], row * words() + at.word + x), at.quarter,
                        load(to[2 + side], row * blocks() + block));
  }

  /// Where a key of block p begins. Rows past the cache's end: its last.
  Expr keyAt(const Token &t, const Expr &p, const Expr &inBlock) const {
    return t.cache + min(p * blockOfKeys() + inBlock, imm(places.rows - 1)) * places.size;
  }

  /// products() with a cache of 8 bits.
  Body productsOfBytes(const Token &t, const Expr &p, const Buffer &acc) const {
    auto square = [&](const Expr &key0, const Piece &at) {
      return transposed(
          lanes, group.compute,
          [&](int key, const Expr &x) { return dequantized(0, keyAt(t, p, key0 + int64_t(key)), at, x); },
          [&](int step, const Expr &, const Expr &v) {
            const Expr sum = key0 + lane(), query = load(queries, at.quarter * words() + at.word + int64_t(step));
            return kir::store(acc, sum, kir::fma(query, v, load(acc, sum)));
          });
    };
    return {serial("quarter", imm(4), [&](const Expr &quarter) {
      return Body{serial("w", imm(words() / lanes), [&](const Expr &w) {
        Body out;
        for (int64_t s = 0; s < squares; ++s)
          out.push_back(square(imm(s * lanes), {quarter, w * lanes}));
        return out;
      })};
    })};
  }

  /// The chains over d of the keys of block p.
  Body products(const Token &t, const Expr &p, const Buffer &acc) const {
    if (quantized)
      return productsOfBytes(t, p, acc);
    const int64_t whole = pairs ? shape.size / 2 : shape.size, perStep = pairs ? 2 : 1;
    auto add = [&](const Expr &key0, const Expr &step, const Expr &key) {
      const Expr at = key0 + lane(), sum = load(acc, at), query = load(queries, step);
      return kir::store(acc, at, pairs ? dot(sum, key, query) : kir::fma(query, key, sum));
    };
    auto everySquare = [&](const std::function<Stmt(const Expr &key0)> &make) {
      Body out;
      for (int64_t s = 0; s < squares; ++s)
        out.push_back(make(imm(s * lanes)));
      return out;
    };
    // Steps first ... first + lanes, of which the first `without` have been added.
    auto square = [&](const Expr &key0, const Expr &first, int64_t without) {
      return transposed(
          lanes, pairs ? DType::u32 : group.compute,
          [&](int key, const Expr &x) {
            return stepOf(pairs, to[0], keyAt(t, p, key0 + int64_t(key)) + (first + x) * perStep, 1, false);
          },
          [&](int step, const Expr &, const Expr &v) {
            return step < without ? block({}) : add(key0, first + int64_t(step), v);
          });
    };
    Body out;
    int64_t done = whole / lanes * lanes;
    if (done > 0)
      out.push_back(serial("s", imm(whole / lanes), [&](const Expr &s) {
        return everySquare([&](const Expr &key0) { return square(key0, s * lanes, 0); });
      }));
    if (done > 0 && done < whole) {
      for (const Stmt &s :
           everySquare([&](const Expr &key0) { return square(key0, imm(whole - lanes), lanes - (whole - done)); }))
        out.push_back(s);
      done = whole;
    }
    auto oneByOne = [&](const Expr &step, bool odd) {
      return everySquare([&](const Expr &key0) {
        return vectorLoop("x", imm(lanes), lanes, [&](const Expr &x) {
          return Body{add(key0, step, stepOf(pairs, to[0], keyAt(t, p, key0 + x) + step * perStep, 1, odd))};
        });
      });
    };
    if (done < whole)
      out.push_back(serial("k", imm(whole - done), [&](const Expr &k) { return oneByOne(k + done, false); }));
    if (pairs && shape.size % 2)
      for (const Stmt &s : oneByOne(imm(whole), true))
        out.push_back(s);
    return out;
  }

  /// Turns scores into unnormalised probabilities, and sums the values.
  Body softmax(const Token &t) const {
    const DType type = group.compute;
    const Expr factor = fimm(scaleLeft * log2e, type);
    auto folded = [&](const char *name, BinaryOp op, double start, const auto &element, const auto &body) {
      auto part = [&](const Expr &begin, const Expr &end, bool masked) {
        return FoldPart{begin, end - begin, [=](const Expr &j, const Fold &fold) { return element(j, fold, masked); }};
      };
      std::vector<FoldPart> parts = {part(t.begin, t.seen(), false)};
      if (shape.window) {  // behind the first lanes all keys are seen
        const Expr all = min(t.begin + rowLanes, t.seen());
        parts = {part(t.begin, all, true), part(all, t.seen(), false)};
      }
      return foldParts(name, type, op, start, parts, rowLanes, body);
    };
    auto visible = [&](const Expr &j, const Expr &v, double otherwise, bool masked) {
      return masked ? select(lt(j, t.first), fimm(otherwise, type), v) : v;
    };
    auto maximum = [&](const Expr &j, const Fold &fold, bool masked) {
      return Body{fold(visible(j, load(scores, j), -HUGE_VAL, masked))};
    };
    auto exponentials = [&](const Expr &shift) {
      auto exponential = [&](const Expr &j, const Fold &fold, bool masked) {
        const Expr power = unary(UnaryOp::exp2, kir::fma(load(scores, j), factor, shift));
        return Body{bindTo("e", visible(j, power, 0, masked),
                           [&](const Expr &e) { return Body{fold(e), kir::store(probs, j, e)}; })};
      };
      return Body{folded("sum", BinaryOp::add, 0, exponential, [&](const Expr &sum) {
        return Body{bindTo("inverse", fimm(1, type) / sum, [&](const Expr &inverse) { return output(t, inverse); })};
      })};
    };
    return {folded("max", BinaryOp::max, -HUGE_VAL, maximum, [&](const Expr &most) {
      return Body{bindTo("top", most * factor, [&](const Expr &top) {
        const Stmt subtract = vectorLoop("j", t.seen() - t.begin, rowLanes, [&](const Expr &j) {
          return Body{kir::store(scores, t.begin + j, load(scores, t.begin + j) - most)};
        });
        return Body{ifThen(isHuge(top), {subtract}), bindTo("shift", select(isHuge(top), zero(), -top), exponentials)};
      })};
    })};
  }

  Body output(const Token &t, const Expr &inverse) const {
    // Vectors that end with the row: the next element may belong to another head or lie past the cache.
    Tile tile;
    tile.rows = 1;
    tile.dtype = group.compute;
    tile.lanes = std::min<int>(lanes, 1 << std::countr_zero(uint64_t(shape.size)));
    tile.vecs = int(std::min<int64_t>(8, shape.size / tile.lanes));
    return forPanels(tile, shape.size, [&](const Expr &d0, const Tile &narrow) {
      TileLoop l;
      l.tile = narrow;
      l.pairs = pairs;
      l.begin = t.first;
      l.steps = t.seen();
      if (pairs) {  // a pair of which only one is seen is at either end
        l.sees = [&](int, const Expr &key) {
          return binary(BinaryOp::and_, binary(BinaryOp::le, t.first, key), lt(key, t.seen()));
        };
        l.begin = t.first / imm(2);
        l.beginWhole = (t.first + 1) / imm(2);
        l.steps = max(l.beginWhole, t.seen() / imm(2));
        l.end = (t.seen() + 1) / imm(2);
      }
      l.a = [&](int, const Expr &k) { return pairs ? loadPair(probs, k * 2) : load(probs, k); };
      l.b = [&](int vec, const Expr &k, const Expr &x) {
        auto value = [&](const Expr &key) {
          if (quantized) {
            const Expr d = d0 + int64_t(vec * tile.lanes);
            return dequantized(1, t.cache + key, {d / imm(words()), d % imm(words())}, x);
          }
          return load(to[1], t.cache + key * shape.size + d0 + int64_t(vec * tile.lanes) + x);
        };
        return pairs ? pair(value(k * 2), value(min(k * 2 + 1, imm(places.rows - 1)))) : value(k);
      };
      l.finish = [&](int, int vec, const Expr &x, const Expr &acc) {
        return kir::store(group.outputs[0], (t.i * shape.heads + t.h) * shape.size + d0 + int64_t(vec * tile.lanes) + x,
                          acc * inverse);
      };
      return Body{tileLoop(l)};
    });
  }

  Expr zero() const { return fimm(0, group.compute); }
  int64_t blockOfKeys() const { return squares * lanes; }

  GroupEval &group;
  const Shape shape;
  Packed qkv;
  Bias bias;
  const Places places;
  const bool quantized;  // the cache has 8 bits
  const int lanes;
  bool pairs;
  double scaleLeft;  // the factor by which scores in memory are still to be multiplied
  // Keys, values and, of 8 bits, the scales of both: as they are given, as they become, whether these have one memory,
  // and the elements of a row.
  Buffer from[4], to[4];
  bool stays[4] = {};
  int64_t widths[4] = {};
  Buffer scores, queries;
  Buffer probs;  // the same buffer as scores without pairs
};

bool matches(const Op &fused) { return onlyOp(fused, OpKind::attention_cached); }

void requireWideCache(const Op &op) {
  if (hasQuantizedCache(op))
    throw UserError(ErrorCode::NotBuiltYet, "attention to a cache of 8 bits has no kernel for GPUs",
                    "precision.cache = \"auto\" keeps keys and values as they are computed");
}

Schedule defaults(const Op &fused, const Target &target) {
  const Op &op = *onlyOp(fused, OpKind::attention_cached);
  if (target.isCuda()) {
    requireWideCache(op);
    return cachedSchedule();
  }
  Schedule s;
  s.vec = target.lanes(DType::f32);
  s.pairs = usesPairs(op, 0, target) && !hasQuantizedCache(op);
  return s;
}

// Its one size, `vec`, is the machine's.
std::vector<Schedule> space(const Op &, const Schedule &, const Target &) { return {}; }

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  const Op *op = onlyOp(fused, OpKind::attention_cached);
  GPTC_CHECK(op && (s.vec > 0 || s.threads > 0), "{}", s.str());
  if (s.threads)
    requireWideCache(*op);
  GroupEval group(fused, compute);
  Phases phases = s.threads ? cachedBlocks(group, *op, s) : Phases{Cached(group, *op, s).body(), {}};
  return std::move(phases).lowered(group);
}

bool takesSplit(const Op &fused) {
  const Op *op = onlyOp(fused, OpKind::attention_cached);
  return op && op->operand(0)->type.dim(1) == 1 && op->operand(1)->type.rank() == 3 && !hasQuantizedCache(*op);
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

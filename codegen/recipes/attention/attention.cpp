// attention, forward: softmax(q k^T / sqrt(D)) v without a T x T matrix in memory.
//
//   1. Keys are packed transposed, in panels [T/nr][D][nr], and values by rows. If they are small, each task packs them
//      for its head; else they are packed once per head of keys into a workspace.
//   2. A task takes tiles of mr queries. The scores of a tile against all keys that it may see (mr x T) fit the
//      second-level cache, so softmax needs no rescaling. A soft cap and ALiBi's bias are applied when a tile of scores
//      is stored. With a window or documents only the panels of keys that a row of the tile sees are computed.
//   3. For each row: the maximum, the exponentials (as powers of two) and their sum in 16 lanes, and the log-sum-exp
//      for the backward pass. Dropout comes after the sum. If the maximum is huge (isHuge), it is subtracted first.
//   4. o = (P V) / sum, with P as the broadcast operand of the micro-kernel. A row's chain leaves out keys that a
//      causal mask hides, so their values need not be finite.
//
// bf16 on CPUs that multiply pairs (Schedule::pairs): queries and keys are stored in pairs along d, and values in pairs
// of rows. Probabilities are rounded to bf16 for the product with values, as in FlashAttention; their sum is taken
// before the rounding. Scores are scaled in f32: with ALiBi or a soft cap when they are stored, else by the factor that
// turns them into powers of two. An odd last element is paired with zero.
//
// Every score is one chain of FMAs over d, and every output element one chain over keys from 0. Rows are independent of
// each other. The last tile of queries is moved up until it fits, and stores only its own rows.
//
// With documents every step of P V that only some rows of a tile take has a mask. A row of a document has the same bits
// wherever the document begins, if with pairs at an even row: lanes that begin elsewhere hold the same chains, and
// folding by halves adds the same two lanes then.
#include "codegen/recipes/attention/attention.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace gptc {

using namespace kir;

namespace {

using namespace attention;

class Forward {
public:
  Forward(GroupEval &group, const Op &op, const Schedule &s)
      : group(group), shape(shapeOf(op, 0)), qkv{group.inputs[op.operand(0)->index], shape},
        dropout(group, op, 1, shape), bias(group, op, shape), sight(group, op, shape) {
    tile = {.rows = int(std::min<int64_t>(s.mr, shape.tokens)),
            .vecs = s.nr / s.vec,
            .lanes = s.vec,
            .dtype = group.compute};
    pairs = s.pairs && group.compute == DType::f32 && qkv.buffer->dtype == DType::bf16;
    scaleLeft = pairs && !bias.active() ? shape.scale() : 1;
    depth = pairs ? ceilDiv(shape.size, 2) : shape.size;
    keyPanels = ceilDiv(shape.tokens, nr());
    scoresStride = oddLines(keyPanels * nr(), dtype());
    queriesStride = oddLines(depth, dtype());
    probsStride = pairs ? oddLines(keyPanels * nr(), DType::bf16) : scoresStride;
    auto tileBytes = [&] {
      return tile.rows * ((scoresStride + queriesStride + nr() + 2) * int64_t(sizeOf(dtype())) +
                          (pairs ? probsStride * int64_t(sizeOf(DType::bf16)) : 0));
    };
    while (tile.rows > 1 && tileBytes() > stackBudget)
      --tile.rows;
    keysSize = keyPanels * depth * nr();
    sizePadded = roundUp(shape.size, tile.lanes);
    valuesSize = (pairs ? ceilDiv(shape.tokens, 2) : shape.tokens) * sizePadded;
    tiles = ceilDiv(shape.tokens, tile.rows);
    tilesPerTask = s.qb ? std::clamp<int64_t>(s.qb / tile.rows, 1, tiles) : tiles;
    if (sight.ranged())
      ranges.emplace(tile.rows);
    shared = s.packB || tileBytes() + (keysSize + valuesSize) * int64_t(sizeOf(dtype())) > stackBudget;
  }

  Body body() {
    Body out;
    if (shared) {
      keys = makeBuffer("keys", packed(), Storage::global, shape.batch * shape.kvHeads * keysSize, true);
      values = makeBuffer("values", packed(), Storage::global, shape.batch * shape.kvHeads * valuesSize, true);
      out.push_back(parallel("t", shape.batch * shape.kvHeads, [&](const Expr &t) {
        return pack(t / imm(shape.kvHeads), t % imm(shape.kvHeads), t * keysSize, t * valuesSize);
      }));
    }
    const int64_t chunks = ceilDiv(tiles, tilesPerTask);
    out.push_back(parallel("t", shape.batch * shape.heads * chunks, [&](const Expr &t) {
      Expr head = t / imm(chunks);
      return Body{bindTo("b", head / imm(shape.heads), [&](const Expr &b) {
        return Body{bindTo("h", head % imm(shape.heads), [&](const Expr &h) {
          // Later queries see more keys: start with the longest tasks.
          Expr first = (imm(chunks - 1) - t % imm(chunks)) * tilesPerTask;
          return Body{dropout.withKey(b, [&] { return Body{bias.withSlope(h, [&] { return task(b, h, first); })}; })};
        })};
      })};
    }));
    return out;
  }

  std::vector<Buffer> workspaces() const { return shared ? std::vector<Buffer>{keys, values} : std::vector<Buffer>{}; }

private:
  DType dtype() const { return group.compute; }
  DType packed() const { return pairs ? DType::u32 : dtype(); }
  int64_t nr() const { return tile.cols(); }
  int64_t perStep() const { return pairs ? 2 : 1; }  // keys of a product with values

  /// The keys at positions i0 .. i0+mr of the tile's queries, where the causal mask cuts.
  std::vector<Triangle> ownKeys(const Expr &i0) const {
    if (!pairs)
      return {{.at = i0}};
    Triangle even{.at = i0 / imm(2)}, odd{.at = (i0 + 1) / imm(2), .late = 1};
    if (tile.rows % 2 == 0 && shape.tokens % 2 == 0)
      return {even};
    even.when = binary(BinaryOp::eq, i0 % imm(2), imm(0));
    odd.when = binary(BinaryOp::eq, i0 % imm(2), imm(1));
    return {even, odd};
  }

  Body pack(const Expr &b, const Expr &kvHead, const Expr &keysBase, const Expr &valuesBase) {
    PanelPack p;
    p.from = qkv.buffer;
    p.to = keys;
    p.base = qkv.key(b, imm(0), kvHead);
    p.stepStride = 1;
    p.colStride = shape.width();
    p.fullPanels = imm(shape.tokens / nr());
    p.tailCols = shape.tokens % nr();
    p.width = int(nr());
    p.lanes = tile.lanes;
    p.toBase = keysBase;
    Body out = packTransposed(p, shape.size, pairs);
    auto rowOf = [&](const Expr &i) { return qkv.value(b, i, kvHead); };
    out.push_back(pairs ? copyRowPairs(qkv.buffer, rowOf, values, valuesBase, sizePadded, imm(shape.tokens), shape.size,
                                       sizePadded, tile.lanes)
                        : copyRows(qkv.buffer, rowOf, values, valuesBase, sizePadded, imm(shape.tokens), shape.size,
                                   sizePadded, tile.lanes, 1));
    return out;
  }

  Body task(const Expr &b, const Expr &h, const Expr &firstTile) {
    Expr kvHead = h / imm(shape.group());
    Expr keysBase = imm(0), valuesBase = imm(0);
    Body body;
    if (shared) {
      keysBase = (b * shape.kvHeads + kvHead) * keysSize;
      valuesBase = (b * shape.kvHeads + kvHead) * valuesSize;
    } else {
      keys = makeBuffer("keys", packed(), Storage::stack, keysSize);
      values = makeBuffer("values", packed(), Storage::stack, valuesSize);
      body = pack(b, kvHead, keysBase, valuesBase);
    }
    queries = makeBuffer("q", packed(), Storage::stack, tile.rows * queriesStride);
    scores = makeBuffer("s", dtype(), Storage::stack, tile.rows * scoresStride);
    probs = pairs ? makeBuffer("p", DType::bf16, Storage::stack, tile.rows * probsStride) : scores;
    maxima = makeBuffer("max", dtype(), Storage::stack, tile.rows);
    sums = makeBuffer("sum", dtype(), Storage::stack, tile.rows);
    result = makeBuffer("c", dtype(), Storage::stack, tile.rows * nr());
    Expr count = tiles % tilesPerTask ? min(imm(tilesPerTask), imm(tiles) - firstTile) : imm(tilesPerTask);
    body.push_back(serial("tile", count, [&](const Expr &t) {
      Expr wanted = (firstTile + t) * int64_t(tile.rows);
      return Body{bindTo("i0", min(wanted, imm(shape.tokens - tile.rows)), [&](const Expr &i0) {
        return Body{bindTo("own", wanted - i0, [&](const Expr &own) {
          Body body = tileBody(b, h, i0, own, keysBase, valuesBase);
          if (!sight.ranged())
            return body;
          return Body{ranges->within([&](const Expr &r) { return sight.firstKey(b, i0 + r); },
                                     [&](const Expr &r) { return sight.endOfKeys(b, i0 + r); }, std::move(body))};
        })};
      })};
    }));
    for (const Buffer &s : {queries, scores, maxima, sums, result})
      body = {alloc(s, std::move(body))};
    if (pairs)
      body = {alloc(probs, std::move(body))};
    if (!shared)
      body = {alloc(keys, {alloc(values, std::move(body))})};
    return body;
  }

  /// The tile of queries i0 .. i0+mr. Its rows before `own` belong to the previous tile and are not stored.
  Body tileBody(const Expr &b, const Expr &h, const Expr &i0, const Expr &own, const Expr &keysBase,
                const Expr &valuesBase) {
    const int64_t rows = tile.rows;
    Expr panels = shape.causal ? (i0 + (rows + nr() - 1)) / imm(nr()) : imm(keyPanels);
    if (sight.ranged() && !shape.causal)
      panels = (sight.endOfKeys(b, i0 + (rows - 1)) + (nr() - 1)) / imm(nr());
    const Expr begin = firstOfTile(b, i0), firstPanel = begin / imm(nr());
    Body out;
    auto queryOf = [&](const Expr &i) { return qkv.query(b, i0 + i, h); };
    out.push_back(pairs ? copyPairs(qkv.buffer, queryOf, queries, queriesStride, imm(rows), shape.size, tile.lanes)
                        : copyRows(qkv.buffer, queryOf, queries, imm(0), queriesStride, imm(rows), shape.size,
                                   shape.size, tile.lanes, shape.scale()));
    auto eachPanel = [&](const std::function<Body(const Expr &)> &body) {
      if (!sight.varies())
        return serial("p", panels, body);
      Var p = makeVar("p");
      return loop(LoopKind::serial, p, panels - firstPanel, body(kir::ref(p)), 1, firstPanel);
    };
    out.push_back(eachPanel([&](const Expr &p) {
      TileLoop t;
      t.tile = tile;
      t.steps = imm(depth);
      t.pairs = pairs;
      t.a = [&](int row, const Expr &k) { return load(queries, k + row * queriesStride); };
      t.b = [&](int vec, const Expr &k, const Expr &j) {
        return load(keys, keysBase + p * (depth * nr()) + k * nr() + int64_t(vec * tile.lanes) + j);
      };
      t.finish = [&](int row, int vec, const Expr &j, const Expr &acc) {
        Expr ahead = p * nr() - i0 + int64_t(vec * tile.lanes - row);
        Expr score = pairs && scaleLeft == 1 ? acc * fimm(shape.scale()) : acc;
        return store(scores, p * nr() + (row * scoresStride + vec * tile.lanes) + j, bias.of(score, ahead, j));
      };
      return Body{tileLoop(t)};
    }));
    out.push_back(serial("i", imm(rows), [&](const Expr &i) {
      // Rows of queries are far apart: prefetch those of the next tile while this one computes.
      Body body = fetchRow(qkv.buffer, qkv.query(b, min(i0 + i + rows, imm(shape.tokens - 1)), h), shape.size);
      for (const Stmt &s : softmaxRow(b, h, i0, i, panels))
        body.push_back(s);
      return body;
    }));
    for (const Stmt &s : statistics(b, h, i0, own))
      out.push_back(s);
    for (const Stmt &s : forPanels(tile, sizePadded, [&](const Expr &d0, const Tile &narrow) {
           return outputs(b, h, i0, own, valuesBase, d0, narrow);
         }))
      out.push_back(s);
    return out;
  }

  /// The first key from which the scores of a tile are computed: the start of a panel, at or before the first key that
  /// its first row sees, and at a multiple of the lanes, so that a key's lane in a row's sums does not depend on tiles.
  Expr firstOfTile(const Expr &b, const Expr &i0) const {
    const int64_t step = std::lcm<int64_t>(nr(), 2 * rowLanes);
    return sight.varies() ? sight.firstKey(b, i0) / imm(step) * step : imm(0);
  }

  /// Turns a row of scores into unnormalised probabilities, 0 for keys that are masked. Rows end with a panel, so that
  /// all rows of a tile run the same vectors. Keys that all rows see need no mask.
  Body softmaxRow(const Expr &b, const Expr &h, const Expr &i0, const Expr &i, const Expr &panels) {
    Expr query = i0 + i, base = i * scoresStride, extent = panels * nr(), begin = firstOfTile(b, i0);
    constexpr int most = 2 * rowLanes;
    auto parts = [&](const std::function<Body(const Expr &, const Fold &, bool)> &element) {
      auto part = [&](const Expr &begin, const Expr &count, bool masked) {
        return FoldPart{begin, count, [=](const Expr &j, const Fold &fold) { return element(j, fold, masked); }};
      };
      if (!shape.causal && shape.tokens % nr() == 0 && !sight.varies())
        return std::vector{part(imm(0), extent, false)};
      Expr seen = sight.endOfKeys(b, i0) / imm(most) * most;
      if (sight.varies()) {  // the last row is the last to see its first key
        Expr all = min(seen, (sight.firstKey(b, i0 + (tile.rows - 1)) + (most - 1)) / imm(most) * most);
        return std::vector{part(begin, all - begin, true), part(all, seen - all, false),
                           part(seen, extent - seen, true)};
      }
      return std::vector{part(imm(0), seen, false), part(seen, extent - seen, true)};
    };
    Expr end = shape.causal ? query + 1 : imm(shape.tokens);
    auto visible = [&](const Expr &j, const Expr &v, double otherwise, bool masked) {
      const Expr seen = sight.ranged() ? ranges->has(i, j) : shape.withWindow(lt(j, end), query, j);
      return masked ? select(seen, v, fimm(otherwise, dtype())) : v;
    };
    Expr factor = fimm(scaleLeft * log2e, dtype());
    auto maximum = parts([&](const Expr &j, const Fold &fold, bool masked) {
      return Body{fold(visible(j, load(scores, base + j), -HUGE_VAL, masked))};
    });
    auto exponentials = [&](const Expr &zero) {
      auto sum = parts([&](const Expr &j, const Fold &fold, bool masked) {
        Expr power = unary(UnaryOp::exp2, fma(load(scores, base + j), factor, zero));
        return Body{bindTo("e", visible(j, power, 0, masked), [&](const Expr &e) {
          Expr kept = dropout.active() ? select(dropout.keep(h, query, j), e, fimm(0, dtype())) : e;
          return Body{fold(e), store(probs, i * probsStride + j, kept)};
        })};
      });
      return Body{foldParts("sum", dtype(), BinaryOp::add, 0, sum, rowLanes,
                            [&](const Expr &sum) { return Body{store(sums, i, sum)}; })};
    };
    return {foldParts("max", dtype(), BinaryOp::max, -HUGE_VAL, maximum, most, [&](const Expr &most) {
      return Body{store(maxima, i, most), bindTo("top", most * factor, [&](const Expr &top) {
                    Expr from = sight.varies() ? base + begin : base;
                    Stmt subtract = vectorLoop("j", extent - begin, tile.lanes, [&](const Expr &j) {
                      return Body{store(scores, from + j, load(scores, from + j) - most)};
                    });
                    return Body{ifThen(isHuge(top), {subtract}),
                                bindTo("zero", select(isHuge(top), fimm(0, dtype()), -top), exponentials)};
                  })};
    })};
  }

  /// For all rows of a tile: stores the log-sum-exp of its own rows and computes the factors of the outputs.
  Body statistics(const Expr &b, const Expr &h, const Expr &i0, const Expr &own) {
    Expr lseAt = (b * shape.heads + h) * shape.tokens + i0 + own;
    Stmt lse = vectorLoop("i", imm(tile.rows) - own, rowLanes, [&](const Expr &i) {
      Expr most = load(maxima, own + i), log = unary(UnaryOp::log, load(sums, own + i));
      if (scaleLeft == 1)
        return Body{store(group.outputs[1], lseAt + i, most + log)};
      // For a huge maximum, round as the backward pass rounds scores, so that the two cancel.
      Expr scale = fimm(scaleLeft, dtype()), huge = isHuge(most * fimm(scaleLeft * log2e, dtype()));
      return Body{store(group.outputs[1], lseAt + i, select(huge, most * scale + log, fma(most, scale, log)))};
    });
    Stmt inverse = vectorLoop("i", imm(tile.rows), rowLanes, [&](const Expr &i) {
      Expr one = fimm(dropout.active() ? dropout.keptScale() : 1.0, dtype());
      return Body{store(sums, i, one / load(sums, i))};
    });
    return {lse, inverse};
  }

  /// The steps over keys of a tile with a window. At its beginning rows see different keys; in between all see all;
  /// then come the keys of the tile's own positions, for which triangles serve. If the window is no longer than that,
  /// every step is masked.
  void maskWindow(TileLoop &t, const Expr &i0) const {
    auto stepsUp = [&](const Expr &key) { return pairs ? (key + 1) / imm(2) : key; };
    t.begin = shape.firstKey(i0) / imm(perStep());
    t.sees = [this, i0](int row, const Expr &key) {
      const Expr query = i0 + int64_t(row);
      return shape.withWindow(lt(key, query + 1), query, key);
    };
    if (shape.window > tile.rows + 1) {
      t.beginWhole = stepsUp(shape.firstKey(i0 + (tile.rows - 1)));
      return;
    }
    t.triangles.clear();
    t.beginWhole = t.steps = stepsUp(i0 + tile.rows);
  }

  Body outputs(const Expr &b, const Expr &h, const Expr &i0, const Expr &own, const Expr &valuesBase, const Expr &d0,
               const Tile &narrow) {
    TileLoop t;
    t.tile = narrow;
    // Keys before the tile's first query are seen by all of its rows.
    t.steps = shape.causal ? (i0 + (perStep() - 1)) / imm(perStep()) : imm(ceilDiv(shape.tokens, perStep()));
    if (shape.causal)
      t.triangles = ownKeys(i0);
    t.pairs = pairs;
    if (sight.ranged()) {
      t.triangles.clear();
      ranges->steps(t, imm(0), imm(shape.tokens));
    } else if (shape.window) {
      maskWindow(t, i0);
    }
    t.a = [&](int row, const Expr &k) {
      return pairs ? loadPair(probs, k * 2 + row * probsStride) : load(probs, k + row * probsStride);
    };
    t.b = [&](int vec, const Expr &k, const Expr &j) {
      return load(values, valuesBase + k * sizePadded + d0 + int64_t(vec * tile.lanes) + j);
    };
    t.finish = [&](int row, int vec, const Expr &j, const Expr &acc) {
      return store(result, j + int64_t(row * nr() + vec * tile.lanes), acc);
    };
    Expr cols = shape.size % nr() ? min(imm(nr()), imm(shape.size) - d0) : imm(nr());
    return {tileLoop(t), serial("i", imm(tile.rows) - own, [&](const Expr &i) {
              return Body{vectorLoop("j", cols, tile.lanes, [&](const Expr &j) {
                Expr to = ((b * shape.tokens + i0 + own + i) * shape.heads + h) * shape.size + d0 + j;
                Expr v = load(result, (own + i) * nr() + j) * load(sums, own + i);
                return Body{store(group.outputs[0], to, v)};
              })};
            })};
  }

  GroupEval &group;
  const Shape shape;
  Packed qkv;
  Dropout dropout;
  Bias bias;
  const Sight sight;
  std::optional<RowRanges> ranges;  // of the queries of a tile, if they are ranged
  Tile tile;
  bool pairs;
  double scaleLeft;  // the factor by which scores in memory are still to be multiplied; 1 with ALiBi or a soft cap
  int64_t depth;     // steps of a score
  int64_t keyPanels, keysSize, sizePadded, valuesSize, tiles, tilesPerTask, scoresStride, queriesStride, probsStride;
  bool shared;  // keys and values are packed once per head of keys, into workspaces
  Buffer keys, values, queries, scores, result;
  Buffer probs;         // the same buffer as scores without pairs
  Buffer maxima, sums;  // one per row of a tile; sums become the factors of the outputs
};

bool matches(const Op &fused) { return onlyOp(fused, OpKind::attention); }

Schedule defaults(const Op &fused, const Target &target) {
  const Op &op = *onlyOp(fused, OpKind::attention);
  Shape shape = shapeOf(op, 0);
  if (target.isCuda())
    return cudaSchedule(op, target);
  Schedule s;
  s.pairs = usesPairs(op, 0, target);
  Tile tile = queryTile(target, shape, s.pairs);
  s.vec = tile.lanes;
  s.mr = tile.rows;
  s.nr = tile.cols();
  const int64_t heads = shape.batch * shape.heads, perHead = 2 * shape.tokens * roundUp(shape.size, tile.lanes) * 4;
  const int64_t room = std::min(target.l2Bytes, stackBudget);
  if (heads < 4 * int64_t(target.threads) || perHead > room) {
    const int64_t chunks = ceilDiv(8 * int64_t(target.threads), heads);
    s.qb = roundUp(std::max<int64_t>(ceilDiv(shape.tokens, chunks), 4 * tile.rows), tile.rows);
    s.packB = ceilDiv(shape.tokens, s.qb) > 1 || perHead > room;
  }
  return s;
}

std::vector<Schedule> space(const Op &fused, const Schedule &base, const Target &target) {
  const Op &op = *onlyOp(fused, OpKind::attention);
  if (target.isCuda())
    return attention::cudaSpace(op, base, target);
  const Shape shape = shapeOf(op, 0);
  const int most = registerTile(target, DType::f32, base.pairs).rows;
  std::vector<Schedule> all;
  for (int rows : {most, most - 1, most - 2, most - 4, most / 2, base.mr})
    for (int64_t tilesPerTask : {0, 4, 8, 16, 32})  // 0: all of a head
      for (bool packB : {false, true}) {
        Schedule s = base;
        s.mr = std::max(1, rows);
        s.qb = tilesPerTask * s.mr;
        s.packB = packB;
        if (s.qb < shape.tokens + s.mr)
          all.push_back(s);
      }
  return all;
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  const Op *op = onlyOp(fused, OpKind::attention);
  GPTC_CHECK(op, "{}", s.str());
  GroupEval group(fused, compute);
  if (s.threads)
    return forwardBlocks(group, *op, s).lowered(group);
  GPTC_CHECK(s.vec > 0 && s.mr > 0 && s.nr > 0 && s.nr % s.vec == 0, "{}", s.str());
  Forward forward(group, *op, s);
  return Phases{forward.body(), forward.workspaces()}.lowered(group);
}

}  // namespace

const Recipe &attentionRecipe() {
  static const Recipe recipe{RecipeKind::attention, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

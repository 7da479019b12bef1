// attention_grad: probabilities are recomputed from the log-sum-exp, block by block (Dao et al. 2022, "FlashAttention",
// algorithm 4).
//
//   A task takes one head of keys of one sequence, so that one task computes each sum. If those are few (task = 1), a
//   task takes one head of queries.
//   1. delta_i = do_i . o_i for the task's heads; dq starts at zero.
//   2. For each block of kb keys: k and v are packed transposed; dk and dv start at zero. For each head of queries of
//      the group, and each block of qb queries that sees a key of the block (if causal, from the block's first key on):
//        S = q k^T (capped, and ALiBi's bias), P = exp(S - lse) as powers of two;  dP = do v^T, dS = P (dP - delta)
//        dv += P^T do;  dk += dS^T q;  dq += dS k
//      by tiles. P and dS are [qb x kb] and fit the second-level cache. If lse is huge (isHuge), S - lse is computed
//      before the step to powers of two, and limited to at most 0. Blocks of queries begin where blocks of keys begin,
//      and tiles are square there, so a causal mask cuts triangles of tiles on the diagonal. No chain contains a masked
//      element, so those need not be finite. With a window or documents blocks, tiles and panels that they hide are
//      left out, and where these begin or end, each step of a chain has a mask.
//   3. dk and dv of the block are stored. Heads that share keys are added to a total first, in order. If each head is a
//      task, its dk and dv go to a workspace, and tasks of a second phase add them in the same order.
//
// bf16 on CPUs that multiply pairs (Schedule::pairs): pairs run along the dimension that a product sums over: q, do, k
// and v along d for S and dP; q, do, P and dS along queries for dk and dv; k and dS along keys for dq. P and dS are
// rounded to bf16. Operands are not scaled, but S, dk and dq are.
//
// Sums are always f32. dq grows from block to block; if the gradient is narrower than f32, dq grows in a workspace.
//
// Every element of dq is one chain over keys. Every element of dk and dv is one chain over queries for each head, and
// the heads are added in order. So the bits depend neither on the sizes of blocks nor on the tasks. Without pairs, q is
// scaled by 1/sqrt(D) when it is copied, which also scales dk; k is scaled for dq.
#include "codegen/recipes/attention/attention.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

using namespace kir;

namespace {

using namespace attention;

class Backward {
public:
  Backward(GroupEval &group, const Op &op, const Schedule &s)
      : group(group), shape(shapeOf(op, 1)), qkv{group.inputs[op.operand(1)->index], shape},
        dqkv{group.outputs[0], shape}, dropout(group, op, 4, shape), bias(group, op, shape), sight(group, op, shape),
        dout(input(op, 0)), out(input(op, 2)), lse(input(op, 3)) {
    tile = {.rows = int(std::min<int64_t>(s.mr, shape.tokens)),
            .vecs = s.nr / s.vec,
            .lanes = s.vec,
            .dtype = group.compute};
    pairs = s.pairs && group.compute == DType::f32 && qkv.buffer->dtype == DType::bf16 && dout->dtype == DType::bf16;
    if (pairs)
      tile.rows = int(roundUp(tile.rows, 2));
    byHeads = s.task == 1 && shape.group() > 1;
    sizePadded = roundUp(shape.size, tile.lanes);
    keysPerBlock = std::min(roundUp(s.kb, nr()), roundUp(shape.tokens, nr()));
    queriesPerBlock = std::min(roundUp(s.qb, tile.rows), roundUp(shape.tokens, tile.rows));
    while (stackElements() * sizeOf(dtype()) > stackBudget && (keysPerBlock > nr() || queriesPerBlock > tile.rows))
      if (keysPerBlock > nr())
        keysPerBlock = roundUp(keysPerBlock / 2, nr());
      else
        queriesPerBlock = roundUp(queriesPerBlock / 2, tile.rows);
    keyBlocks = ceilDiv(shape.tokens, keysPerBlock);
    for (int64_t first = 0; first < shape.tokens; first += shape.causal ? keysPerBlock : shape.tokens) {
      partBlocks |= (shape.tokens - first) % queriesPerBlock != 0;
      partTiles |= (shape.tokens - first) % tile.rows != 0;
    }
    delta = makeBuffer("delta", dtype(), Storage::global, shape.batch * shape.heads * shape.tokens, true);
    used = {delta};
    if (dqkv.buffer->dtype != dtype())
      used.push_back(dQueries = makeBuffer("dq", dtype(), Storage::global, delta->size * sizePadded, true));
    if (byHeads)
      for (auto [buffer, name] : {std::pair(&headKeys, "dkh"), {&headValues, "dvh"}})
        used.push_back(*buffer = makeBuffer(name, dtype(), Storage::global, delta->size * sizePadded, true));
  }

  Body kernel() {
    const int64_t each = byHeads ? shape.heads : shape.kvHeads;
    Body body = {parallel("t", shape.batch * each, [&](const Expr &t) {
      return Body{bindTo("b", t / imm(each), [&](const Expr &b) {
        return Body{bindTo("head", t % imm(each), [&](const Expr &head) {
          Expr kv = byHeads ? head / imm(shape.group()) : head, first = byHeads ? head : head * shape.group();
          return Body{dropout.withKey(b, [&] { return task(b, kv, first); })};
        })};
      })};
    })};
    if (byHeads)
      body.push_back(addHeads());
    return body;
  }

  std::vector<Buffer> workspaces() const { return used; }

private:
  /// Rows of dk and dv. Tiles of keys may reach past the block; their rows there are not stored.
  int64_t keyRows() const { return roundUp(keysPerBlock, tile.rows); }
  /// Rows of copied keys. A triangle may reach past the block too, and multiplies zeros there.
  int64_t copiedKeys() const { return keysPerBlock + (shape.causal ? tile.rows : 0); }
  /// Elements between rows of P and dS.
  int64_t stride() const { return oddLines(keyRows(), dtype()); }
  /// Elements between rows of the second copy of dS, unpaired rows of bf16; only with pairs.
  int64_t rowStride() const { return oddLines(keyRows(), DType::bf16); }
  /// Steps of a product over d; leftStride() is the number of elements between rows of its left operand.
  int64_t depth() const { return pairs ? ceilDiv(shape.size, 2) : shape.size; }
  int64_t leftStride() const { return pairs ? sizePadded / 2 : sizePadded; }
  int64_t perStep() const { return pairs ? 2 : 1; }
  DType packed() const { return pairs ? DType::u32 : dtype(); }
  int64_t stackElements() const {
    const int64_t totals =
        (addsHeads() ? 2 * keysPerBlock * sizePadded : 0) + (shape.softcap != 0 ? tile.rows * nr() : 0);
    if (pairs)
      return 2 * keysPerBlock * depth() + (copiedKeys() / 2 + 2 * keyRows() + 2 * queriesPerBlock) * sizePadded +
             queriesPerBlock * stride() + queriesPerBlock * rowStride() / 2 + 2 * tile.rows * nr() + totals;
    return 2 * keysPerBlock * shape.size + (copiedKeys() + 2 * keyRows() + 2 * queriesPerBlock) * sizePadded +
           2 * queriesPerBlock * stride() + 2 * tile.rows * nr() + totals;
  }
  int64_t headsPerTask() const { return byHeads ? 1 : shape.group(); }
  /// Whether a task adds dk and dv of several heads.
  bool addsHeads() const { return headsPerTask() > 1; }
  Expr perRow(const Expr &b, const Expr &h, const Expr &i) const { return (b * shape.heads + h) * shape.tokens + i; }

  Buffer input(const Op &op, unsigned i) const { return group.inputs[op.operand(i)->index]; }
  DType dtype() const { return group.compute; }
  int64_t nr() const { return tile.cols(); }
  Buffer stack(const char *name, int64_t size, DType type) {
    locals.push_back(makeBuffer(name, type, Storage::stack, size));
    return locals.back();
  }
  Expr outAt(const Expr &b, const Expr &i, const Expr &h) const {
    return ((b * shape.tokens + i) * shape.heads + h) * shape.size;
  }
  Stmt fill(const Buffer &to, const Expr &base, const Expr &count) {
    Expr zero = to->dtype == DType::u32 ? imm(0, DType::u32) : fimm(0, valueType(to));
    return vectorLoop("x", count, tile.lanes, [&](const Expr &x) { return Body{store(to, base + x, zero)}; });
  }
  /// The buffer in which dq grows; queryGrad() is the offset of a row in it.
  const Buffer &queryGrads() const { return dQueries ? dQueries : dqkv.buffer; }
  Expr queryGrad(const Expr &b, const Expr &i, const Expr &h) const {
    return dQueries ? perRow(b, h, i) * sizePadded : dqkv.query(b, i, h);
  }

  /// A task: headsPerTask() heads of queries from `firstHead` on, which share the head `kv` of keys.
  Body task(const Expr &b, const Expr &kv, const Expr &firstHead) {
    keysT = stack("kt", keysPerBlock * depth(), packed());
    valuesT = stack("vt", keysPerBlock * depth(), packed());
    keys = stack("k", copiedKeys() / perStep() * sizePadded, packed());
    dKeys = stack("dk", keyRows() * sizePadded, dtype());
    dValues = stack("dv", keyRows() * sizePadded, dtype());
    if (addsHeads()) {
      totalKeys = stack("dks", keysPerBlock * sizePadded, dtype());
      totalValues = stack("dvs", keysPerBlock * sizePadded, dtype());
    }
    queries = leftQueries = stack("q", queriesPerBlock / perStep() * sizePadded, packed());
    douts = leftDouts = stack("do", queriesPerBlock / perStep() * sizePadded, packed());
    probs = stack("p", queriesPerBlock / perStep() * stride(), packed());
    dScores = dScoreRows = stack("ds", queriesPerBlock / perStep() * stride(), packed());
    if (pairs) {
      leftQueries = stack("lq", queriesPerBlock * leftStride(), packed());
      leftDouts = stack("ldo", queriesPerBlock * leftStride(), packed());
      dScoreRows = stack("dsr", queriesPerBlock * rowStride(), DType::bf16);
    }
    score = stack("s", tile.rows * nr(), dtype());
    if (shape.softcap != 0)
      derivative = stack("dc", tile.rows * nr(), dtype());
    dProb = stack("dp", tile.rows * nr(), dtype());

    Body body = {serial("g", imm(headsPerTask()), [&](const Expr &g) { return prepare(b, firstHead + g); }),
                 fill(probs, imm(0), imm(probs->size)), fill(dScores, imm(0), imm(dScores->size))};
    if (pairs)
      body.push_back(fill(dScoreRows, imm(0), imm(dScoreRows->size)));
    const int64_t copied = ceilDiv(std::min(keysPerBlock, shape.tokens), perStep()) * sizePadded;
    body.push_back(fill(keys, imm(copied), imm(keys->size - copied)));
    body.push_back(serial("jb", imm(keyBlocks), [&](const Expr &jb) {
      Expr j0 = jb * keysPerBlock;
      Expr count = shape.tokens % keysPerBlock ? min(imm(keysPerBlock), imm(shape.tokens) - j0) : imm(keysPerBlock);
      return Body{bindTo("keys", count, [&](const Expr &count) { return keyBlock(b, kv, firstHead, jb, j0, count); })};
    }));
    if (dQueries)
      body.push_back(
          serial("g", imm(headsPerTask()), [&](const Expr &g) { return storeQueryGrads(b, firstHead + g); }));
    for (const Buffer &s : locals)
      body = {alloc(s, std::move(body))};
    return body;
  }

  /// Computes delta of a head and sets its dq to zero.
  Body prepare(const Expr &b, const Expr &h) {
    return {serial("i", imm(shape.tokens), [&](const Expr &i) {
      Expr at = outAt(b, i, h);
      return Body{
          foldRow(
              "delta", dtype(), BinaryOp::add, 0, imm(shape.size), rowLanes,
              [&](const Expr &x, const Fold &fold) { return Body{fold(load(dout, at + x) * load(out, at + x))}; },
              [&](const Expr &sum) { return Body{store(delta, perRow(b, h, i), sum)}; }),
          fill(queryGrads(), queryGrad(b, i, h), imm(shape.size))};
    })};
  }

  Body storeQueryGrads(const Expr &b, const Expr &head) {
    return {bindTo("h", head, [&](const Expr &h) {
      return Body{serial("i", imm(shape.tokens), [&](const Expr &i) {
        return Body{vectorLoop("x", imm(shape.size), tile.lanes, [&](const Expr &x) {
          return Body{store(dqkv.buffer, dqkv.query(b, i, h) + x, scaledLate(load(dQueries, queryGrad(b, i, h) + x)))};
        })};
      })};
    })};
  }
  /// `e` times 1/sqrt(D) with pairs, whose operands are not scaled.
  Expr scaledLate(const Expr &e) const { return pairs ? e * fimm(shape.scale()) : e; }

  /// each(j, x) for the elements x of `count` rows j of dk and dv.
  Stmt eachGradient(const Expr &count, const std::function<Body(const Expr &, const Expr &)> &each) {
    return serial("j", count, [&](const Expr &j) {
      return Body{vectorLoop("x", imm(shape.size), tile.lanes, [&](const Expr &x) { return each(j, x); })};
    });
  }
  Body storeKeyGrads(const Expr &b, const Expr &kv, const Expr &j, const Expr &x, const Expr &dk, const Expr &dv) {
    return {store(dqkv.buffer, dqkv.key(b, j, kv) + x, scaledLate(dk)),
            store(dqkv.buffer, dqkv.value(b, j, kv) + x, dv)};
  }

  /// The second phase: adds dk and dv of the heads that share keys, from the workspaces.
  Stmt addHeads() {
    const int64_t rows = 16, blocks = ceilDiv(shape.tokens, rows);
    return parallel("t", shape.batch * shape.kvHeads * blocks, [&](const Expr &t) {
      return Body{bindTo("b", t / imm(shape.kvHeads * blocks), [&](const Expr &b) {
        return Body{bindTo("kv", t / imm(blocks) % imm(shape.kvHeads), [&](const Expr &kv) {
          Expr j0 = t % imm(blocks) * rows;
          return Body{eachGradient(min(imm(rows), imm(shape.tokens) - j0), [&](const Expr &j, const Expr &x) {
            Expr dk = fimm(0, dtype()), dv = dk;
            for (int64_t g = 0; g < shape.group(); ++g) {
              Expr at = perRow(b, kv * shape.group() + g, j0 + j) * sizePadded + x;
              dk = dk + load(headKeys, at), dv = dv + load(headValues, at);
            }
            return storeKeyGrads(b, kv, j0 + j, x, dk, dv);
          })};
        })};
      })};
    });
  }

  Body keyBlock(const Expr &b, const Expr &kv, const Expr &firstHead, const Expr &jb, const Expr &j0,
                const Expr &count) {
    Body out;
    auto pack = [&](const Expr &base, const Buffer &to) {
      PanelPack p;
      p.from = qkv.buffer;
      p.to = to;
      p.base = base;
      p.colStride = shape.width();
      p.fullPanels = count / imm(nr());
      p.tailCols = shape.tokens % nr();
      p.hasTail = keyBlocks > 1 ? binary(BinaryOp::eq, jb, imm(keyBlocks - 1)) : nullptr;
      p.width = int(nr());
      p.lanes = tile.lanes;
      for (const Stmt &s : packTransposed(p, shape.size, pairs))
        out.push_back(s);
    };
    pack(qkv.key(b, j0, kv), keysT);
    pack(qkv.value(b, j0, kv), valuesT);
    auto keyOf = [&](const Expr &j) { return qkv.key(b, j0 + j, kv); };
    out.push_back(
        pairs ? copyRowPairs(qkv.buffer, keyOf, keys, imm(0), sizePadded, count, shape.size, sizePadded, tile.lanes)
              : copyRows(qkv.buffer, keyOf, keys, imm(0), sizePadded, count, shape.size, sizePadded, tile.lanes,
                         shape.scale()));
    if (addsHeads())
      for (const Buffer &total : {totalKeys, totalValues})
        out.push_back(fill(total, imm(0), imm(total->size)));
    Expr firstQuery = sight.firstQuery(b, j0);
    if (sight.ranged() && !shape.causal)  // tiles end with the last query if blocks lie where they do without documents
      firstQuery = firstQuery / imm(queriesPerBlock) * queriesPerBlock;
    auto queryBlocksOf = [&](const Expr &h) {
      Expr blocks = (imm(shape.tokens + queriesPerBlock - 1) - firstQuery) / imm(queriesPerBlock);
      if (sight.varies())
        blocks = (sight.endOfQueries(b, j0 + count + -1) + (queriesPerBlock - 1) - firstQuery) / imm(queriesPerBlock);
      return serial("ib", blocks, [&](const Expr &ib) {
        return Body{bindTo("i0", firstQuery + ib * queriesPerBlock, [&](const Expr &i0) {
          Expr rows = partBlocks ? min(imm(queriesPerBlock), imm(shape.tokens) - i0) : imm(queriesPerBlock);
          return Body{bindTo("queries", rows, [&](const Expr &rows) {
            return Body{bias.withSlope(h, [&] { return queryBlock(b, h, j0, count, i0, rows); })};
          })};
        })};
      });
    };
    out.push_back(serial("g", imm(headsPerTask()), [&](const Expr &g) {
      return Body{bindTo("h", firstHead + g, [&](const Expr &h) {
        return Body{fill(dKeys, imm(0), imm(dKeys->size)), fill(dValues, imm(0), imm(dValues->size)), queryBlocksOf(h),
                    eachGradient(count, [&](const Expr &j, const Expr &x) {
                      Expr at = j * sizePadded + x, dk = load(dKeys, at), dv = load(dValues, at);
                      if (addsHeads())
                        return Body{store(totalKeys, at, load(totalKeys, at) + dk),
                                    store(totalValues, at, load(totalValues, at) + dv)};
                      if (!byHeads)
                        return storeKeyGrads(b, kv, j0 + j, x, dk, dv);
                      Expr to = perRow(b, h, j0 + j) * sizePadded + x;
                      return Body{store(headKeys, to, dk), store(headValues, to, dv)};
                    })};
      })};
    }));
    if (addsHeads())
      out.push_back(eachGradient(count, [&](const Expr &j, const Expr &x) {
        Expr at = j * sizePadded + x;
        return storeKeyGrads(b, kv, j0 + j, x, load(totalKeys, at), load(totalValues, at));
      }));
    return out;
  }

  /// A block of queries and a block of keys.
  struct Meeting {
    Expr b, h;
    Expr j0, count;     // the first key, and the number of keys
    Expr i0, rows;      // the same of queries
    Expr tiles, ahead;  // tiles of queries; i0 - j0, a multiple of tile.rows if causal
  };

  Body queryBlock(const Expr &b, const Expr &h, const Expr &j0, const Expr &count, const Expr &i0, const Expr &rows) {
    const Meeting m{b, h, j0, count, i0, rows, (rows + (tile.rows - 1)) / imm(tile.rows), i0 - j0};
    Body out = copyQueries(m);
    out.push_back(allScores(m));
    out.push_back(addToKeyGrads(m));
    out.push_back(addToQueryGrads(m));
    return out;
  }

  /// Copies queries and do to the layouts that the products read.
  Body copyQueries(const Meeting &m) {
    auto queryOf = [&](const Expr &i) { return qkv.query(m.b, m.i0 + i, m.h); };
    auto doutOf = [&](const Expr &i) { return outAt(m.b, m.i0 + i, m.h); };
    Body out;
    if (pairs)
      out = {copyPairs(qkv.buffer, queryOf, leftQueries, leftStride(), m.rows, shape.size, tile.lanes),
             copyPairs(dout, doutOf, leftDouts, leftStride(), m.rows, shape.size, tile.lanes),
             copyRowPairs(qkv.buffer, queryOf, queries, imm(0), sizePadded, m.rows, shape.size, sizePadded, tile.lanes),
             copyRowPairs(dout, doutOf, douts, imm(0), sizePadded, m.rows, shape.size, sizePadded, tile.lanes)};
    else
      out = {copyRows(qkv.buffer, queryOf, queries, imm(0), sizePadded, m.rows, shape.size, sizePadded, tile.lanes,
                      shape.scale()),
             copyRows(dout, doutOf, douts, imm(0), sizePadded, m.rows, shape.size, sizePadded, tile.lanes, 1)};
    if (partTiles) {  // zero rows past the last query, so that they add nothing to dk and dv
      Expr all = m.tiles * int64_t(tile.rows);
      auto fillRows = [&](const Buffer &to, const Expr &from, const Expr &end, int64_t rowSize) {
        out.push_back(fill(to, from * rowSize, (end - from) * rowSize));
      };
      for (const Buffer &to : {queries, douts})
        fillRows(to, (m.rows + (perStep() - 1)) / imm(perStep()), all / imm(perStep()), sizePadded);
      if (pairs)
        for (const Buffer &to : {leftQueries, leftDouts})
          fillRows(to, m.rows, all, leftStride());
    }
    return out;
  }

  /// P and dS, tile by tile.
  Stmt allScores(const Meeting &m) {
    Expr panels = (m.count + (nr() - 1)) / imm(nr());
    return serial("tile", m.tiles, [&](const Expr &t) {
      Expr first = t * int64_t(tile.rows);  // in the block
      Body body = {fetchAhead(m.b, m.h, m.i0, first)};
      // The number of panels that the last row of the tile sees.
      Expr seen = panels;
      if (shape.causal)
        seen = min(panels, (m.ahead + first + (tile.rows - 1 + nr())) / imm(nr()));
      else if (sight.ranged())
        seen = min(panels, (max(imm(0), endOfKeys(m, first) - m.j0) + (nr() - 1)) / imm(nr()));
      Var p = makeVar("p");
      Body panel = scores(m.h, m.b, m.j0, m.i0, first, kir::ref(p));
      if (sight.varies()) {
        Expr begin = shape.firstKey(m.ahead + first) / imm(nr());
        if (sight.ranged())
          begin = min(seen, max(imm(0), sight.firstKey(m.b, m.i0 + first) - m.j0) / imm(nr()));
        body.push_back(loop(LoopKind::serial, p, seen - begin, std::move(panel), 1, begin));
      } else {
        body.push_back(loop(LoopKind::serial, p, seen, std::move(panel)));
      }
      return body;
    });
  }

  /// The end of the keys that the last query of the tile sees, whose first query is `first` of the block.
  Expr endOfKeys(const Meeting &m, const Expr &first) const {
    return sight.endOfKeys(m.b, m.i0 + first + (tile.rows - 1));
  }

  /// dv += P^T do and dk += dS^T q, over the queries of the block that see the key.
  Stmt addToKeyGrads(const Meeting &m) {
    const RowRanges ranges(tile.rows);  // of queries, if they are ranged
    Expr keyTiles = (m.count + (tile.rows - 1)) / imm(tile.rows);
    if (shape.causal)
      keyTiles = min(keyTiles, m.ahead / imm(tile.rows) + m.tiles);
    else if (sight.ranged())
      keyTiles =
          min(keyTiles, (max(imm(0), endOfKeys(m, (m.tiles + -1) * int64_t(tile.rows)) - m.j0) + (tile.rows - 1)) /
                            imm(tile.rows));
    auto eachTile = [&](const std::function<Body(const Expr &)> &body) {
      if (!sight.varies())
        return serial("kt", keyTiles, body);
      Var kt = makeVar("kt");
      Expr begin = shape.firstKey(m.ahead) / imm(tile.rows);  // of the first key that the block's first query sees
      if (sight.ranged())
        begin = min(keyTiles, max(imm(0), sight.firstKey(m.b, m.i0) - m.j0) / imm(tile.rows));
      Body tiles = body(kir::ref(kt));
      if (sight.ranged()) {
        const Expr key = m.j0 + kir::ref(kt) * int64_t(tile.rows);
        tiles = {ranges.within([&](const Expr &r) { return sight.firstQuery(m.b, key + r); },
                               [&](const Expr &r) { return sight.endOfQueries(m.b, key + r); }, std::move(tiles))};
      }
      return loop(LoopKind::serial, kt, keyTiles - begin, std::move(tiles), 1, begin);
    };
    return eachTile([&](const Expr &kt) {
      Body body;
      auto product = [&](const Buffer &left, const Buffer &right, const Buffer &sum) {
        return forPanels(tile, sizePadded, [&](const Expr &d0, const Tile &narrow) {
          TileLoop t;
          t.tile = narrow;
          t.pairs = pairs;
          t.steps = m.tiles * int64_t(tile.rows / perStep());
          if (sight.ranged()) {
            ranges.steps(t, m.i0, m.tiles * int64_t(tile.rows));
          } else if (shape.causal) {
            Expr own = kt - m.ahead / imm(tile.rows);  // the tile of queries on the diagonal, if it is of the block
            t.begin = max(imm(0), own + 1) * int64_t(tile.rows / perStep());
            t.triangles = {
                {.ahead = true, .at = own * int64_t(tile.rows / perStep()), .when = binary(BinaryOp::le, imm(0), own)}};
            if (shape.window)
              maskQueries(t, kt * int64_t(tile.rows) - m.ahead, max(imm(0), own) * int64_t(tile.rows / perStep()));
          }
          t.a = [&](int row, const Expr &k) {
            return load(left, k * stride() + kt * int64_t(tile.rows) + int64_t(row));
          };
          t.b = [&](int vec, const Expr &k, const Expr &j) {
            return load(right, k * sizePadded + d0 + int64_t(vec * tile.lanes) + j);
          };
          auto at = [&](int row, int vec, const Expr &j) {
            return (kt * int64_t(tile.rows) + int64_t(row)) * sizePadded + d0 + int64_t(vec * tile.lanes) + j;
          };
          t.start = [&](int row, int vec, const Expr &j) { return load(sum, at(row, vec, j)); };
          t.finish = [&](int row, int vec, const Expr &j, const Expr &acc) { return store(sum, at(row, vec, j), acc); };
          return Body{tileLoop(t)};
        });
      };
      for (const Stmt &s : product(probs, douts, dValues))
        body.push_back(s);
      for (const Stmt &s : product(dScores, queries, dKeys))
        body.push_back(s);
      return body;
    });
  }

  /// The steps over queries of a tile of keys with a window, whose first key has the position `key`, and the block's
  /// first query 0. Past the diagonal all keys are seen, until the windows end one after the other. If the window is no
  /// longer than a tile, every step from `diagonal` on is masked.
  void maskQueries(TileLoop &t, const Expr &key, const Expr &diagonal) const {
    auto clamped = [&, all = t.steps](const Expr &query) { return min(all, max(imm(0), query) / imm(perStep())); };
    t.sees = [this, key](int row, const Expr &query) {
      const Expr own = key + int64_t(row);
      return shape.withWindow(lt(own, query + 1), query, own);
    };
    const Expr ends = key + shape.window;
    t.end = clamped(ends + (tile.rows - 1 + perStep() - 1));
    if (shape.window > tile.rows + 1) {
      t.steps = max(t.begin, clamped(ends));
      return;
    }
    t.triangles.clear();
    t.begin = t.steps = diagonal;
  }

  /// The steps over keys of a tile of queries with a window, whose first query has the position `query`, and the
  /// block's first key 0: as maskQueries, before the diagonal. `end` is the last key of the block or of the tile's
  /// queries.
  void maskKeys(TileLoop &t, const Expr &query, const Expr &end) const {
    auto stepsUp = [&](const Expr &key) { return pairs ? (key + 1) / imm(2) : key; };
    t.sees = [this, query](int row, const Expr &key) {
      const Expr own = query + int64_t(row);
      return shape.withWindow(lt(key, own + 1), own, key);
    };
    t.begin = shape.firstKey(query) / imm(perStep());
    if (shape.window > tile.rows + 1) {
      t.beginWhole = max(t.begin, min(t.steps, stepsUp(shape.firstKey(query + (tile.rows - 1)))));
      return;
    }
    t.triangles.clear();
    t.beginWhole = t.steps = max(t.begin, stepsUp(end));
  }

  /// dq += dS k, tile by tile, through the first-level cache: the rows in memory are neither padded nor contiguous.
  Stmt addToQueryGrads(const Meeting &m) {
    const RowRanges ranges(tile.rows);  // of keys, if they are ranged
    return serial("tile", m.tiles, [&](const Expr &tileOfBlock) {
      Expr first = tileOfBlock * int64_t(tile.rows);
      Expr valid = partTiles ? min(imm(tile.rows), m.rows - first) : imm(tile.rows);
      Expr own = m.ahead + first;  // the key at the tile's first query, from where a causal mask cuts
      Expr steps = shape.causal ? min(m.count, own) : m.count;
      return Body{bindTo("steps", steps, [&](const Expr &steps) {
        Body panels = forPanels(tile, sizePadded, [&](const Expr &d0, const Tile &narrow) {
          Expr cols = shape.size % nr() ? min(imm(nr()), imm(shape.size) - d0) : imm(nr());
          auto rowsLoop = [&](bool in) {
            return serial("r", valid, [&](const Expr &r) {
              return Body{vectorLoop("x", cols, tile.lanes, [&](const Expr &x) {
                Expr far = queryGrad(m.b, m.i0 + first + r, m.h) + d0 + x, near = r * nr() + x;
                return Body{in ? store(score, near, load(queryGrads(), far))
                               : store(queryGrads(), far, load(score, near))};
              })};
            });
          };
          TileLoop t;
          t.tile = narrow;
          t.pairs = pairs;
          t.steps = pairs ? (steps + 1) / imm(2) : steps;  // an odd last key of all is paired with zero
          if (sight.ranged()) {
            ranges.steps(t, m.j0, m.count);
          } else {
            if (shape.causal)
              t.triangles = {{.at = own / imm(perStep()), .when = lt(own, m.count)}};
            if (shape.window)
              maskKeys(t, own, min(m.count, own + tile.rows));
          }
          t.a = [&](int row, const Expr &k) {
            return pairs ? loadPair(dScoreRows, (first + row) * rowStride() + k * 2)
                         : load(dScores, (first + row) * stride() + k);
          };
          t.b = [&](int vec, const Expr &k, const Expr &j) {
            return load(keys, k * sizePadded + d0 + int64_t(vec * tile.lanes) + j);
          };
          auto at = [&](int row, int vec, const Expr &j) { return j + int64_t(row * nr() + vec * tile.lanes); };
          t.start = [&](int row, int vec, const Expr &j) { return load(score, at(row, vec, j)); };
          t.finish = [&](int row, int vec, const Expr &j, const Expr &acc) {
            return store(score, at(row, vec, j), acc);
          };
          return Body{rowsLoop(true), tileLoop(t), rowsLoop(false)};
        });
        if (!sight.ranged())
          return panels;
        const Expr query = m.i0 + first;
        return Body{ranges.within([&](const Expr &r) { return sight.firstKey(m.b, query + r); },
                                  [&](const Expr &r) { return sight.endOfKeys(m.b, query + r); }, std::move(panels))};
      })};
    });
  }

  /// Prefetches dq of the tile, and q and do of the same tile in the next block: their rows are far apart.
  Stmt fetchAhead(const Expr &b, const Expr &h, const Expr &i0, const Expr &first) {
    return serial("r", imm(tile.rows), [&](const Expr &r) {
      Expr last = imm(shape.tokens - 1), i = i0 + first + r;
      return Body{bindTo("near", min(i, last), [&](const Expr &near) {
        return Body{bindTo("far", min(i + queriesPerBlock, last), [&](const Expr &far) {
          Body out = fetchRow(queryGrads(), queryGrad(b, near, h), shape.size);
          for (const Body &row :
               {fetchRow(qkv.buffer, qkv.query(b, far, h), shape.size), fetchRow(dout, outAt(b, far, h), shape.size)})
            out.insert(out.end(), row.begin(), row.end());
          return out;
        })};
      })};
    });
  }

  /// Subtracts the log-sum-exp from the scores of a row, for a huge log-sum-exp (isHuge). `scale` as in scores().
  Stmt subtract(const Expr &r, const Expr &lseOfRow, double scale) {
    return vectorLoop("x", imm(nr()), tile.lanes, [&](const Expr &x) {
      Expr near = r * nr() + x, zero = fimm(0, dtype()), s = load(score, near);
      return Body{bindTo("d", (scale == 1 ? s : s * fimm(scale, dtype())) - lseOfRow, [&](const Expr &d) {
        Expr least = select(lt(zero, d), zero, d);  // NaN stays NaN
        return Body{store(score, near, scale == 1 ? least : least * fimm(1 / scale, dtype()))};
      })};
    });
  }

  /// P and dS of one tile of queries and one panel of keys.
  Body scores(const Expr &h, const Expr &b, const Expr &j0, const Expr &i0, const Expr &first, const Expr &p) {
    auto product = [&](const Buffer &left, const Buffer &right, const Buffer &to) {
      TileLoop t;
      t.tile = tile;
      t.steps = imm(depth());
      t.pairs = pairs;
      const bool ofScores = to == score;
      t.a = [&](int row, const Expr &k) { return load(left, (first + row) * leftStride() + k); };
      t.b = [&](int vec, const Expr &k, const Expr &j) {
        return load(right, p * (depth() * nr()) + k * nr() + int64_t(vec * tile.lanes) + j);
      };
      t.finish = [&](int row, int vec, const Expr &j, const Expr &acc) {
        Expr ahead = j0 + p * nr() - (i0 + first) + int64_t(vec * tile.lanes - row);
        Expr at = j + int64_t(row * nr() + vec * tile.lanes);
        Expr scaled = bias.active() ? scaledLate(acc) : acc;
        if (!ofScores || shape.softcap == 0)
          return store(to, at, ofScores ? bias.of(scaled, ahead, j) : acc);
        return bias.withDerivative(scaled, ahead, j, [&](const Expr &score, const Expr &slope) {
          return Body{store(to, at, score), store(derivative, at, slope)};
        });
      };
      return tileLoop(t);
    };
    struct Row {
      Expr r, i, begin, end, zero, delta;  // zero: what the exponent of two adds for the log-sum-exp
    };
    // If scores are not scaled yet, the factor that turns them into powers of two scales them too.
    const double scale = pairs && !bias.active() ? shape.scale() : 1;
    Expr toLog2 = fimm(log2e * scale, dtype());
    auto withRow = [&](const Expr &r, const std::function<Body(const Row &)> &body) {
      Expr row = i0 + first + r;
      return Body{bindTo("i", partTiles ? min(row, imm(shape.tokens - 1)) : row, [&](const Expr &i) {
        Expr begin = sight.ranged() ? sight.firstKey(b, i) : nullptr, end = sight.endOfKeys(b, i);
        if (partTiles)  // rows past the last query see no keys
          end = select(lt(row, imm(shape.tokens)), end, imm(0));
        return Body{bindTo("lse", load(lse, perRow(b, h, i)), [&](const Expr &lseOfRow) {
          return Body{bindTo("top", lseOfRow * fimm(log2e, dtype()), [&](const Expr &top) {
            return Body{ifThen(isHuge(top), {subtract(r, lseOfRow, scale)}),
                        bindTo("zero", select(isHuge(top), fimm(0, dtype()), -top), [&](const Expr &zero) {
                          return Body{bindTo("delta", load(delta, perRow(b, h, i)), [&](const Expr &deltaOfRow) {
                            return body({r, i, begin, end, zero, deltaOfRow});
                          })};
                        })};
          })};
        })};
      })};
    };
    // P, with dropout, and dS of key x of the panel.
    auto element = [&](const Row &row, const Expr &x, const std::function<Body(const Expr &, const Expr &)> &body) {
      Expr j = j0 + p * nr() + x, near = row.r * nr() + x, zero = fimm(0, dtype());
      const Expr before = lt(j, row.end);
      const Expr seen = row.begin ? binary(BinaryOp::and_, binary(BinaryOp::le, row.begin, j), before)
                                  : shape.withWindow(before, row.i, j);
      auto visible = [&](const Expr &e) { return select(seen, e, zero); };
      // The gradient of the scaled product from that of the score.
      auto ofProduct = [&](const Expr &ds) { return shape.softcap != 0 ? ds * load(derivative, near) : ds; };
      return Body{bindTo("prob", visible(unary(UnaryOp::exp2, fma(load(score, near), toLog2, row.zero))),
                         [&](const Expr &prob) {
                           Expr dp = load(dProb, near);
                           if (!dropout.active())
                             return body(prob, visible(ofProduct(prob * (dp - row.delta))));
                           Expr factor = select(dropout.keep(h, row.i, j), fimm(dropout.keptScale(), dtype()), zero);
                           return Body{bindTo("factor", factor, [&](const Expr &factor) {
                             return body(prob * factor, visible(ofProduct(prob * (dp * factor - row.delta))));
                           })};
                         })};
    };
    auto eachKey = [&](const std::function<Body(const Expr &)> &body) {
      return Body{vectorLoop("x", imm(nr()), tile.lanes, body)};
    };
    auto oneRow = [&](const Expr &r) {
      return withRow(r, [&](const Row &row) {
        return eachKey([&](const Expr &x) {
          return element(row, x, [&](const Expr &prob, const Expr &ds) {
            Expr to = (first + r) * stride() + p * nr() + x;
            return Body{store(probs, to, prob), store(dScores, to, ds)};
          });
        });
      });
    };
    auto twoRows = [&](const Expr &r) {
      return withRow(r * 2, [&](const Row &upper) {
        return withRow(r * 2 + 1, [&](const Row &lower) {
          return eachKey([&](const Expr &x) {
            return element(upper, x, [&](const Expr &prob0, const Expr &ds0) {
              return element(lower, x, [&](const Expr &prob1, const Expr &ds1) {
                Expr to = (first / imm(2) + r) * stride() + p * nr() + x;
                Expr row = (first + r * 2) * rowStride() + p * nr() + x;
                return Body{store(probs, to, pair(prob0, prob1)), store(dScores, to, pair(ds0, ds1)),
                            store(dScoreRows, row, ds0), store(dScoreRows, row + rowStride(), ds1)};
              });
            });
          });
        });
      });
    };
    return {product(leftQueries, keysT, score), product(leftDouts, valuesT, dProb),
            serial("r", imm(tile.rows / perStep()), [&](const Expr &r) { return pairs ? twoRows(r) : oneRow(r); })};
  }

  GroupEval &group;
  const Shape shape;
  Packed qkv, dqkv;
  Dropout dropout;
  Bias bias;
  const Sight sight;
  Buffer dout, out, lse;
  Tile tile;
  bool pairs;
  bool byHeads;  // a task is one head of queries that shares its keys with others
  int64_t keysPerBlock, keyBlocks, queriesPerBlock, sizePadded;
  bool partBlocks = false, partTiles = false;  // whether the last block or tile of queries may be partly filled
  std::vector<Buffer> locals;
  Buffer keysT, valuesT, keys, dKeys, dValues, queries, douts, probs, dScores, score, dProb, delta;
  // Without pairs these are the same buffers as queries, douts and dScores.
  Buffer leftQueries, leftDouts, dScoreRows;
  Buffer derivative;              // of the capped scores of a tile; null without a soft cap
  Buffer dQueries;                // null if dq grows in the result
  Buffer totalKeys, totalValues;  // sums of the block's dk and dv over the heads of the task, if it has several
  Buffer headKeys, headValues;    // dk and dv of each head, if each head is a task
  std::vector<Buffer> used;       // workspaces
};

bool matches(const Op &fused) { return onlyOp(fused, OpKind::attention_grad); }

Schedule defaults(const Op &fused, const Target &target) {
  const Op &op = *onlyOp(fused, OpKind::attention_grad);
  Shape shape = shapeOf(op, 1);
  if (target.isCuda())
    return cudaSchedule(op, target);
  Schedule s;
  s.pairs = usesPairs(op, 1, target) && op.operand(0)->type.dtype == DType::bf16;
  Tile tile = queryTile(target, shape, s.pairs);
  if (s.pairs && tile.rows > 1)
    tile.rows = tile.rows / 2 * 2;  // P and dS are stored by pairs of rows
  s.vec = tile.lanes;
  s.mr = tile.rows;
  s.nr = tile.cols();
  // Larger blocks compute more above the diagonal. Smaller blocks load and store sums more often, which costs
  // relatively twice as much with pairs.
  s.kb = shape.tokens <= 128 ? 32 : s.pairs ? 256 : 128;
  s.qb = shape.tokens <= 128 ? roundUp(32, tile.rows) : (s.pairs ? 8 : 4) * tile.rows;
  // Tasks of one head of queries cost a workspace, so only if tasks of heads of keys would leave more than a fifth of
  // the threads idle.
  const int64_t tasks = shape.batch * shape.kvHeads;
  s.task = shape.group() > 1 && 5 * tasks < 4 * roundUp(tasks, int64_t(target.threads));
  return s;
}

std::vector<Schedule> space(const Op &fused, const Schedule &base, const Target &target) {
  const Op &op = *onlyOp(fused, OpKind::attention_grad);
  if (target.isCuda())
    return attention::cudaSpace(op, base, target);
  const Shape shape = shapeOf(op, 1);
  const int most = registerTile(target, DType::f32, base.pairs).rows, step = base.pairs ? 2 : 1;
  std::vector<Schedule> all;
  for (int rows : {most, most - 2, most - 4, most / 2, base.mr}) {
    Schedule s = base;
    s.mr = std::max(step, rows / step * step);
    for (const Schedule &one : ScheduleGrid(s)
                                   .over(&Schedule::qb, {2 * s.mr, 3 * s.mr, 4 * s.mr, 6 * s.mr, 8 * s.mr, 12 * s.mr})
                                   .over(&Schedule::kb, {32, 64, 96, 128, 192, 256})
                                   .take())
      if (one.kb < 2 * shape.tokens && one.qb < 2 * shape.tokens)
        all.push_back(one);
  }
  return all;
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  const Op *op = onlyOp(fused, OpKind::attention_grad);
  GPTC_CHECK(op, "{}", s.str());
  GroupEval group(fused, compute);
  if (s.threads)
    return backwardBlocks(group, *op, s).lowered(group);
  GPTC_CHECK(s.vec > 0 && s.mr > 0 && s.nr > 0 && s.nr % s.vec == 0 && s.kb > 0 && s.qb > 0, "{}", s.str());
  Backward backward(group, *op, s);
  return Phases{backward.kernel(), backward.workspaces()}.lowered(group);
}

}  // namespace

const Recipe &attention_gradRecipe() {
  static const Recipe recipe{RecipeKind::attention_grad, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

#include "codegen/recipes/tile.h"

#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

using namespace kir;

namespace {
Expr at(int64_t v) { return imm(v); }

/// Whether row `row` takes element `x` of a triangle.
bool takes(const Triangle &t, int row, int x) { return t.ahead ? x >= row : x <= row - t.late; }

/// The first or second half of a pair of bf16, with zero in place of the other half.
Expr halfOf(const Expr &pair, bool second) {
  return binary(BinaryOp::and_, pair, imm(second ? 0xffff0000 : 0xffff, DType::u32));
}
}  // namespace

Tile registerTile(const Target &target, DType dtype, bool pairs) {
  Tile t;
  t.dtype = dtype;
  t.lanes = target.lanes(dtype);
  t.vecs = 2;
  t.rows = std::max<int>(1, (int(target.vectorRegisters) - 4) / 2 - pairs);
  return t;
}

Tile flatTile(const Target &target, DType dtype) {
  Tile t;
  t.dtype = dtype;
  t.lanes = target.lanes(dtype);
  t.vecs = 4;
  t.rows = target.vectorRegisters < 32 ? 0 : (int(target.vectorRegisters) - 8) / t.vecs;
  return t;
}

Tile tileForRows(const Tile &largest, int64_t rows) {
  Tile best = largest;
  if (rows <= largest.rows) {
    best.rows = int(rows);
    return best;
  }
  // One step of a tile costs its rows, plus the two loads of B and the loop, which a tall tile shares better.
  auto cost = [&](int r) { return double(ceilDiv(rows, r)) * (r + 0.5); };
  for (int r = largest.rows; r >= std::max(1, largest.rows / 2); --r)
    if (cost(r) < cost(best.rows))
      best.rows = r;
  return best;
}

int64_t oddLines(int64_t n, DType dtype) {
  const int64_t line = cacheLine / int64_t(sizeOf(dtype));
  return (ceilDiv(n, line) | 1) * line;
}

Stmt serial(const char *name, Expr extent, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::serial, v, std::move(extent), body(kir::ref(v)));
}

Stmt vectorLoop(const char *name, Expr extent, int lanes, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::vector, v, std::move(extent), body(kir::ref(v)), lanes);
}

Stmt parallel(const char *name, int64_t extent, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name);
  return loop(LoopKind::parallel, v, at(extent), body(kir::ref(v)));
}

Stmt bindTo(const char *name, const Expr &value, const std::function<Body(const Expr &)> &body) {
  Var v = makeVar(name, value->dtype);
  return let(v, value, body(kir::ref(v)));
}

/// Where an accumulator of a tile is.
static Expr slotOf(const Tile &tile, int row, int vec, const Expr &lane) {
  return lane + int64_t(row * tile.cols() + vec * tile.lanes);
}

/// The steps from `first` to `end`, of which each row takes only what it sees.
static Stmt maskedSteps(const TileLoop &t, const Buffer &acc, const Expr &first, const Expr &end) {
  const Tile &tile = t.tile;
  Var at = makeVar("k");
  const Expr k = kir::ref(at);
  // A pred; of pairs the bits of those halves that the row sees.
  auto seenBy = [&](int row) {
    auto half = [&](int64_t n, int64_t bits) {
      return select(t.sees(row, k * 2 + n), imm(bits, DType::u32), imm(0, DType::u32));
    };
    return t.pairs ? binary(BinaryOp::or_, half(0, 0xffff), half(1, 0xffff0000)) : t.sees(row, k);
  };
  Stmt one = vectorLoop("j", imm(tile.lanes), tile.lanes, [&](const Expr &j) {
    std::vector<Var> vars;
    for (int v = 0; v < tile.vecs; ++v)
      vars.push_back(makeVar("b", t.pairs ? DType::u32 : tile.dtype));
    Body body;
    for (int i = 0; i < tile.rows; ++i)
      body.push_back(bindTo("seen", seenBy(i), [&](const Expr &seen) {
        const Expr own = t.a(i, k);
        return Body{bindTo("a", t.pairs ? binary(BinaryOp::and_, own, seen) : own, [&](const Expr &a) {
          Body out;
          for (int v = 0; v < tile.vecs; ++v) {
            const Expr to = slotOf(tile, i, v, j), sum = load(acc, to), b = kir::ref(vars[v]);
            out.push_back(
                store(acc, to,
                      t.pairs ? dot(sum, binary(BinaryOp::and_, b, seen), a) : select(seen, kir::fma(a, b, sum), sum)));
          }
          return out;
        })};
      }));
    for (int v = tile.vecs; v-- > 0;)
      body = {let(vars[v], t.b(v, k, j), std::move(body))};
    return body;
  });
  return loop(LoopKind::serial, at, end - first, {one}, 1, first);
}

Stmt tileLoop(const TileLoop &t) {
  const Tile &tile = t.tile;
  Buffer acc = makeBuffer("acc", tile.dtype, Storage::reg, int64_t(tile.rows) * tile.cols());
  auto slot = [&](int row, int vec, const Expr &j) { return slotOf(tile, row, vec, j); };
  auto everySlot = [&](const std::function<Stmt(int, int, const Expr &)> &make) {
    return vectorLoop("j", at(tile.lanes), tile.lanes, [&](const Expr &j) {
      Body out;
      for (int i = 0; i < tile.rows; ++i)
        for (int v = 0; v < tile.vecs; ++v)
          out.push_back(make(i, v, j));
      return out;
    });
  };

  Stmt zero = everySlot([&](int i, int v, const Expr &j) {
    return store(acc, slot(i, v, j), t.start ? t.start(i, v, j) : fimm(0, tile.dtype));
  });
  // The parts of a step that a row takes: both halves of a pair, one of them, or none.
  struct Part {
    bool low = true, high = true;
  };
  auto step = [&](const Expr &k, const std::function<Expr(int)> &a, const std::function<Part(int)> &partOf) {
    // The vectors of B are bound around all rows, so that each is loaded once per step.
    return vectorLoop("j", at(tile.lanes), tile.lanes, [&](const Expr &j) {
      std::vector<Expr> bs;
      std::vector<Var> vars;
      for (int v = 0; v < tile.vecs; ++v) {
        bs.push_back(t.b(v, k, j));
        vars.push_back(makeVar("b", bs.back()->dtype));
      }
      Body body;
      for (int i = 0; i < tile.rows; ++i) {
        const Part part = partOf(i);
        if (!part.low && !part.high)
          continue;
        body.push_back(bindTo("a", a(i), [&](const Expr &a) {
          Body fmas;
          for (int v = 0; v < tile.vecs; ++v) {
            Expr sum = load(acc, slot(i, v, j)), b = kir::ref(vars[v]);
            if (part.low != part.high)
              b = halfOf(b, part.high);
            fmas.push_back(store(acc, slot(i, v, j), t.pairs ? dot(sum, b, a) : kir::fma(a, b, sum)));
          }
          return fmas;
        }));
      }
      for (int v = tile.vecs; v-- > 0;)
        body = {let(vars[v], bs[v], std::move(body))};
      return body;
    });
  };
  auto whole = [](int) { return Part{}; };
  auto triangle = [&](const Triangle &tri) {
    const int perStep = t.pairs ? 2 : 1;
    Body steps;
    for (int64_t s = 0; s < ceilDiv(tile.rows - tri.late, perStep); ++s) {
      Expr k = tri.at + s;
      auto part = [&](int row) {
        const int x = int(s) * perStep;
        return Part{takes(tri, row, x), takes(tri, row, x + perStep - 1)};
      };
      steps.push_back(step(k, [&](int i) { return t.a(i, k); }, part));
    }
    return tri.when ? ifThen(tri.when, std::move(steps)) : block(std::move(steps));
  };
  Var k = makeVar("k");
  Expr of = kir::ref(k);
  Body inner = {step(of, [&](int i) { return t.a(i, of); }, whole)};
  Body all = {zero};
  for (const Triangle &tri : t.triangles)
    if (tri.ahead)
      all.push_back(triangle(tri));
  if (t.beginWhole)
    all.push_back(maskedSteps(t, acc, t.begin, t.beginWhole));
  const Expr begin = t.beginWhole ? t.beginWhole : t.begin;
  all.push_back(begin ? loop(LoopKind::serial, k, t.steps - begin, std::move(inner), 1, begin)
                      : loop(LoopKind::serial, k, t.steps, std::move(inner)));
  if (t.end)
    all.push_back(maskedSteps(t, acc, t.steps, t.end));
  for (const Triangle &tri : t.triangles)
    if (!tri.ahead)
      all.push_back(triangle(tri));
  if (t.last)
    all.push_back(ifThen(t.more, {step(t.steps, t.last, whole)}));
  all.push_back(everySlot([&](int i, int v, const Expr &j) { return t.finish(i, v, j, load(acc, slot(i, v, j))); }));
  return alloc(acc, std::move(all));
}

Expr stepOf(bool pairs, const Buffer &from, const Expr &at, int64_t stride, bool odd) {
  if (!pairs)
    return load(from, at);
  if (odd)
    return pair(load(from, at), fimm(0));
  return stride == 1 ? loadPair(from, at) : pair(load(from, at), load(from, at + stride));
}

Stmt transposed(int lanes, DType dtype, const std::function<Expr(int, const Expr &)> &row,
                const std::function<Stmt(int, const Expr &, const Expr &)> &column) {
  Buffer t = makeBuffer("t", dtype, Storage::reg, int64_t(lanes) * lanes);
  Body out;
  for (int i = 0; i < lanes; ++i)
    out.push_back(store(t, lane() + int64_t(i * lanes), row(i, lane())));
  // Each stage swaps the off-diagonal quarters of blocks of 2m x 2m. In a row i without the bit m, the new element l is
  // the old element l - m of row i + m if l has the bit m, else the old element l of row i.
  for (int m = lanes / 2; m >= 1; m /= 2)
    for (int i = 0; i < lanes; ++i) {
      if (i & m)
        continue;
      Expr low = lane() + binary(BinaryOp::and_, lane(), at(m)) * int64_t(lanes - 1) + int64_t(i * lanes);
      Var upper = makeVar("u", dtype), lower = makeVar("v", dtype);
      out.push_back(let(upper, load(t, low),
                        {let(lower, load(t, low + int64_t(m)),
                             {store(t, lane() + int64_t(i * lanes), kir::ref(upper)),
                              store(t, lane() + int64_t((i + m) * lanes), kir::ref(lower))})}));
    }
  for (int i = 0; i < lanes; ++i)
    out.push_back(column(i, lane(), load(t, lane() + int64_t(i * lanes))));
  Stmt all = vectorLoop("j", at(lanes), lanes, [&](const Expr &) { return out; });
  return alloc(t, {all});
}

namespace {

/// Copies the rows or columns of one PanelPack.
class PanelPacker {
public:
  explicit PanelPacker(const PanelPack &p) : p(p), toBase(p.toBase ? p.toBase : at(0)) {}

  Body all() {
    if (p.colStride == 1)
      return rows();
    Body out;
    out.push_back(serial("p", p.fullPanels, [&](const Expr &panel) { return columns(panel, p.width); }));
    if (p.tailCols) {
      Body tail = columns(p.fullPanels, p.tailCols);
      tail.insert(tail.begin(), zeros(p.fullPanels));
      out.push_back(inTail(std::move(tail)));
    }
    return out;
  }

private:
  const PanelPack &p;
  const Expr toBase;
  // How far ahead the source is prefetched: a few KiB cover the latency of memory, and fit the first-level cache beside
  // the panels.
  static constexpr int64_t stepsAhead = 16, squaresAhead = 4;

  Stmt zeros(const Expr &panel) const {
    Expr nothing = isFloat(p.to->dtype) ? fimm(0, valueType(p.to)) : imm(0, p.to->dtype);
    return serial("k", p.steps, [&, panelBase = toBase + panel * panelSize()](const Expr &k) {
      return Body{vectorLoop("j", at(p.width), p.lanes, [&](const Expr &j) {
        return Body{store(p.to, panelBase + k * int64_t(p.width) + j, nothing)};
      })};
    });
  }
  int64_t panelSize() const { return p.panelSteps * p.width; }
  Expr target(const Expr &panel, const Expr &k) const { return toBase + panel * panelSize() + k * int64_t(p.width); }
  Stmt inTail(Body tail) const { return p.hasTail ? ifThen(p.hasTail, std::move(tail)) : block(std::move(tail)); }

  // ---- rows of the source are read in order, a piece of `width` elements for each panel ----

  Stmt copyRow(const Expr &k, const Expr &panel, int64_t cols) const {
    Expr src = p.base + k * p.stepStride + panel * int64_t(p.width), dst = target(panel, k);
    return vectorLoop("j", at(cols), p.lanes, [&](const Expr &j) {
      Expr value = p.element ? p.element(k, panel * int64_t(p.width) + j) : load(p.from, src + j);
      return Body{store(p.to, dst + j, value)};
    });
  }

  Stmt fetchRow(const Expr &k, const Expr &panel) const {
    const int64_t line = cacheLine / int64_t(sizeOf(p.from->dtype));
    const Expr far = p.base + min(k + stepsAhead, p.steps - at(1)) * (p.perStep * p.stepStride);
    Body lines;
    for (int64_t r = 0; r < p.perStep; ++r)
      for (int64_t c = 0; c < p.width; c += line)
        lines.push_back(prefetch(p.from, far + panel * int64_t(p.width) + (r * p.stepStride + c)));
    return block(std::move(lines));
  }

  Body rows() const {
    Body out;
    out.push_back(serial("k", p.steps, [&](const Expr &k) {
      return Body{serial("p", p.fullPanels, [&](const Expr &panel) {
        Body row = {copyRow(k, panel, p.width)};
        if (p.fetch)
          row.insert(row.begin(), fetchRow(k, panel));
        return row;
      })};
    }));
    if (p.tailCols)
      out.push_back(inTail({zeros(p.fullPanels), serial("k", p.steps, [&](const Expr &k) {
                              return Body{copyRow(k, p.fullPanels, p.tailCols)};
                            })}));
    return out;
  }

  // ---- transposing: squares of lanes x lanes in registers, what is left over element by element ----

  Expr element(const Expr &panel, const Expr &col, const Expr &step, const Expr &along) const {
    Expr n = panel * int64_t(p.width) + col;
    return p.element ? p.element(step + along, n) : load(p.from, p.base + n * p.colStride + step + along);
  }

  Stmt rest(const Expr &panel, const Expr &firstCol, const Expr &cols, const Expr &firstStep, const Expr &steps) const {
    return serial("c", cols, [&](const Expr &c) {
      return Body{serial("k", steps, [&](const Expr &k) {
        Expr col = firstCol + c, step = firstStep + k;
        return Body{store(p.to, target(panel, step) + col, element(panel, col, step, at(0)))};
      })};
    });
  }

  /// Prefetches a later square: about one line of each row. Past the end of the rows it takes the panel's next rows.
  Stmt fetchSquare(const Expr &panel, int64_t cols, const Expr &col0, const Expr &s, const Expr &squares) const {
    const int64_t lanes = p.lanes;
    const Expr over = select(lt(s + squaresAhead, squares), at(0), at(1));
    const Expr square = min(s + squaresAhead - over * squares, squares - at(1));
    return bindTo("far", p.base + panel * (p.width * p.colStride) + square * (lanes * p.perStep), [&](const Expr &far) {
      return Body{bindTo("col", col0 + over * lanes, [&](const Expr &col) {
        Body lines;
        for (int64_t c = 0; c < lanes; ++c)
          lines.push_back(prefetch(p.from, far + min(col + c, at(cols - 1)) * p.colStride));
        return lines;
      })};
    });
  }

  Body columns(const Expr &panel, int64_t cols) const {
    const int64_t lanes = p.lanes;
    Expr squares = p.steps / at(lanes), done = squares * lanes;
    Body out;
    if (cols >= lanes)
      out.push_back(serial("g", at(cols / lanes), [&](const Expr &g) {
        Expr col0 = g * lanes;
        return Body{
            serial("s", squares,
                   [&](const Expr &s) {
                     Body square = {transposed(
                         p.lanes, valueType(p.to),
                         [&](int col, const Expr &k) { return element(panel, col0 + int64_t(col), s * lanes, k); },
                         [&](int step, const Expr &lane, const Expr &v) {
                           return store(p.to, target(panel, s * lanes + int64_t(step)) + col0 + lane, v);
                         })};
                     if (p.fetch)
                       square.insert(square.begin(), fetchSquare(panel, cols, col0, s, squares));
                     return square;
                   }),
            rest(panel, col0, at(lanes), done, p.steps - done)};
      }));
    if (cols % lanes)
      out.push_back(rest(panel, at(cols / lanes * lanes), at(cols % lanes), at(0), p.steps));
    return out;
  }
};

}  // namespace

Body packPanels(const PanelPack &p) {
  GPTC_CHECK(p.stepStride == 1 || p.colStride == 1, "strides {} {}", p.stepStride, p.colStride);
  return PanelPacker(p).all();
}

}  // namespace gptc

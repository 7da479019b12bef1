// quantized_matmul: products with weights of 8 or 4 bits (ir/quantized.h).
//
//   1. A task owns some rows and columns of the result. It rounds its rows of A to words of four bytes, which takes a
//      few operations per element beside the multiplications of all its columns.
//   2. For each panel of the weight and each tile of rows, blocks of 32 are multiplied in order: eight Dot4 for each
//      vector of columns. A word of eight numbers of 4 bits is two of four bytes. Then comes one multiply-add of the
//      sum, exact in i32, by the product of the scales, and with Q4_K one of the row's own sum by that of the minima.
//   3. The epilogue reads the finished tile from the first-level cache and stores the group's outputs.
//
// Numbers of the weight are unsigned, which is what Dot4 wants: a block's sum starts with what that adds, -128 or -8
// times the sum of the row's block. Those of Q4_K have no sign: it starts with 0. One chain over blocks, so that tiles,
// tasks and other rows never show. The weight is in memory in the order in which it is read, which one row (a sampled
// token) is limited by.
#include "codegen/recipes/matmul/quantized.h"
#include "codegen/recipes/matmul/matmul.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc::matmul {

using namespace kir;
using namespace quantized;

namespace {

/// Bytes of rounded rows that a task keeps, with their scales and sums: half of a usual second-level cache.
constexpr int64_t roundedBytes = 512 << 10;
/// The vectors of a tile.
constexpr int64_t tileVectors = 2;

/// Bytes of a rounded row.
int64_t bytesOfRow(const Problem &p) { return p.k + p.k / quantBlock * 12; }

class Quantized {
public:
  Quantized(GroupEval &group, const Problem &p, const Schedule &s)
      : group(group), p(p), s(s), epilogue(group, p), blocks(p.k / quantBlock), format(quantFormatOf(*p.anchor)),
        inMemory(words * bitsOf(format) / 8), perTask(s.nc / p.panels), panels(ceilDiv(p.n, p.panels)),
        rowTasks(ceilDiv(p.m, s.mc)) {}

  LoweredGroup build() {
    LoweredGroup out;
    out.kernel.name = group.kernelName();
    out.kernel.params = group.params();
    out.kernel.body = {parallel("task", rowTasks * ceilDiv(panels, perTask), [&](const Expr &t) {
      return Body{bindTo("rowTask", t % imm(rowTasks),
                         [&](const Expr &rowTask) { return Body{task(rowTask, t / imm(rowTasks))}; })};
    })};
    return out;
  }

private:
  bool hasMinima() const { return format == QuantFormat::q4_k; }

  Stmt task(const Expr &rowTask, const Expr &colTask) {
    const int64_t most = std::min(s.mc, p.m);
    rounded = makeBuffer("q", DType::u32, Storage::stack, most * (p.k / 4));
    scales = makeBuffer("da", group.compute, Storage::stack, most * blocks);
    offsets = makeBuffer("sa", DType::i32, Storage::stack, most * blocks);
    sums = makeBuffer("c", group.compute, Storage::stack, s.mr * p.panels);
    return bindTo("row0", rowTask * s.mc, [&](const Expr &row0) {
      const Expr rows = p.m % s.mc ? min(imm(s.mc), imm(p.m) - row0) : imm(s.mc);
      const Expr panel0 = colTask * perTask,
                 here = panels % perTask ? min(imm(perTask), imm(panels) - panel0) : imm(perTask);
      Body body = {serial("i", rows, [&](const Expr &i) {
        return Body{serial("b", imm(blocks), [&](const Expr &b) { return Body{roundBlock(row0, i, b)}; })};
      })};
      body.push_back(serial("panel", here, [&](const Expr &panel) {
        return Body{bindTo("at", panel0 + panel, [&](const Expr &panel) {
          Body out = {serial("tile", rows / imm(s.mr), [&](const Expr &tile) {
            return Body{
                bindTo("i0", tile * int64_t(s.mr), [&](const Expr &i0) { return tileOf(row0, i0, s.mr, panel); })};
          })};
          // Only the last task has rows left over.
          if (const int64_t left = p.m % s.mr) {
            Body rest = tileOf(row0, rows - imm(left), left, panel);
            out.push_back(rowTasks > 1 ? ifThen(eq(rowTask, imm(rowTasks - 1)), rest) : block(rest));
          }
          return out;
        })};
      }));
      return Body{alloc(rounded, {alloc(scales, {alloc(offsets, {alloc(sums, body)})})})};
    });
  }

  /// gptc::roundBlock of block b of row i of the task, whose bytes t of words 0 to 7 are elements 8t to 8t + 7.
  Stmt roundBlock(const Expr &row0, const Expr &i, const Expr &b) {
    Buffer magnitudes = makeBuffer("m", DType::u32, Storage::reg, words);
    Buffer parts = makeBuffer("t", DType::i32, Storage::reg, words);
    const Expr from = (row0 + i) * p.lda + b * quantBlock;
    auto element = [&](int64_t t, const Expr &w) {
      return bitcast(DType::u32, cast(DType::f32, load(group.inputs[p.a], from + t * words + w)));
    };
    auto eachWord = [&](const std::function<Body(const Expr &)> &body) {
      return vectorLoop("w", imm(words), words, body);
    };
    const Stmt find = eachWord([&](const Expr &w) {
      Expr top;
      for (int64_t t = 0; t < 4; ++t) {
        const Expr magnitude = magnitudeOf(element(t, w));
        top = top ? max(top, magnitude) : magnitude;
      }
      return Body{store(magnitudes, w, top)};
    });
    const Expr at = i * blocks + b;
    const Stmt keep = bindTo("top", hreduce(magnitudes, BinaryOp::max), [&](const Expr &top) {
      return Body{bindTo("exponent", exponentOf(top), [&](const Expr &exponent) {
        return Body{bindTo("j", stepsOf(top), [&](const Expr &j) {
          const Stmt round = eachWord([&](const Expr &w) {
            const Expr word = wordOf([&](int64_t t) { return element(t, w); }, exponent, j);
            return Body{bindTo("word", word, [&](const Expr &word) {
              return Body{store(rounded, (i * (p.k / 4) + b * words) + w, word), store(parts, w, sumOfBytes(word))};
            })};
          });
          return Body{round, store(scales, at, scaleOf(exponent, j, group.compute)),
                      store(offsets, at, hreduce(parts, BinaryOp::add) * factorOfSum(format))};
        })};
      })};
    });
    return alloc(magnitudes, {alloc(parts, {find, keep})});
  }

  /// `rows` rows from row i0 of the task on, of all columns of a panel.
  Body tileOf(const Expr &row0, const Expr &i0, int64_t rows, const Expr &panel) {
    const int64_t lanes = s.vec, vecs = p.panels % (tileVectors * lanes) ? 1 : tileVectors, cols = vecs * lanes;
    Body out;
    for (int64_t first = 0; first < p.panels; first += cols)
      out.push_back(chains(i0, rows, panel, first, vecs));
    const Expr col0 = panel * p.panels;
    const Expr here = p.n % p.panels ? min(imm(p.panels), imm(p.n) - col0) : imm(p.panels);
    out.push_back(epilogue.emit(imm(0), row0 + i0, imm(rows), col0, here, int(lanes),
                                [&](const Expr &row, const Expr &col) { return load(sums, row * p.panels + col); }));
    return out;
  }

  /// The sums of columns first .. first + vecs * lanes of a panel.
  Stmt chains(const Expr &i0, int64_t rows, const Expr &panel, int64_t first, int64_t vecs) {
    const int64_t lanes = s.vec, cols = vecs * lanes;
    Buffer acc = makeBuffer("acc", group.compute, Storage::reg, rows * cols);
    Buffer part = makeBuffer("part", DType::i32, Storage::reg, rows * cols);
    auto each = [&](const std::function<Body(const Expr &)> &body) { return vectorLoop("j", imm(lanes), s.vec, body); };
    auto slot = [&](int64_t i, int64_t v, const Expr &j) { return j + (i * cols + v * lanes); };
    auto all = [&](const std::function<Stmt(int64_t, int64_t, const Expr &)> &make) {
      return each([&](const Expr &j) {
        Body body;
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t v = 0; v < vecs; ++v)
            body.push_back(make(i, v, j));
        return body;
      });
    };
    const Stmt zero =
        all([&](int64_t i, int64_t v, const Expr &j) { return store(acc, slot(i, v, j), fimm(0, group.compute)); });
    const Stmt steps = serial("b", imm(blocks), [&](const Expr &b) {
      return Body{bindTo("from", (panel * blocks + b) * (inMemory * p.panels) + first, [&](const Expr &from) {
        Body body = {each([&](const Expr &j) {
          Body start;
          for (int64_t i = 0; i < rows; ++i)
            start.push_back(bindTo("o", hasMinima() ? imm(0, DType::i32) : load(offsets, (i0 + i) * blocks + b),
                                   [&](const Expr &o) {
                                     Body stores;
                                     for (int64_t v = 0; v < vecs; ++v)
                                       stores.push_back(store(part, slot(i, v, j), o));
                                     return stores;
                                   }));
          return start;
        })};
        for (int64_t w = 0; w < inMemory; ++w)
          body.push_back(each([&](const Expr &j) { return step(part, i0, rows, b, w, from, vecs, j); }));
        body.push_back(each([&](const Expr &j) { return addBlock(acc, part, i0, rows, panel, b, first, vecs, j); }));
        return body;
      })};
    });
    const Stmt finish = all([&](int64_t i, int64_t v, const Expr &j) {
      return store(sums, j + (i * p.panels + first + v * lanes), load(acc, slot(i, v, j)));
    });
    return alloc(acc, {alloc(part, {zero, steps, finish})});
  }

  /// Word w of a block in memory for all rows and vectors of a tile.
  Body step(const Buffer &part, const Expr &i0, int64_t rows, const Expr &b, int64_t w, const Expr &from, int64_t vecs,
            const Expr &j) {
    const int64_t lanes = s.vec, cols = vecs * lanes;
    std::vector<Var> weights;
    for (int64_t v = 0; v < vecs; ++v)
      weights.push_back(makeVar("w", DType::u32));
    Body body;
    for (int64_t half = 0; half < words / inMemory; ++half) {
      std::vector<Var> bytes;
      for (int64_t v = 0; v < vecs; ++v)
        bytes.push_back(inMemory == words ? weights[size_t(v)] : makeVar("n", DType::u32));
      Body dots;
      for (int64_t i = 0; i < rows; ++i) {
        const Expr at = (i0 + i) * (p.k / 4) + b * words + (w + half * inMemory);
        dots.push_back(bindTo("a", load(rounded, at), [&](const Expr &a) {
          Body sums;
          for (int64_t v = 0; v < vecs; ++v) {
            const Expr to = j + (i * cols + v * lanes);
            sums.push_back(store(part, to, dot4(load(part, to), kir::ref(bytes[size_t(v)]), a)));
          }
          return sums;
        }));
      }
      for (int64_t v = vecs; inMemory < words && v-- > 0;) {
        const Expr word = kir::ref(weights[size_t(v)]);
        dots = {let(bytes[size_t(v)], bytesOf(word, half, format), std::move(dots))};
      }
      body.insert(body.end(), dots.begin(), dots.end());
    }
    for (int64_t v = vecs; v-- > 0;)
      body = {let(weights[size_t(v)], load(group.inputs[p.b], from + (w * p.panels + v * lanes) + j), std::move(body))};
    return body;
  }

  /// The variables of Factors in one vector of columns.
  struct FactorVars {
    Var scale, minimum;
  };
  Body withFactors(const FactorVars &f, const Expr &panel, const Expr &b, const Expr &column, Body body) const {
    auto at = [&](const Buffer &from, const Expr &row) { return load(from, row * p.panels + column); };
    const Buffer &scalesOfB = group.inputs[unsigned(p.scales)];
    if (!hasMinima())
      return {let(f.scale, at(scalesOfB, panel * blocks + b), std::move(body))};
    const Buffer &supers = group.inputs[unsigned(p.supers)];
    auto six = [&](const Expr &word, int64_t bit) { return sixBits(word, b, bit, group.compute); };
    const Expr super = panel * (blocks / 4) + b / imm(superBlock / quantBlock) * 2;
    return {bindTo("six", at(scalesOfB, panel * (blocks / 2) + b / imm(2)), [&](const Expr &word) {
      const Expr d = cast(group.compute, at(supers, super)), dmin = cast(group.compute, at(supers, super + 1));
      return Body{let(f.scale, d * six(word, 0), {let(f.minimum, -(dmin * six(word, 8)), std::move(body))})};
    })};
  }

  /// Adds the sums of block b, scaled.
  Body addBlock(const Buffer &acc, const Buffer &part, const Expr &i0, int64_t rows, const Expr &panel, const Expr &b,
                int64_t first, int64_t vecs, const Expr &j) {
    const int64_t lanes = s.vec, cols = vecs * lanes;
    std::vector<FactorVars> ofB;
    for (int64_t v = 0; v < vecs; ++v)
      ofB.push_back({makeVar("db", group.compute), makeVar("mb", group.compute)});
    Body body;
    for (int64_t i = 0; i < rows; ++i) {
      const Expr at = (i0 + i) * blocks + b;
      auto adds = [&](const Expr &ofA, const Expr &own) {
        Body stores;
        for (int64_t v = 0; v < vecs; ++v) {
          const Expr to = j + (i * cols + v * lanes);
          const FactorVars &f = ofB[size_t(v)];
          const Factors factors{kir::ref(f.scale), own ? kir::ref(f.minimum) : nullptr};
          stores.push_back(store(
              acc, to, quantized::addBlock(cast(group.compute, load(part, to)), own, ofA, factors, load(acc, to))));
        }
        return stores;
      };
      body.push_back(bindTo("da", load(scales, at), [&](const Expr &ofA) {
        if (!hasMinima())
          return adds(ofA, nullptr);
        return Body{
            bindTo("sa", cast(group.compute, load(offsets, at)), [&](const Expr &own) { return adds(ofA, own); })};
      }));
    }
    for (int64_t v = vecs; v-- > 0;)
      body = withFactors(ofB[size_t(v)], panel, b, j + (first + v * lanes), std::move(body));
    return body;
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  const int64_t blocks;
  const QuantFormat format;
  const int64_t inMemory;  // words of a block in memory
  const int64_t perTask, panels, rowTasks;
  Buffer rounded, scales, offsets, sums;  // offsets: what a block's sum starts with, or with Q4_K the sum of the row's
};

}  // namespace

Schedule quantizedSchedule(const Problem &p, const Target &target) {
  Schedule s;
  s.vec = int(std::min<int64_t>(target.lanes(DType::f32), p.panels & -p.panels));
  s.nr = int(p.panels);
  // A tile has sums of both kinds, vectors of the weight and a broadcast in registers.
  Tile largest;
  largest.rows = target.vectorRegisters < 32 ? 3 : 6;
  s.mr = int(std::clamp<int64_t>(stackBudget / 2 / bytesOfRow(p), 1, tileForRows(largest, p.m).rows));
  s.mc = std::clamp<int64_t>(roundedBytes / bytesOfRow(p) / s.mr, 1, std::max<int64_t>(1, 48 / s.mr)) * s.mr;
  if (s.mc >= p.m)
    s.mc = ceilDiv(p.m, int64_t(s.mr)) * s.mr;
  // Some tasks for each thread, but each of several panels, whose products share the rounding of rows.
  const int64_t panels = ceilDiv(p.n, p.panels), rowTasks = ceilDiv(p.m, s.mc),
                wanted = ceilDiv(int64_t(target.threads) * 4, rowTasks), least = p.m > s.mr ? 8 : 2;
  s.nc = std::clamp(ceilDiv(panels, wanted), std::min(panels, least), panels) * p.panels;
  return s;
}

std::vector<Schedule> quantizedSpace(const Problem &p, const Schedule &base) {
  const int64_t all = ceilDiv(p.n, p.panels) * p.panels;
  std::vector<Schedule> space = ScheduleGrid(base)
                                    .over(&Schedule::nc, {p.panels, 2 * p.panels, 4 * p.panels, 8 * p.panels,
                                                          16 * p.panels, 32 * p.panels, 64 * p.panels})
                                    .over(&Schedule::mc, {int64_t(base.mr), 2 * base.mr, 4 * base.mr, base.mc})
                                    .take();
  std::erase_if(space, [&](const Schedule &s) { return s.nc > all || s.mc > base.mc; });
  return space;
}

LoweredGroup buildQuantized(GroupEval &group, const Problem &p, const Schedule &s) {
  GPTC_CHECK(s.vec > 0 && s.mr > 0 && s.mc > 0 && s.mc % s.mr == 0 && s.nr == p.panels && s.nc > 0 &&
                 s.nc % p.panels == 0 && p.panels % s.vec == 0,
             "{}", s.str());
  return Quantized(group, p, s).build();
}

}  // namespace gptc::matmul

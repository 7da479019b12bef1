// matmul with up to four rows of A (decoding). Reading B limits the speed, so B is read once, and not copied.
//
//   panels:  B is in memory in the order in which it is read (ir/ops/pack.cpp), at the full rate. All sums of a few
//            panels are in registers.
//   B [K,N]: lanes walk over columns. The sums of a task's columns stay in the first-level cache. A pass adds several
//            steps for one load and store of each sum, and prefetches the rows of the next pass. Parts of all rows are
//            read at 0.6 to 0.8 of the full rate, so what serves keeps its weights in panels (passes/pack_weights.cpp).
//   B [N,K]: each result is a chain along a row of B. Squares of B are transposed in registers, so that lanes are rows
//            of B and a step takes one FMA. Some lines of each row are prefetched, so this keeps up with memory.
//
// The sums are the same chains as in matmul.cpp.
#include "codegen/recipes/matmul/matmul.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc::matmul {

using namespace kir;

namespace {

/// Squares of B transposed side by side, so that there are as many chains of FMAs and shuffles hide their latency.
constexpr int64_t squares = 2;

/// Lines of each row that are prefetched.
constexpr int64_t linesAhead = 4;

/// Bytes of panels that are prefetched. Panels of a task follow each other in memory.
constexpr int64_t panelBytesAhead = 1024;

class FewRows {
public:
  FewRows(GroupEval &group, const Problem &p, const Schedule &s)
      : group(group), p(p), s(s), epilogue(group, p),
        words(p.stored == DType::bf16 && group.compute == DType::f32 && (s.pairs || p.tb || p.panels)),
        pairs(words && s.pairs) {}

  LoweredGroup build() {
    LoweredGroup out;
    out.kernel.name = group.kernelName();
    out.kernel.params = group.params();
    out.kernel.body = {parallel("task", ceilDiv(p.n, s.nc), [&](const Expr &t) { return Body{task(t)}; })};
    return out;
  }

private:
  /// Number of columns from `first` on, at most `most`.
  Expr columnsFrom(const Expr &first, int64_t most) const {
    return p.n % most ? min(imm(most), imm(p.n) - first) : imm(most);
  }
  Expr initOf(const Expr &row, const Expr &col) {
    return p.init >= 0 ? epilogue.init(imm(0), row, col) : fimm(0, group.compute);
  }

  /// Some columns, and the epilogue.
  Stmt task(const Expr &t) {
    const Expr first = t * s.nc, cols = columnsFrom(first, s.nc);
    if (p.panels)
      return panelTask(t, first, cols);
    sums = makeBuffer("c", group.compute, Storage::stack, p.m * s.nc);
    Body body = {serial("i", imm(p.m), [&](const Expr &i) {
      return Body{vectorLoop("j", cols, s.vec,
                             [&](const Expr &j) { return Body{store(sums, i * s.nc + j, initOf(i, first + j))}; })};
    })};
    if (p.tb)
      rowsOfB(body, t, first, cols);
    else
      columnsOfB(body, first, cols);
    body.push_back(epilogue.emit(imm(0), imm(0), imm(p.m), first, cols, s.vec,
                                 [&](const Expr &row, const Expr &col) { return load(sums, row * s.nc + col); }));
    return alloc(sums, std::move(body));
  }

  // ---- panels ------------------------------------------------------------------------------------------------------

  /// Panels side by side, as many as the registers hold sums of, and those left over one by one.
  Stmt panelTask(const Expr &t, const Expr &first, const Expr &cols) {
    const int64_t beside = s.mc, together = beside * p.panels;
    sums = makeBuffer("c", group.compute, Storage::stack, p.m * together);
    const Expr panel0 = t * (s.nc / p.panels), groups = cols / imm(together);
    auto from = [&](const Expr &own, const Expr &count, int64_t most) {
      return bindTo("own", own, [&](const Expr &own) {
        return somePanels(panel0 + own / imm(p.panels), first + own, count, most);
      });
    };
    Body body = {serial("g", groups, [&](const Expr &g) { return Body{from(g * together, imm(together), beside)}; })};
    if (p.n % together)  // only the last task has panels left over
      body.push_back(bindTo("done", groups * together, [&](const Expr &done) {
        return Body{serial("rest", (cols - done + (p.panels - 1)) / imm(p.panels), [&](const Expr &panel) {
          const Expr own = done + panel * p.panels;
          return Body{from(own, min(imm(p.panels), cols - own), 1)};
        })};
      }));
    return alloc(sums, std::move(body));
  }

  /// `count` panels from `panel` on: columns `first` to first + cols of the result.
  Body somePanels(const Expr &panel, const Expr &first, const Expr &cols, int64_t count) {
    const int64_t lanes = s.vec, vecs = p.panels / lanes, width = count * p.panels;
    Buffer acc = makeBuffer("acc", group.compute, Storage::reg, p.m * width);
    Body out;
    if (p.init >= 0)
      out.push_back(serial("i", imm(p.m), [&](const Expr &i) {
        return Body{vectorLoop("j", imm(width), s.vec,
                               [&](const Expr &j) { return Body{store(sums, i * width + j, fimm(0, group.compute))}; }),
                    vectorLoop("j", cols, s.vec,
                               [&](const Expr &j) { return Body{store(sums, i * width + j, initOf(i, first + j))}; })};
      }));
    auto each = [&](const std::function<Body(const Expr &)> &body) { return vectorLoop("j", imm(lanes), s.vec, body); };
    auto all = [&](const std::function<Stmt(const Expr &at)> &make) {
      return each([&](const Expr &j) {
        Body body;
        for (int64_t v = 0; v < p.m * width / lanes; ++v)
          body.push_back(make(j + v * lanes));
        return body;
      });
    };
    Body inside = {
        all([&](const Expr &at) { return store(acc, at, p.init >= 0 ? load(sums, at) : fimm(0, group.compute)); })};
    // Of bf16 memory has two steps of k together.
    const int64_t perRow = stepOfPanels(p.stored), rows = ceilDiv(p.k, perRow), whole = p.k / perRow,
                  passes = whole / atOnce;
    const int64_t rowElements = p.panels * perRow, panelElements = rows * rowElements;
    auto rowsFrom = [&](const Expr &row, int64_t n, bool odd) {
      Body body;
      for (int64_t u = 0; u < n; ++u)
        body.push_back(each([&](const Expr &j) {
          Body adds;
          for (int64_t c = 0; c < count; ++c)
            for (int64_t v = 0; v < vecs; ++v) {
              const Expr at = (panel + c) * panelElements + (row + u) * rowElements + (j + v * lanes) * perRow;
              const Body more = addRow(acc, row + u, at, j + (c * vecs + v) * lanes, width, odd);
              adds.insert(adds.end(), more.begin(), more.end());
            }
          return adds;
        }));
      return body;
    };
    if (passes)
      inside.push_back(serial("k", imm(passes), [&](const Expr &k) {
        Body body = {panelsAhead(panel, k * atOnce, count, panelElements, rowElements)};
        const Body steps = rowsFrom(k * atOnce, atOnce, false);
        body.insert(body.end(), steps.begin(), steps.end());
        return body;
      }));
    for (const Stmt &st : rowsFrom(imm(passes * atOnce), whole - passes * atOnce, false))
      inside.push_back(st);
    for (const Stmt &st : rowsFrom(imm(whole), rows - whole, true))
      inside.push_back(st);
    inside.push_back(all([&](const Expr &at) { return store(sums, at, load(acc, at)); }));
    out.push_back(alloc(acc, std::move(inside)));
    out.push_back(epilogue.emit(imm(0), imm(0), imm(p.m), first, cols, s.vec,
                                [&](const Expr &row, const Expr &col) { return load(sums, row * width + col); }));
    return out;
  }

  /// Adds a row of a panel, whose vector in memory begins at `at`, to the sums from `sum` on of each row of A.
  Body addRow(const Buffer &acc, const Expr &row, const Expr &at, const Expr &sum, int64_t width, bool odd) {
    const Buffer &from = group.inputs[p.b];
    auto add = [&](const Expr &k, const Expr &value, bool isOdd) {
      return addStep(k, value, isOdd, [&](int64_t i) { return std::pair(acc, sum + i * width); });
    };
    if (stepOfPanels(p.stored) == 1)
      return add(row, load(from, at), false);
    if (words)
      return add(row, loadPair(from, at), odd);
    Body both = add(row * 2, load(from, at), false);
    if (!odd)
      for (const Stmt &st : add(row * 2 + 1, load(from, at + 1), false))
        both.push_back(st);
    return both;
  }

  /// Prefetches what a pass from `row` on comes to later: what follows in memory is the next panel.
  Stmt panelsAhead(const Expr &panel, const Expr &row, int64_t count, int64_t panelElements, int64_t rowElements) {
    const int64_t bytes = int64_t(sizeOf(p.stored)), line = cacheLine / bytes, ahead = panelBytesAhead / bytes,
                  end = ceilDiv(p.n, p.panels) * panelElements - 1;
    Body all;
    for (int64_t c = 0; c < count; ++c)
      all.push_back(bindTo("next", (panel + c) * panelElements + row * rowElements + ahead, [&](const Expr &next) {
        Body one;
        for (int64_t l = 0; l < ceilDiv(atOnce * rowElements, line); ++l)
          one.push_back(prefetch(group.inputs[p.b], min(next + l * line, imm(end))));
        return one;
      }));
    return block(std::move(all));
  }

  // ---- matrices ----------------------------------------------------------------------------------------------------

  // A step of the chain takes one element of k, or two of bf16 that are next to each other. An odd last element is a
  // step of its own.
  int64_t steps() const { return words ? p.k / 2 : p.k; }
  bool hasOdd() const { return words && p.k % 2; }
  DType stepType() const { return words ? DType::u32 : group.compute; }
  Expr a(int64_t row, const Expr &step, bool odd = false) const {
    return element(p.a, p.ta, p.lda, imm(row), step, odd);
  }
  Expr b(const Expr &step, const Expr &col, bool odd = false) const {
    return element(p.b, !p.tb, p.ldb, col, step, odd);
  }
  /// The operand's value at element `at` of its other dimension and step `step` of k. `byRows`: k runs along its rows.
  Expr element(unsigned operand, bool byRows, int64_t ld, const Expr &at, const Expr &step, bool odd) const {
    Expr k = words ? step * 2 : step;
    return stepOf(words, group.inputs[operand], byRows ? k * ld + at : at * ld + k, byRows ? ld : 1, odd);
  }
  Expr added(const Expr &a, const Expr &b, const Expr &sum, bool odd) const {
    if (!words || pairs)
      return pairs ? dot(sum, b, a) : kir::fma(a, b, sum);
    auto low = [](const Expr &w) { return bitcast(DType::f32, binary(BinaryOp::shl, w, imm(16, DType::u32))); };
    auto high = [](const Expr &w) {
      return bitcast(DType::f32, binary(BinaryOp::and_, w, imm(0xffff0000, DType::u32)));
    };
    const Expr first = kir::fma(low(a), low(b), sum);
    return odd ? first : kir::fma(high(a), high(b), first);
  }

  void columnsOfB(Body &out, const Expr &first, const Expr &cols) {
    auto some = [&](const Expr &k, int64_t count, bool odd) {
      std::vector<Var> as;
      for (int64_t n = 0; n < p.m * count; ++n)
        as.push_back(makeVar("a", stepType()));
      auto add = [&](const Expr &from, const Expr &extent) {
        return vectorLoop("j", extent, s.vec, [&](const Expr &lane) {
          const Expr j = from + lane;
          std::vector<Var> bs;
          for (int64_t u = 0; u < count; ++u)
            bs.push_back(makeVar("b", stepType()));
          Body fmas;
          for (int64_t i = 0; i < p.m; ++i) {
            Expr sum = load(sums, j + i * s.nc);
            for (int64_t u = 0; u < count; ++u)
              sum = added(kir::ref(as[size_t(i * count + u)]), kir::ref(bs[u]), sum, odd);
            fmas.push_back(store(sums, j + i * s.nc, sum));
          }
          for (int64_t u = count; u-- > 0;)
            fmas = {let(bs[u], b(k + u, first + j, odd), std::move(fmas))};
          return fmas;
        });
      };
      Body body = count == atOnce ? fetching(k + count, first, cols, add) : Body{add(imm(0), cols)};
      for (size_t n = as.size(); n-- > 0;)
        body = {let(as[n], a(int64_t(n) / count, k + int64_t(n) % count, odd), std::move(body))};
      return body;
    };
    const int64_t passes = steps() / atOnce, left = steps() % atOnce;
    if (passes)
      out.push_back(serial("k", imm(passes), [&](const Expr &k) { return some(k * atOnce, atOnce, false); }));
    auto append = [&](const Body &more) { out.insert(out.end(), more.begin(), more.end()); };
    if (left)
      append(some(imm(passes * atOnce), left, false));
    if (hasOdd())
      append(some(imm(steps()), 1, true));
  }

  /// add(from, extent) for all columns, a line at a time, with prefetches of the pass from step `next` on: a task's
  /// pieces of rows are too short for the hardware prefetcher.
  Body fetching(const Expr &next, const Expr &first, const Expr &cols,
                const std::function<Stmt(const Expr &from, const Expr &extent)> &add) {
    const int64_t line = cacheLine / int64_t(sizeOf(p.stored)), perStep = words ? 2 : 1, rows = atOnce * perStep;
    const Expr far = min(next * perStep, imm(p.k - rows)) * p.ldb + first, lines = cols / imm(line);
    return {bindTo("far", far, [&](const Expr &far) {
      Body all = {serial("line", lines, [&](const Expr &l) {
        Body one;
        for (int64_t r = 0; r < rows; ++r)
          one.push_back(prefetch(group.inputs[p.b], far + r * p.ldb + l * line));
        one.push_back(add(l * line, imm(line)));
        return one;
      })};
      if (p.n % line)
        all.push_back(add(lines * line, cols - lines * line));
      return all;
    })};
  }

  void rowsOfB(Body &out, const Expr &t, const Expr &first, const Expr &cols) {
    const int64_t lanes = s.vec, at = squares * lanes;
    out.push_back(serial("g", cols / imm(at), [&](const Expr &g) { return Body{rowGroup(first, g * at, squares)}; }));
    // Task sizes are multiples of `at`, so only the last task has rows left over.
    const int64_t left = p.n % at, full = left / lanes;
    if (!left)
      return;
    Expr done = cols / imm(at) * at;
    Body rest;
    if (full)
      rest.push_back(rowGroup(first, done, full));
    if (left % lanes)
      eachStep(rest, imm(0), [&](const Expr &k, bool odd) {
        return Body{vectorLoop("j", imm(left % lanes), s.vec, [&](const Expr &j) {
          Expr col = done + full * lanes + j;
          return addStep(k, b(k, first + col, odd), odd, [&](int64_t i) { return std::pair(sums, col + i * s.nc); });
        })};
      });
    const int64_t tasks = ceilDiv(p.n, s.nc);
    out.push_back(tasks > 1 ? ifThen(binary(BinaryOp::eq, t, imm(tasks - 1)), rest) : block(rest));
  }

  /// Emits the steps from `from` on one by one.
  void eachStep(Body &out, const Expr &from, const std::function<Body(const Expr &k, bool odd)> &body) {
    out.push_back(serial("k", imm(steps()) - from, [&](const Expr &k) { return body(from + k, false); }));
    if (hasOdd())
      out.push_back(block(body(imm(steps()), true)));
  }

  /// sum(i) = a(i, k) * value + sum(i) for every row of A.
  Body addStep(const Expr &k, const Expr &value, bool odd, const std::function<std::pair<Buffer, Expr>(int64_t)> &sum) {
    return {bindTo("b", value, [&](const Expr &value) {
      Body body;
      for (int64_t i = 0; i < p.m; ++i) {
        auto [buffer, at] = sum(i);
        body.push_back(store(buffer, at, added(a(i, k, odd), value, load(buffer, at), odd)));
      }
      return body;
    })};
  }

  /// `count` vectors of rows of B, from column `col` of the task on.
  Stmt rowGroup(const Expr &first, const Expr &col, int64_t count) {
    const int64_t lanes = s.vec;
    Buffer acc = makeBuffer("acc", group.compute, Storage::reg, p.m * count * lanes);
    auto move = [&](bool in) {
      return vectorLoop("j", imm(lanes), s.vec, [&](const Expr &j) {
        Body all;
        for (int64_t i = 0; i < p.m; ++i)
          for (int64_t g = 0; g < count; ++g) {
            Expr near = j + (i * count + g) * lanes, far = col + (i * s.nc + g * lanes) + j;
            all.push_back(in ? store(acc, near, load(sums, far)) : store(sums, far, load(acc, near)));
          }
        return all;
      });
    };
    auto sumAt = [&](int64_t g, const Expr &lane) {
      return [=](int64_t i) { return std::pair(acc, lane + (i * count + g) * lanes); };
    };
    const int64_t whole = steps() / lanes;
    Body body = {move(true)};
    body.push_back(serial("s", imm(whole), [&](const Expr &square) {
      Expr k0 = square * lanes;
      // One line per row is too short for the hardware prefetcher: prefetch some lines ahead, or of the next rows.
      Body both = {bindTo("far", (square + linesAhead) * (lanes * (words ? 2 : 1)), [&](const Expr &far) {
        const Expr wrapped = far + select(lt(far, imm(p.k)), imm(0), imm((count * lanes - 1) * p.ldb));
        return Body{bindTo("next", (first + col) * p.ldb + wrapped, [&](const Expr &next) {
          Body all;
          for (int64_t row = 0; row < count * lanes; ++row)
            all.push_back(prefetch(group.inputs[p.b], min(next + row * p.ldb, imm((p.n - 1) * p.ldb + p.k - 1))));
          return all;
        })};
      })};
      for (int64_t g = 0; g < count; ++g)
        both.push_back(transposed(
            s.vec, stepType(), [&](int row, const Expr &k) { return b(k0 + k, first + col + (g * lanes + row)); },
            [&](int step, const Expr &lane, const Expr &v) {
              return block(addStep(k0 + int64_t(step), v, false, sumAt(g, lane)));
            }));
      return both;
    }));
    eachStep(body, imm(whole * lanes), [&](const Expr &k, bool odd) {
      return Body{vectorLoop("j", imm(lanes), s.vec, [&](const Expr &j) {
        Body all;
        for (int64_t g = 0; g < count; ++g)
          for (const Stmt &st : addStep(k, b(k, first + col + g * lanes + j, odd), odd, sumAt(g, j)))
            all.push_back(st);
        return all;
      })};
    });
    body.push_back(move(false));
    return alloc(acc, std::move(body));
  }

  GroupEval &group;
  const Problem &p;
  const Schedule &s;
  Epilogue epilogue;
  const bool words, pairs;                       // a step is two elements of k in a word; which kir::dot multiplies
  const int64_t atOnce = std::max(1, s.unroll);  // steps per pass over the sums of [K,N], rows of panels per pass
  Buffer sums;
};

}  // namespace

bool isFewRows(const Problem &p) { return p.m <= 4 && p.batch == 1 && p.fold == 0; }

namespace {

constexpr int64_t maxSums = 4096;  // of a task

/// Columns of a task so that there are about `tasks` tasks: a multiple of `unit`, at most max(unit, most).
int64_t columnsOfTask(const Problem &p, int64_t tasks, int64_t most, int64_t unit = 32) {
  return std::clamp(roundUp(ceilDiv(p.n, tasks), unit), unit, std::max(unit, most));
}

}  // namespace

Schedule fewRowsSchedule(const Problem &p, const Target &target) {
  Schedule s;
  s.recipe = RecipeKind::matmul;
  s.vec = target.lanes(DType::f32);
  s.mr = int(p.m);
  s.pairs = usesPairs(p, target);
  if (p.panels) {
    s.vec = int(std::min<int64_t>(s.vec, p.panels & -p.panels));
    s.nr = int(p.panels);
    s.unroll = 4;
    // Sums in registers, beside a vector of B and a value of A. More panels side by side are more chains at a time.
    const int64_t vecs = p.m * p.panels / s.vec;
    s.mc = std::clamp<int64_t>((int64_t(target.vectorRegisters) - 4) / vecs, 1, 4);
    while (s.mc > 1 && ceilDiv(p.n, s.mc * p.panels) < 2 * int64_t(target.threads))
      s.mc /= 2;
    s.nc = std::min(roundUp(ceilDiv(p.n, int64_t(target.threads) * 4), s.mc * p.panels), roundUp(p.n, s.mc * p.panels));
    return s;
  }
  if (!p.tb) {
    // The rows of a pass and the prefetched ones must leave room in the first-level cache.
    const int64_t perStep = stepOfPanels(p.stored) * int64_t(sizeOf(p.stored));
    s.nc = columnsOfTask(p, int64_t(target.threads), maxSums / p.m);
    s.unroll = 4 * perStep * s.nc > target.l1Bytes / 2 ? 2 : 4;
    return s;
  }
  // Enough tasks that all threads end at about the same time, each long enough to stream memory, of whole groups of
  // rows.
  s.nc = columnsOfTask(p, int64_t(target.threads) * 4, 2048, std::max<int64_t>(32, squares * s.vec));
  return s;
}

std::vector<Schedule> fewRowsSpace(const Problem &p, const Schedule &base) {
  ScheduleGrid grid(base);
  if (p.panels) {
    std::vector<Schedule> space =
        grid.over(&Schedule::mc, {1, 2, 4})
            .over(&Schedule::nc, {p.panels, 2 * p.panels, 4 * p.panels, 8 * p.panels, 16 * p.panels, 64 * p.panels})
            .take();
    llvm::erase_if(space, [&](const Schedule &s) { return s.mc > base.mc || s.nc % (s.mc * p.panels) != 0; });
    return space;
  }
  grid.over(&Schedule::nc, {32, 64, 128, 256, 512, 2048, 4096});
  if (!p.tb)
    grid.over(&Schedule::unroll, {2, 4});
  std::vector<Schedule> space = grid.take();
  if (p.tb)
    llvm::erase_if(space, [](const Schedule &s) { return s.nc % (squares * s.vec) != 0; });
  return space;
}

LoweredGroup buildFewRows(GroupEval &group, const Problem &p, const Schedule &s) {
  if (p.panels)
    GPTC_CHECK(s.vec > 0 && s.nr == p.panels && p.panels % s.vec == 0 && s.mc > 0 && s.nc > 0 &&
                   s.nc % (s.mc * p.panels) == 0,
               "{}", s.str());
  else
    GPTC_CHECK(s.vec > 0 && s.nc > 0 && (!p.tb || s.nc % (squares * s.vec) == 0), "{}", s.str());
  return FewRows(group, p, s).build();
}

}  // namespace gptc::matmul

// pack: copies a matrix into panels (ir/ops/pack.cpp), once for all products that will read it.
//
//   1. A task takes some panels and a block of k, so that the memory that it reads and writes fits the second-level
//      cache.
//   2. If rows of the matrix run along panels, pieces of rows are copied; if they run along k, squares are transposed
//      in registers (PanelPack). For bf16 the two rows of a pair are interleaved.
//   3. A ragged last panel and the rest of k are copied element by element. Missing elements are zero.
//
// On CUDA each element is computed by itself (pointwiseLoops).
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "codegen/recipes/tile.h"
#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

using namespace kir;

namespace {

struct Matrix {
  int64_t n, k, ld;        // columns of the product, elements of k, elements between rows in memory
  int64_t cols, together;  // columns of a panel; neighbours in k that one step holds
  bool tb;
  int64_t panels() const { return ceilDiv(n, cols); }
  int64_t steps() const { return ceilDiv(k, together); }

  explicit Matrix(const Op &fused) {
    const Op &op = *fused.body->front();
    const Type &b = op.operand(0)->type;
    tb = op.attrs.getBool("tb");
    n = b.dim(tb ? 0 : 1), k = b.dim(tb ? 1 : 0), ld = b.padded(1);
    cols = op.attrs.getInt("cols"), together = stepOfPanels(b.dtype);
  }
};

class Packing {
public:
  Packing(GroupEval &group, const Schedule &s)
      : m(group.fused), from(group.inputs[0]), to(group.outputs[0]), compute(group.compute) {
    lanes = int(std::min<int64_t>(std::max(1, s.vec), m.cols & -m.cols));
    perTask = std::clamp<int64_t>(s.nc / m.cols, 1, m.panels());
    kc = std::min(m.k, roundUp(std::max<int64_t>(1, s.kc), m.together * lanes));
  }

  Stmt tasks() {
    const int64_t kTasks = ceilDiv(m.k, kc), colTasks = ceilDiv(m.panels(), perTask);
    return parallel("task", kTasks * colTasks, [&](const Expr &t) {
      Expr colTask = t / imm(kTasks);
      return Body{bindTo("panel0", colTask * perTask, [&](const Expr &panel0) {
        return Body{bindTo("k0", t % imm(kTasks) * kc, [&](const Expr &k0) {
          Expr kl = m.k % kc ? min(imm(kc), imm(m.k) - k0) : imm(kc);
          return Body{bindTo("kl", kl, [&](const Expr &kl) { return task(panel0, colTask, colTasks, k0, kl); })};
        })};
      })};
    });
  }

private:
  const Matrix m;
  const Buffer from, to;
  const DType compute;
  int lanes;
  int64_t perTask, kc;

  static Expr eq(const Expr &x, const Expr &y) { return binary(BinaryOp::eq, x, y); }
  int64_t tailCols() const { return m.n % m.cols; }
  Expr source(const Expr &k, const Expr &n) const { return m.tb ? n * m.ld + k : k * m.ld + n; }
  /// The offset in `to` of a step of a panel.
  Expr target(const Expr &panel, const Expr &step) const { return (panel * m.steps() + step) * (m.together * m.cols); }

  Body task(const Expr &panel0, const Expr &colTask, int64_t colTasks, const Expr &k0, const Expr &kl) {
    Expr panels = m.panels() % perTask ? min(imm(perTask), imm(m.panels()) - panel0) : imm(perTask);
    Expr last = eq(colTask, imm(colTasks - 1));
    Expr full = tailCols() ? panels - select(last, imm(1), imm(0)) : panels;
    if (m.together > 1)
      return pairs(panel0, full, last, k0, kl);
    PanelPack pack;
    pack.from = from, pack.to = to;
    pack.stepStride = m.tb ? 1 : m.ld, pack.colStride = m.tb ? m.ld : 1;
    pack.base = source(k0, panel0 * m.cols);
    pack.toBase = target(panel0, k0);
    pack.steps = kl;
    pack.fullPanels = full, pack.tailCols = tailCols(), pack.hasTail = last;
    pack.width = int(m.cols), pack.lanes = lanes;
    pack.panelSteps = m.k;
    pack.fetch = true;
    return packPanels(pack);
  }

  Body pairs(const Expr &panel0, const Expr &full, const Expr &last, const Expr &k0, const Expr &kl) {
    Body out;
    // k0 is even, so only the last pair of the matrix may lack its second element.
    const Expr done = m.tb ? kl / imm(lanes) * lanes : kl / imm(2) * 2;
    auto fullPanel = [&](const Expr &panel) {
      if (lanes < 2)
        return Body{oneByOne(panel, imm(m.cols), k0, kl)};
      Body all = m.tb ? squares(panel, k0, kl / imm(lanes)) : rows(panel, k0, kl / imm(2));
      all.push_back(oneByOne(panel, imm(m.cols), k0 + done, kl - done));
      return all;
    };
    out.push_back(serial("p", full, [&](const Expr &p) { return fullPanel(panel0 + p); }));
    if (tailCols()) {
      Expr panel = panel0 + full;
      out.push_back(ifThen(last, {zeros(panel, k0, kl), oneByOne(panel, imm(tailCols()), k0, kl)}));
    }
    return out;
  }

  /// Interleaves the two vectors in `two`, elements k and k + 1 of some columns, and stores them.
  Stmt shuffled(const Buffer &two, const Expr &at) const {
    Expr second = binary(BinaryOp::and_, lane(), imm(1)) * int64_t(lanes), half = binary(BinaryOp::shr, lane(), imm(1));
    return block({store(to, at + lane(), load(two, second + half)),
                  store(to, at + lane() + int64_t(lanes), load(two, second + half + int64_t(lanes / 2)))});
  }
  Stmt withTwo(const std::function<Body(const Buffer &)> &body) const {
    Buffer two = makeBuffer("two", compute, Storage::reg, 2 * lanes);
    return alloc(two, body(two));
  }

  Body rows(const Expr &panel, const Expr &k0, const Expr &steps) const {
    return {serial("s", steps, [&](const Expr &s) {
      return Body{serial("g", imm(m.cols / lanes), [&](const Expr &g) {
        Expr k = k0 + s * 2, src = source(k, panel * m.cols + g * int64_t(lanes));
        Expr at = target(panel, k0 / imm(2) + s) + g * int64_t(2 * lanes);
        return Body{withTwo([&](const Buffer &two) {
          return Body{vectorLoop("j", imm(lanes), lanes, [&](const Expr &j) {
            return Body{store(two, j, load(from, src + j)), store(two, j + int64_t(lanes), load(from, src + m.ld + j)),
                        shuffled(two, at)};
          })};
        })};
      })};
    })};
  }

  Body squares(const Expr &panel, const Expr &k0, const Expr &count) const {
    return {serial("g", imm(m.cols / lanes), [&](const Expr &g) {
      return Body{serial("q", count, [&](const Expr &q) {
        Expr k = k0 + q * int64_t(lanes), src = source(k, panel * m.cols + g * int64_t(lanes));
        return Body{withTwo([&](const Buffer &two) {
          return Body{transposed(
              lanes, compute, [&](int row, const Expr &lane) { return load(from, src + row * m.ld + lane); },
              [&](int i, const Expr &lane, const Expr &v) {
                if (i % 2 == 0)
                  return store(two, lane, v);
                Expr at = target(panel, k / imm(2) + int64_t(i / 2)) + g * int64_t(2 * lanes);
                return block({store(two, lane + int64_t(lanes), v), shuffled(two, at)});
              })};
        })};
      })};
    })};
  }

  /// Copies elements k0 .. k0 + kl of the first `cols` columns of a panel one by one.
  Stmt oneByOne(const Expr &panel, const Expr &cols, const Expr &k0, const Expr &kl) const {
    return serial("k", kl, [&](const Expr &x) {
      return Body{bindTo("k", k0 + x, [&](const Expr &k) {
        Expr at = target(panel, k / imm(2)) + k % imm(2);
        Body all = {serial("c", cols, [&](const Expr &c) {
          return Body{store(to, at + c * 2, load(from, source(k, panel * m.cols + c)))};
        })};
        if (m.k % 2)  // the last one has no partner
          all.push_back(ifThen(eq(k, imm(m.k - 1)), {serial("c", cols, [&](const Expr &c) {
                                 return Body{store(to, at + (c * 2 + 1), fimm(0, compute))};
                               })}));
        return all;
      })};
    });
  }
  Stmt zeros(const Expr &panel, const Expr &k0, const Expr &kl) const {
    return serial("s", (kl + 1) / imm(2), [&](const Expr &s) {
      return Body{vectorLoop("j", imm(2 * m.cols), lanes, [&](const Expr &j) {
        return Body{store(to, target(panel, k0 / imm(2) + s) + j, fimm(0, compute))};
      })};
    });
  }
};

bool matches(const Op &fused) {
  return fused.body && fused.body->size() == 2 && fused.body->front()->is(OpKind::pack) &&
         fused.body->back()->is(OpKind::yield) && fused.numOperands() == 1 && fused.numResults() == 1;
}

Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  if (target.isCuda()) {
    s.threads = 256;
    s.vec = target.lanes(DType::f32);
    return s;
  }
  const Matrix m(fused);
  s.vec = target.lanes(DType::f32);
  const int64_t elements =
      std::clamp<int64_t>(m.n * m.k / (16 * std::max(1u, target.threads)), int64_t(8) << 10, int64_t(64) << 10);
  // Rows are read in long pieces, along k or along panels.
  s.nc = m.tb ? m.cols : std::min<int64_t>(m.panels(), ceilDiv(1024, m.cols)) * m.cols;
  s.kc = std::min(m.k, roundUp(ceilDiv(elements, s.nc), 2 * s.vec));
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda())
    return {};
  return ScheduleGrid(base)
      .over(&Schedule::nc, {base.nc / 4, base.nc, 4 * base.nc})
      .over(&Schedule::kc, {base.kc / 4, base.kc, 4 * base.kc})
      .take();
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  GroupEval group(fused, compute);
  LoweredGroup out;
  out.kernel.name = group.kernelName();
  out.kernel.params = group.params();
  out.kernel.body = {s.threads > 0 ? pointwiseLoops(group, {0}, s) : Packing(group, s).tasks()};
  return out;
}

}  // namespace

const Recipe &packRecipe() {
  static const Recipe recipe = {RecipeKind::pack, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc

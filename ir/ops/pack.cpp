// Matrices in panels, the layout in which products read their second operand (codegen/recipes/matmul/matmul.cpp): all
// steps of `cols` columns are contiguous, so that a tile of a product streams through memory.
//
//   b is [K,N], or [N,K] with tb. Its panels are [ceil(N/cols), K, cols]: element (k, n) is at [n / cols, k, n % cols].
//   For bf16, of which products take two neighbours of k at a time, they are [ceil(N/cols), ceil(K/2), 2 cols]: (k, n)
//   is at [n / cols, k / 2, 2 (n % cols) + k % 2]. Elements past the last column or an odd last k are zero.
#include "ir/ops/op_support.h"

namespace gptc {

using namespace ops;

static int64_t ceilDiv(int64_t n, int64_t d) { return (n + d - 1) / d; }

std::optional<Type> panelsOf(const Type &b, int64_t cols, bool tb) {
  if (b.rank() != 2 || !isArithmetic(b.dtype) || cols < 1 || cols > maxPanelColumns)
    return std::nullopt;
  const int64_t n = b.dim(tb ? 0 : 1), k = b.dim(tb ? 1 : 0), together = stepOfPanels(b.dtype);
  return Type(b.dtype, {Dim(ceilDiv(n, cols)), Dim(ceilDiv(k, together)), Dim(together * cols)});
}

namespace {

/// The place of element (k, n) in panels. I is int64_t or kir::Expr.
template <typename I> struct Place {
  I panel, step, col;
};
Place<kir::Expr> placeOf(const kir::Expr &k, const kir::Expr &n, int64_t cols, int64_t together) {
  using kir::imm;
  kir::Expr col = n % imm(cols);
  if (together == 1)
    return {n / imm(cols), k, col};
  return {n / imm(cols), k / imm(together), col * together + k % imm(together)};
}
Place<int64_t> placeOf(int64_t k, int64_t n, int64_t cols, int64_t together) {
  return {n / cols, k / together, n % cols * together + k % together};
}

/// Calls f(position in b, position in its panels) for every element of b.
void forEachElement(const Type &b, const Type &panels, bool tb, const std::function<void(int64_t, int64_t)> &f) {
  const int64_t together = stepOfPanels(b.dtype), cols = panels.dim(2) / together;
  forEachIndex(b, [&](llvm::ArrayRef<int64_t> at, int64_t position) {
    const Place<int64_t> p = placeOf(at[tb], at[!tb], cols, together);
    f(position, (p.panel * panels.dim(1) + p.step) * panels.dim(2) + p.col);
  });
}

std::vector<OpDef::Sample> samplesPack(unsigned seed) {
  constexpr int64_t widths[] = {1, 4, 16, 32};
  SampleSource s(seed);
  std::vector<OpDef::Sample> samples;
  for (bool tb : {false, true})
    for (DType t : {DType::f32, DType::bf16}) {
      const int64_t k = s.extent(40), n = s.extent(70), cols = widths[s.between(0, 3)];
      const Dim last = s.maybePadded(tb ? k : n);
      OpDef::Sample sample{.operandTypes = {Type(t, {Dim(tb ? n : k), last})},
                           .attrs = attrs({{"cols", cols}, {"tb", tb}})};
      samples.push_back(std::move(sample));
    }
  return samples;
}

}  // namespace

OpDef define_pack() {
  return {
      .kind = OpKind::pack,
      .name = "pack",
      .summary = "a matrix in panels, for products that read it as their second operand: element (k,n) at [n/cols, k, "
                 "n%cols], of bf16 at [n/cols, k/2, 2(n%cols)+k%2], zeros past the edges",
      .shapes = "b [K,N] ([N,K] with tb) -> panels [ceil(N/cols),K,cols], of bf16 [ceil(N/cols),ceil(K/2),2cols]",
      .operands = {{"b"}},
      .attrs = {{AttrSpec::Int, "cols", true, int64_t(0)}, {AttrSpec::Bool, "tb", false, false}},
      .results = {"panels"},
      .fusion = FusionKind::pack,
      .autocast = NotApplicable{"panels are made of what products read, in its precision"},
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &b = op.operand(0)->type;
            std::optional<Type> panels = panelsOf(b, op.attrs.getInt("cols"), op.attrs.getBool("tb"));
            if (!panels)
              return fail(error, "{} has no panels of {} columns", b.str(), op.attrs.getInt("cols"));
            if (std::string why = panels->invalid(); !why.empty())
              return fail(error, "the panels would have {}", why);
            types = {*panels};
            return true;
          },
      .check = NotApplicable{"the result type says everything"},
      .grad = NotApplicable{"a copy for products, made when gradients have been made"},
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor panels(op.result()->type);
        forEachElement(in[0]->type, panels.type, op.attrs.getBool("tb"),
                       [&](int64_t from, int64_t to) { panels.data[to] = in[0]->data[from]; });
        return {std::move(panels)};
      },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        using kir::imm;
        const Type &b = c.op.operand(0)->type;
        const bool tb = c.op.attrs.getBool("tb");
        const int64_t cols = c.op.attrs.getInt("cols"), together = stepOfPanels(b.dtype);
        const int64_t n = b.dim(tb ? 0 : 1), k = b.dim(tb ? 1 : 0);
        const std::vector<kir::Expr> at = c.index();
        kir::Expr col = at[0] * cols + (together == 1 ? at[2] : at[2] / imm(together));
        kir::Expr row = together == 1 ? at[1] : at[1] * together + at[2] % imm(together);
        kir::Expr zero = c.f(0), inside;
        auto clamp = [&](kir::Expr &i, int64_t extent, bool exact) {
          if (exact)
            return;
          kir::Expr here = kir::lt(i, imm(extent));
          inside = inside ? kir::binary(kir::BinaryOp::and_, inside, here) : here;
          i = kir::min(i, imm(extent - 1));
        };
        clamp(col, n, n % cols == 0);
        clamp(row, k, k % together == 0);
        kir::Expr value = tb ? c.operandAt(0, {col, row}) : c.operandAt(0, {row, col});
        return {inside ? kir::select(inside, value, zero) : value};
      },
      .samples = samplesPack,
  };
}

OpDef define_unpack() {
  return {
      .kind = OpKind::unpack,
      .name = "unpack",
      .summary = "the matrix of which these are the panels",
      .shapes = "panels -> b, of the type given",
      .operands = {{"panels"}},
      .attrs = {{AttrSpec::Bool, "tb", false, false}},
      .results = {"b"},
      .fusion = FusionKind::gather,
      .autocast = NotApplicable{"its result has the precision of the panels"},
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = NotApplicable{"panels do not say how many columns the last one has: the type is given"},
      .check = [](const Op &op) -> std::string {
        const Type &panels = op.operand(0)->type, &b = op.result()->type;
        const int64_t cols = panels.rank() == 3 ? panels.dim(2) / stepOfPanels(b.dtype) : 0;
        const std::optional<Type> want = panelsOf(b, cols, op.attrs.getBool("tb"));
        return want && want->sameShape(panels) && want->dtype == panels.dtype
                   ? ""
                   : fmt::format("{} are no panels of {}", panels.str(), b.str());
      },
      .grad = NotApplicable{"stands only where gradients have been made"},
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor b(op.result()->type);
        forEachElement(b.type, in[0]->type, op.attrs.getBool("tb"),
                       [&](int64_t to, int64_t from) { b.data[to] = in[0]->data[from]; });
        return {std::move(b)};
      },
      .lower = [](LowerCtx &c) -> std::vector<kir::Expr> {
        const Type &panels = c.op.operand(0)->type;
        const int64_t together = stepOfPanels(panels.dtype);
        const bool tb = c.op.attrs.getBool("tb");
        const std::vector<kir::Expr> at = c.index();
        const Place<kir::Expr> p = placeOf(at[tb], at[!tb], panels.dim(2) / together, together);
        return {c.operandAt(0, {p.panel, p.step, p.col})};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        std::vector<OpDef::Sample> samples;
        for (OpDef::Sample &s : samplesPack(seed)) {
          const bool tb = s.attrs.getBool("tb");
          const Type b = s.operandTypes[0];
          samples.push_back({.operandTypes = {*panelsOf(b, s.attrs.getInt("cols"), tb)},
                             .attrs = attrs({{"tb", tb}}),
                             .resultTypes = {b}});
        }
        return samples;
      },
  };
}

}  // namespace gptc

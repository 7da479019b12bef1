// Ops that act on elements by their position: dropout, the causal mask, ALiBi.
#include "ir/ops/op_support.h"
#include "ir/random.h"

#include <cmath>
#include <cstdlib>
#include <limits>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

bool inferDropout(const Op &op, std::vector<Type> &types, std::string &error) {
  if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error))
    return false;
  for (unsigned i = 1; i < op.numOperands(); ++i)
    if (!expectScalar(op, i, DType::i64, error))
      return false;
  types = {op.operand(0)->type};
  return true;
}

std::vector<Tensor> referenceDropout(const Op &op, std::span<const Tensor *const> in) {
  Tensor y(op.result()->type);
  double p = op.attrs.getFloat("p");
  int64_t each = y.type.slice(1, y.type.rank()).elements(), index0 = in.size() > 4 ? int64_t(in[4]->data[0]) : 0;
  for (int64_t s = 0; s < y.type.dim(0); ++s) {
    RandomKey key = dropoutKey(op, *in[1], *in[2], *in[3], s);
    for (int64_t i = 0; i < each; ++i)
      y.data[s * each + i] = randomUniform(key, uint64_t(index0 + i)) < p ? 0.0 : in[0]->data[s * each + i] / (1 - p);
  }
  return {std::move(y)};
}

/// Whether the window of a causal_mask reaches as far behind a query as before it.
bool isTwoSided(const Op &op) { return op.attrs.getBool("two_sided"); }

double maskValue(const Op &op) { return op.attrs.getFloat("value", -std::numeric_limits<double>::infinity()); }

}  // namespace

OpDef define_dropout() {
  return {
      .kind = OpKind::dropout,
      .name = "dropout",
      .summary =
          "x / (1-p) with probability 1-p, else 0. Dimension 0 counts sequences: element i of sequence s is decided "
          "by random(seed, step, stream, seq0+s, index0+i) alone",
      .shapes = "x [B,..], seed, step, seq0[, index0], each i64[] -> y [B,..]",
      .operands = {{"x"}, {"seed"}, {"step"}, {"seq0"}, {"index0", true}},
      .attrs = {{AttrSpec::Float, "p", true, 0.0}, {AttrSpec::Int, "stream", true, int64_t(0)}},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {0}, [](const Op &op) { return op.numOperands() == 4; }},
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferDropout,
      .check = checkDropoutAttrs,
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        // The gradient gets the same mask.
        llvm::SmallVector<Value *, 5> operands(c.op.operands());
        operands[0] = c.dresults[0];
        std::vector<Value *> grads(operands.size(), nullptr);
        grads[0] = c.b.value(OpKind::dropout, operands, c.op.attrs);
        return grads;
      },
      .cost = [](const Op &op) { return streamCost(op, 10); },
      .reference = referenceDropout,
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const Type &x = c.op.operand(0)->type;
        std::vector<Expr> at = c.index();
        Expr i = kir::imm(0);
        for (unsigned d = 1; d < x.rank(); ++d)
          i = i * x.dim(int(d)) + at[d];
        if (c.op.numOperands() > 4)
          i = i + c.operand(4);
        else if (x.slice(1, x.rank()).elements() <= int64_t(1) << 32)
          i = kir::cast(DType::u32, i);
        RandomKeyExpr key = randomKeyExpr(c.operand(1), c.operand(2), c.stream(), c.operand(3) + at[0]);
        double p = c.op.attrs.getFloat("p");
        // A product with 0 instead of a select of the product: LLVM would delay the load of x until the mask is known,
        // which makes a streaming kernel 2.4x slower on Zen 5. If x is not finite, neither is the result.
        return {c.operand(0) * kir::select(dropoutKeeps(randomBitsExpr(key, i), p), c.f(1 / (1 - p)), c.f(0))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        Type whole(DType::f32, {s.extent(5), s.extent(9), s.maybePadded(s.extent(129))}),
            i64 = Type::scalar(DType::i64);
        for (const Type &t : {whole, whole.slice(1, 3), whole.slice(2, 3)}) {
          double p = samples.empty() ? 0.2 : samples.size() == 1 ? 0.5 : 0.0;
          samples.push_back({.operandTypes = {t, i64, i64, i64},
                             .attrs = attrs({{"p", p}, {"stream", s.between(0, 1000)}}),
                             .operandValues = {Tensor(), Tensor::scalar(double(s.between(0, 1 << 30)), DType::i64),
                                               Tensor::scalar(double(s.between(0, 100000)), DType::i64),
                                               Tensor::scalar(double(s.between(0, int64_t(1) << 40)), DType::i64)}});
        }
        // A part of each sequence.
        OpDef::Sample part = samples[0];
        part.operandTypes.push_back(i64);
        part.operandValues.push_back(Tensor::scalar(double(s.between(1, int64_t(1) << 34)), DType::i64));
        samples.push_back(std::move(part));
        return samples;
      },
  };
}

OpDef define_causal_mask() {
  return {
      .kind = OpKind::causal_mask,
      .name = "causal_mask",
      .summary = "s where column <= row + (S-T), else `value`: each query sees the keys up to its own position, with a "
                 "window the last `window` of them, and with `two_sided` the keys fewer than `window` away from it",
      .shapes = "s [..,T,S] -> y [..,T,S]",
      .operands = {{"s"}},
      .attrs = {{AttrSpec::Float, "value", false, -std::numeric_limits<double>::infinity()},
                {AttrSpec::Int, "window", false, int64_t(0)},
                {AttrSpec::Bool, "two_sided", false, false}},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &s = op.operand(0)->type;
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 2, error))
              return false;
            if (s.dim(-2) > s.dim(-1))
              return fail(error, "{} has more rows than columns: a row would see nothing", s.str());
            types = {s};
            return true;
          },
      .check = [](const Op &op) -> std::string {
        const int64_t window = op.attrs.getInt("window"), longest = 1 << 30;
        if (window < 0 || window > longest)
          return fmt::format("window = {} must be between 0 and {}", window, longest);
        return isTwoSided(op) && !window ? "two_sided = true needs a window" : "";
      },
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        AttrMap at = c.op.attrs;
        at.set("value", 0.0);
        return {c.b.value(OpKind::causal_mask, {c.dresults[0]}, std::move(at))};
      },
      .cost = [](const Op &op) { return streamCost(op, 0); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y = *in[0];
        int64_t columns = y.type.dim(-1), rows = y.type.dim(-2), window = op.attrs.getInt("window");
        for (int64_t i = 0; i < int64_t(y.data.size()); ++i) {
          const int64_t own = i / columns % rows + columns - rows, last = isTwoSided(op) ? own + window - 1 : own;
          if (i % columns > last || (window && i % columns <= own - window))
            y.data[i] = maskValue(op);
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const Type &s = c.op.operand(0)->type;
        std::vector<Expr> at = c.index();
        const int64_t window = c.op.attrs.getInt("window");
        Expr own = at[at.size() - 2] + (s.dim(-1) - s.dim(-2));
        Expr seen = kir::binary(BinaryOp::le, at.back(), isTwoSided(c.op) ? own + (window - 1) : own);
        if (window)
          seen = kir::binary(BinaryOp::and_, seen, kir::lt(own + -window, at.back()));
        return {kir::select(seen, c.operand(0), c.f(maskValue(c.op)))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        int64_t rows = s.extent(33), columns = rows + s.between(0, 3) * s.extent(33);
        Type t(DType::f32, {s.extent(3), s.extent(3), rows, s.maybePadded(columns)});
        return {{.operandTypes = {t}, .attrs = attrs({{"value", -2.5}})},
                {.operandTypes = {t.slice(2, 4)}},
                {.operandTypes = {t.slice(1, 4)}, .attrs = attrs({{"window", s.between(1, columns)}})},
                {.operandTypes = {t.slice(2, 4)},
                 .attrs = attrs({{"window", s.between(1, columns)}, {"two_sided", true}})}};
      },
  };
}

OpDef define_alibi() {
  return {
      .kind = OpKind::alibi,
      .name = "alibi",
      .summary = "s minus the slope of head h times abs(row + (S-T) - column) (Press et al. 2022)",
      .shapes = "s [..,H,T,S] -> y [..,H,T,S]",
      .operands = {{"s"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::sequences,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &s = op.operand(0)->type;
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 3, error))
              return false;
            if (s.dim(-2) > s.dim(-1))
              return fail(error, "{} has more rows than columns: queries stand at the end of the keys", s.str());
            types = {s};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> { return {c.dresults[0]}; },
      .cost = [](const Op &op) { return streamCost(op, 3); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y = *in[0];
        const int64_t columns = y.type.dim(-1), rows = y.type.dim(-2), heads = y.type.dim(-3);
        for (int64_t i = 0; i < int64_t(y.data.size()); ++i) {
          const int64_t query = i / columns % rows + columns - rows, head = i / columns / rows % heads;
          y.data[i] -= alibiSlope(head, heads) * double(std::abs(query - i % columns));
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const Type &s = c.op.operand(0)->type;
        std::vector<Expr> at = c.index();
        const size_t n = at.size();
        Expr distance = at[n - 1] - (at[n - 2] + (s.dim(-1) - s.dim(-2)));
        distance = kir::unary(UnaryOp::abs, kir::cast(c.compute(), distance));
        return {kir::fma(-alibiSlope(at[n - 3], s.dim(-3), c.compute()), distance, c.operand(0))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (int64_t heads : {int64_t(1), int64_t(8), s.extent(17)}) {
          int64_t rows = s.extent(17), columns = rows + s.between(0, 1) * s.extent(17);
          samples.push_back({.operandTypes = {Type(DType::f32, {s.extent(3), heads, rows, s.maybePadded(columns)})}});
        }
        return samples;
      },
  };
}

}  // namespace gptc

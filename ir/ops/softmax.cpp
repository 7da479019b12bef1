// Reductions and softmax over the last dimension.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc {
using namespace ops;
using kir::Expr;

namespace {

bool inferRow(const Op &op, std::vector<Type> &types, std::string &error) {
  if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error))
    return false;
  const Type &x = op.operand(0)->type;
  types = {op.is(OpKind::softmax) ? x : rowsOf(x).withDType(statDType(x.dtype))};
  return true;
}

std::vector<OpDef::Sample> samplesRow(unsigned seed) {
  SampleSource s(seed);
  Type x(DType::f32, {s.extent(5), s.extent(5), s.maybePadded(s.extent(129))});
  return {{.operandTypes = {x}}, {.operandTypes = {x.slice(2, 3)}}};
}

/// A row statistic repeated along the last dimension: broadcast adds only leading dimensions, so the new one is
/// transposed to the back.
Value *repeatAlongRow(Builder &b, Value *rows, const Type &x) {
  Type turned(x.dtype, {x.dims.back()});
  std::vector<int64_t> perm;
  for (unsigned d = 0; d + 1 < x.rank(); ++d) {
    turned.dims.push_back(x.dims[d]);
    perm.push_back(int64_t(d) + 1);
  }
  perm.push_back(0);
  return b.value(OpKind::transpose, {b.op(OpKind::broadcast, {rows}, {turned})->result()}, attrs({{"perm", perm}}));
}

/// An op that computes each row of x by itself.
struct RowSpec {
  OpKind kind;
  const char *name, *summary, *shapes;
  Rule<std::vector<Value *>(GradCtx &)> grad;
  double flops;
  /// Computes one row of n elements: one result, or n.
  void (*reference)(const double *x, int64_t n, double *y);
  Expr (*lower)(LowerCtx &c, Expr x);
};

OpDef rowOp(RowSpec spec) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = spec.shapes,
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = rowsOfScores,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferRow,
      .check = NotApplicable{"types say all"},
      .grad = std::move(spec.grad),
      .cost = [flops = spec.flops](const Op &op) { return streamCost(op, flops); },
      .reference = [reference = spec.reference](const Op &op,
                                                std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        const Type &x = in[0]->type;
        const size_t each = y.data.size() / size_t(x.rows());
        for (int64_t r = 0; r < x.rows(); ++r)
          reference(&in[0]->data[size_t(r * x.dim(-1))], x.dim(-1), &y.data[size_t(r) * each]);
        return {std::move(y)};
      },
      .lower = [lower = spec.lower](LowerCtx &c) -> std::vector<Expr> { return {lower(c, c.operand(0))}; },
      .samples = samplesRow,
  };
}

}  // namespace

OpDef define_row_sum() {
  return rowOp({.kind = OpKind::row_sum,
                .name = "row_sum",
                .summary = "sum over the last dimension",
                .shapes = "x [..,C] -> y [..]",
                .grad = [](GradCtx &c) -> std::vector<Value *> {
                  Value *dy = c.dresults[0];
                  const Type &x = c.op.operand(0)->type;
                  if (dy->type.dtype != x.dtype)
                    dy = c.b.value(OpKind::cast, {dy}, attrs({{"dtype", nameOf(x.dtype).str()}}));
                  return {repeatAlongRow(c.b, dy, x)};
                },
                .flops = 1,
                .reference =
                    [](const double *x, int64_t n, double *y) {
                      for (int64_t c = 0; c < n; ++c)
                        *y += x[c];
                    },
                .lower = [](LowerCtx &c, Expr x) { return c.rowSum(std::move(x)); }});
}

OpDef define_row_max() {
  return rowOp({.kind = OpKind::row_max,
                .name = "row_max",
                .summary = "largest element over the last dimension",
                .shapes = "x [..,C] -> y [..]",
                .grad = NotApplicable{"only subtracted for range, where it cancels; softmax has a gradient of its own"},
                .flops = 1,
                .reference = [](const double *x, int64_t n, double *y) { *y = *std::max_element(x, x + n); },
                .lower = [](LowerCtx &c, Expr x) { return c.rowMax(std::move(x)); }});
}

OpDef define_row_abs_max() {
  OpDef def = rowOp({.kind = OpKind::row_abs_max,
                     .name = "row_abs_max",
                     .summary = "largest magnitude over the last dimension; what is not finite counts as 0",
                     .shapes = "x [..,C] -> y [..]",
                     .grad = placedLate,
                     .flops = 2,
                     .reference =
                         [](const double *x, int64_t n, double *y) {
                           for (int64_t c = 0; c < n; ++c)
                             if (std::isfinite(x[c]))
                               *y = std::max(*y, std::fabs(x[c]));
                         },
                     .lower =
                         [](LowerCtx &c, Expr x) {
                           const Expr magnitude = kir::unary(kir::UnaryOp::abs, std::move(x));
                           const Expr finite = kir::lt(magnitude, c.f(std::numeric_limits<double>::infinity()));
                           return c.rowMax(kir::select(finite, magnitude, c.f(0)));
                         }});
  def.samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
    std::vector<OpDef::Sample> samples = samplesRow(seed);
    Tensor some = SampleSource(seed).normals(Type(DType::f32, {3, 4}));
    some.data.front() = std::numeric_limits<double>::infinity();
    some.data.back() = std::numeric_limits<double>::quiet_NaN();
    samples.push_back({.operandTypes = {some.type}, .operandValues = {some}});
    return samples;
  };
  return def;
}

OpDef define_softmax() {
  return rowOp({.kind = OpKind::softmax,
                .name = "softmax",
                .summary = "exp(x) / sum of exp(x) over the last dimension",
                .shapes = "x [..,C] -> y [..,C]",
                .grad = [](GradCtx &c) -> std::vector<Value *> {
                  return {c.b.value(OpKind::softmax_grad, {c.dresults[0], c.op.result()})};
                },
                .flops = 14,
                .reference =
                    [](const double *x, int64_t n, double *y) {
                      double most = *std::max_element(x, x + n), sum = 0;
                      for (int64_t c = 0; c < n; ++c)
                        sum += std::exp(x[c] - most);
                      for (int64_t c = 0; c < n; ++c)
                        y[c] = std::exp(x[c] - most) / sum;
                    },
                .lower =
                    [](LowerCtx &c, Expr x) {
                      Expr e = c.rowExp(x - c.rowMax(x));
                      return e * (c.f(1) / c.rowSum(e));
                    }});
}

OpDef define_softmax_grad() {
  return {
      .kind = OpKind::softmax_grad,
      .name = "softmax_grad",
      .summary = "y * (dy - row sum of dy * y)",
      .shapes = "dy, y [..,C] -> dx [..,C]",
      .operands = {{"dy"}, {"y"}},
      .attrs = {},
      .results = {"dx"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            const Type &y = op.operand(1)->type;
            if (!expectFloat(op, 1, error) || !expectRank(op, 1, 1, error) ||
                !expectSame(op.operand(0)->type, y, "dy and y", error))
              return false;
            types = {y};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"a gradient itself; second derivatives are not taken"},
      .cost = [](const Op &op) { return streamCost(op, 4); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor dx(op.result()->type);
        int64_t n = dx.type.dim(-1);
        for (int64_t r = 0; r < dx.type.rows(); ++r) {
          double dot = 0;
          for (int64_t i = r * n; i < (r + 1) * n; ++i)
            dot += in[0]->data[i] * in[1]->data[i];
          for (int64_t i = r * n; i < (r + 1) * n; ++i)
            dx.data[i] = in[1]->data[i] * (in[0]->data[i] - dot);
        }
        return {std::move(dx)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr dy = c.operand(0), y = c.operand(1);
        return {y * (dy - c.rowSum(dy * y))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type x(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))});
        return {{.operandTypes = {x, x}, .operandValues = {s.normals(x), s.uniforms(x, 0.0, 1.0)}}};
      },
  };
}

}  // namespace gptc

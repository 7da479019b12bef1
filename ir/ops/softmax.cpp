// Reductions and softmax over the last dimension.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>

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

/// A row statistic repeated along the last dimension: broadcast adds leading dimensions only, so the new one is turned
/// to the back.
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

}  // namespace

OpDef define_row_sum() {
  return {
      .kind = OpKind::row_sum,
      .name = "row_sum",
      .summary = "sum over the last dimension",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .infer = inferRow,
      .check = NotApplicable{"types say all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        Value *dy = c.dresults[0];
        const Type &x = c.op.operand(0)->type;
        if (dy->type.dtype != x.dtype)
          dy = c.b.value(OpKind::cast, {dy}, attrs({{"dtype", nameOf(x.dtype).str()}}));
        return {repeatAlongRow(c.b, dy, x)};
      },
      .cost = [](const Op &op) { return streamCost(op, 1); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        int64_t n = in[0]->type.dim(-1);
        for (size_t i = 0; i < in[0]->data.size(); ++i)
          y.data[i / size_t(n)] += in[0]->data[i];
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> { return {c.rowSum(c.operand(0))}; },
      .samples = samplesRow,
  };
}

OpDef define_row_max() {
  return {
      .kind = OpKind::row_max,
      .name = "row_max",
      .summary = "largest element over the last dimension",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .infer = inferRow,
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"only subtracted for range, where it cancels; softmax has a gradient of its own"},
      .cost = [](const Op &op) { return streamCost(op, 1); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        int64_t n = in[0]->type.dim(-1);
        for (int64_t r = 0; r < int64_t(y.data.size()); ++r)
          y.data[r] = *std::max_element(&in[0]->data[r * n], &in[0]->data[r * n] + n);
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> { return {c.rowMax(c.operand(0))}; },
      .samples = samplesRow,
  };
}

OpDef define_softmax() {
  return {
      .kind = OpKind::softmax,
      .name = "softmax",
      .summary = "exp(x) / sum of exp(x) over the last dimension",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .infer = inferRow,
      .check = NotApplicable{"types say all"},
      .grad = [](GradCtx &c) -> std::vector<Value *> {
        return {c.b.value(OpKind::softmax_grad, {c.dresults[0], c.op.result()})};
      },
      .cost = [](const Op &op) { return streamCost(op, 14); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        int64_t n = y.type.dim(-1);
        for (int64_t r = 0; r < y.type.rows(); ++r) {
          const double *x = &in[0]->data[r * n];
          double most = *std::max_element(x, x + n), sum = 0;
          for (int64_t c = 0; c < n; ++c)
            sum += std::exp(x[c] - most);
          for (int64_t c = 0; c < n; ++c)
            y.data[r * n + c] = std::exp(x[c] - most) / sum;
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr e = kir::unary(kir::UnaryOp::exp, c.operand(0) - c.rowMax(c.operand(0)));
        return {e * (c.f(1) / c.rowSum(e))};
      },
      .samples = samplesRow,
  };
}

OpDef define_softmax_grad() {
  return {
      .kind = OpKind::softmax_grad,
      .name = "softmax_grad",
      .summary = "y * (dy - row sum of dy * y)",
      .operands = {{"dy"}, {"y"}},
      .attrs = {},
      .results = {"dx"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
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

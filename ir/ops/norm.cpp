// Layer normalisation (Ba et al. 2016) and RMS normalisation (Zhang & Sennrich 2019), forward and backward.
//
// Both are y = xhat * g (+ b) with xhat = (x - mean) * rstd; for RMS normalisation, mean = 0, and with `plus_one` 1 + g
// takes the place of g (Gemma). With w = dy * g:
//   dx = rstd * (w - avg(w) - xhat * avg(w * xhat))        avg over the row; avg(w) only if a mean was subtracted
//   dg = sum over rows of dy * xhat,   db = sum over rows of dy
#include "ir/ops/op_support.h"

#include <cmath>

namespace gptc {
using namespace ops;
using kir::Expr;

namespace {

constexpr double defaultEps = 1e-5;

bool checkEps(const Op &op, std::string &error) {
  double eps = op.attrs.getFloat("eps", defaultEps);
  return (std::isfinite(eps) && eps >= 0) || fail(error, "eps = {} must be finite and not negative", eps);
}

Type rowStats(const Type &x) { return rowsOf(x).withDType(statDType(x.dtype)); }

/// What the parameter g stands for.
double weightOf(const Op &op, double g) { return op.attrs.getBool("plus_one") ? 1 + g : g; }
Expr weightOf(LowerCtx &c, const Expr &g) { return c.op.attrs.getBool("plus_one") ? c.f(1) + g : g; }

/// Rule: operand `i` has one float per column of x.
bool expectColumns(const Op &op, unsigned i, const Type &x, std::string &error) {
  Type want(op.operand(i)->type.dtype, {x.dims.back()});
  return expectFloat(op, i, error) && expectType(op, i, want, "one element per column of x", error);
}

// ---- forward --------------------------------------------------------------------------------------------------------

bool inferForward(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &x = op.operand(0)->type;
  if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error) || !checkEps(op, error))
    return false;
  for (unsigned i = 1; i < op.numOperands(); ++i)
    if (!expectColumns(op, i, x, error))
      return false;
  types = {x, rowStats(x)};
  if (op.is(OpKind::layernorm))
    types.push_back(rowStats(x));
  return true;
}

std::vector<Tensor> referenceForward(const Op &op, std::span<const Tensor *const> in) {
  bool centred = op.is(OpKind::layernorm);
  double eps = op.attrs.getFloat("eps", defaultEps);
  const Type &x = op.operand(0)->type;
  int64_t n = x.dim(-1);
  Tensor y(op.result(0)->type), mean(rowStats(x)), rstd(rowStats(x));
  for (int64_t r = 0; r < x.rows(); ++r) {
    const double *row = &in[0]->data[r * n];
    double m = 0, var = 0;
    if (centred) {
      for (int64_t c = 0; c < n; ++c)
        m += row[c];
      m /= double(n);
    }
    for (int64_t c = 0; c < n; ++c)
      var += (row[c] - m) * (row[c] - m);
    double s = 1.0 / std::sqrt(var / double(n) + eps);
    for (int64_t c = 0; c < n; ++c)
      y.data[r * n + c] = (row[c] - m) * s * weightOf(op, in[1]->data[c]) + (in.size() > 2 ? in[2]->data[c] : 0.0);
    mean.data[r] = m;
    rstd.data[r] = s;
  }
  if (centred)
    return {std::move(y), std::move(mean), std::move(rstd)};
  return {std::move(y), std::move(rstd)};
}

/// 1 / sqrt(average of the squares of `d` over the row + eps)
Expr reciprocalDeviation(LowerCtx &c, const Expr &d) {
  double n = double(c.op.operand(0)->type.dim(-1));
  Expr variance = c.rowSum(d * d) * c.f(1.0 / n) + c.f(c.op.attrs.getFloat("eps", defaultEps));
  return c.f(1) / kir::unary(kir::UnaryOp::sqrt, variance);
}

std::vector<OpDef::Sample> samplesForward(bool bias, unsigned seed) {
  SampleSource s(seed);
  Type x(DType::f32, {s.extent(5), s.extent(5), s.maybePadded(s.extent(129))});
  Type columns = x.slice(2, 3);
  std::vector<OpDef::Sample> samples = {{.operandTypes = {x, columns}}};
  if (bias)
    samples.push_back({.operandTypes = {x, columns, columns}, .attrs = attrs({{"eps", 1e-3}})});
  samples.push_back({.operandTypes = {columns, columns}, .attrs = attrs({{"eps", 0.1}})});
  if (!bias)
    samples.push_back({.operandTypes = {x, columns}, .attrs = attrs({{"eps", 1e-6}, {"plus_one", true}})});
  return samples;
}

// ---- gradients ------------------------------------------------------------------------------------------------------

/// Operands dy, x[, g], then the statistics from `stats` on.
bool inferGrad(const Op &op, unsigned stats, unsigned numStats, std::string &error) {
  const Type &x = op.operand(1)->type;
  if (!expectFloat(op, 1, error) || !expectRank(op, 1, 1, error) ||
      !expectSame(op.operand(0)->type, x, "dy and x", error))
    return false;
  for (unsigned i = stats; i < stats + numStats; ++i)
    if (!expectType(op, i, rowStats(x), "one element per row of x", error))
      return false;
  return true;
}

bool inferDx(const Op &op, std::vector<Type> &types, std::string &error) {
  if (!inferGrad(op, 3, op.is(OpKind::layernorm_grad) ? 2 : 1, error) ||
      !expectColumns(op, 2, op.operand(1)->type, error))
    return false;
  types = {op.operand(1)->type};
  return true;
}

std::vector<Tensor> referenceDx(const Op &op, std::span<const Tensor *const> in) {
  bool centred = op.is(OpKind::layernorm_grad);
  const Type &x = op.operand(1)->type;
  int64_t n = x.dim(-1);
  Tensor dx(op.result()->type);
  for (int64_t r = 0; r < x.rows(); ++r) {
    double mean = centred ? in[3]->data[r] : 0.0, rstd = in[centred ? 4 : 3]->data[r];
    double sumW = 0, sumWX = 0;
    for (int64_t c = 0; c < n; ++c) {
      double w = in[0]->data[r * n + c] * weightOf(op, in[2]->data[c]);
      sumW += w;
      sumWX += w * (in[1]->data[r * n + c] - mean) * rstd;
    }
    for (int64_t c = 0; c < n; ++c) {
      double w = in[0]->data[r * n + c] * weightOf(op, in[2]->data[c]), xhat = (in[1]->data[r * n + c] - mean) * rstd;
      dx.data[r * n + c] = rstd * (w - (centred ? sumW / double(n) : 0.0) - xhat * sumWX / double(n));
    }
  }
  return {std::move(dx)};
}

std::vector<Expr> lowerDx(LowerCtx &c) {
  bool centred = c.op.is(OpKind::layernorm_grad);
  Expr inverse = c.f(1.0 / double(c.op.operand(1)->type.dim(-1)));
  Expr rstd = c.rowOperand(centred ? 4 : 3);
  Expr d = centred ? c.operand(1) - c.rowOperand(3) : c.operand(1);
  Expr xhat = d * rstd, w = c.operand(0) * weightOf(c, c.operand(2));
  Expr projection = c.rowSum(w * xhat) * inverse;
  if (centred)
    w = w - c.rowSum(w) * inverse;
  return {rstd * kir::fma(-projection, xhat, w)};
}

/// Samples of dy, x, g and the statistics that a forward op would yield.
std::vector<OpDef::Sample> samplesGrad(bool centred, bool params, unsigned seed) {
  SampleSource s(seed);
  Type x(DType::f32, {s.extent(9), s.extent(5), s.maybePadded(s.extent(129))});
  Type columns = x.slice(2, 3), rows = rowsOf(x);
  auto sample = [&](bool inits, bool bias, int64_t fold) {
    OpDef::Sample p{.operandTypes = {x, x}, .operandValues = {s.normals(x), s.normals(x)}};
    auto add = [&](Tensor t) {
      p.operandTypes.push_back(t.type);
      p.operandValues.push_back(std::move(t));
    };
    if (!params)
      add(s.normals(columns));
    if (centred)
      add(s.uniforms(rows, -0.5, 0.5));
    add(s.uniforms(rows, 0.5, 2.0));
    if (params) {
      p.attrs.set("fold", fold);
      if (bias)
        p.attrs.set("bias", true);
      for (int i = 0; inits && i < 1 + int(bias); ++i)
        add(s.normals(columns));
    }
    return p;
  };
  if (!params) {
    std::vector<OpDef::Sample> samples = {sample(false, false, 0)};
    if (!centred) {
      samples.push_back(sample(false, false, 0));
      samples.back().attrs.set("plus_one", true);
    }
    return samples;
  }
  std::vector<OpDef::Sample> samples = {sample(false, false, 0), sample(true, false, x.dim(1))};
  if (centred) {
    samples.push_back(sample(false, true, s.extent(9)));
    samples.push_back(sample(true, true, x.dim(1)));
  }
  return samples;
}

bool inferParams(const Op &op, std::vector<Type> &types, std::string &error) {
  bool centred = op.is(OpKind::layernorm_grad_params);
  if (!inferGrad(op, 2, centred ? 2 : 1, error))
    return false;
  if (op.attrs.getInt("fold") < 0)
    return fail(error, "fold must not be negative");
  const Type &x = op.operand(1)->type;
  Type columns = x.slice(x.rank() - 1, x.rank()).withDType(statDType(x.dtype));
  size_t results = op.attrs.getBool("bias") ? 2 : 1, inits = op.numOperands() - (centred ? 4 : 3);
  if (inits != 0 && inits != results)
    return fail(error, "{} initial values for {} results", inits, results);
  for (unsigned i = op.numOperands() - inits; i < op.numOperands(); ++i)
    if (!expectType(op, i, columns, "the type of the result", error))
      return false;
  types.assign(results, columns);
  return true;
}

std::vector<Tensor> referenceParams(const Op &op, std::span<const Tensor *const> in) {
  bool centred = op.is(OpKind::layernorm_grad_params), bias = op.attrs.getBool("bias");
  const Type &x = op.operand(1)->type;
  int64_t n = x.dim(-1);
  size_t firstInit = centred ? 4 : 3;
  std::vector<Tensor> results;
  for (unsigned i = 0; i < op.numResults(); ++i)
    results.push_back(in.size() > firstInit ? *in[firstInit + i] : Tensor(op.result(i)->type));
  for (int64_t r = 0; r < x.rows(); ++r) {
    double mean = centred ? in[2]->data[r] : 0.0, rstd = in[centred ? 3 : 2]->data[r];
    for (int64_t c = 0; c < n; ++c) {
      double dy = in[0]->data[r * n + c];
      results[0].data[c] += dy * (in[1]->data[r * n + c] - mean) * rstd;
      if (bias)
        results[1].data[c] += dy;
    }
  }
  return results;
}

std::vector<Expr> lowerParams(LowerCtx &c) {
  bool centred = c.op.is(OpKind::layernorm_grad_params);
  unsigned firstInit = centred ? 4 : 3;
  int64_t fold = c.op.attrs.getInt("fold");
  auto init = [&](unsigned i) { return c.op.numOperands() > firstInit ? c.operand(firstInit + i) : nullptr; };
  Expr d = centred ? c.operand(1) - c.rowOperand(2) : c.operand(1);
  Expr dy = c.operand(0);
  std::vector<Expr> results = {c.foldSum(dy * (d * c.rowOperand(centred ? 3 : 2)), fold, init(0))};
  if (c.op.attrs.getBool("bias"))
    results.push_back(c.foldSum(dy, fold, init(1)));
  return results;
}

constexpr NotApplicable noSecond{"a gradient itself; second derivatives are not taken"};
constexpr NotApplicable inferChecks{"types and attributes are checked when the result types are inferred"};

/// The differences between layernorm and rmsnorm, and between their gradients.
struct NormSpec {
  OpKind kind;
  const char *name, *summary, *shapes;
  std::vector<OperandSpec> operands;
  double flops;
  bool centred;  // layernorm: a mean is subtracted
};

/// `attrs`, and for RMS normalisation `plus_one`.
std::vector<AttrSpec> withPlusOne(const NormSpec &spec, std::vector<AttrSpec> attrs) {
  if (!spec.centred)
    attrs.push_back({AttrSpec::Bool, "plus_one", false, false});
  return attrs;
}

OpDef normOp(NormSpec spec, std::vector<std::string> results, Rule<std::vector<Value *>(GradCtx &)> grad,
             Rule<std::vector<Expr>(LowerCtx &)> lower) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = spec.shapes,
      .operands = std::move(spec.operands),
      .attrs = withPlusOne(spec, {{AttrSpec::Float, "eps", false, defaultEps}}),
      .results = std::move(results),
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {0}},
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferForward,
      .check = inferChecks,
      .grad = std::move(grad),
      .cost = [flops = spec.flops](const Op &op) { return streamCost(op, flops); },
      .reference = referenceForward,
      .lower = std::move(lower),
      .samples = [centred = spec.centred](unsigned seed) { return samplesForward(centred, seed); },
  };
}

/// The gradient with respect to x.
OpDef normGradOp(NormSpec spec) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = spec.shapes,
      .operands = std::move(spec.operands),
      .attrs = withPlusOne(spec, {}),
      .results = {"dx"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferDx,
      .check = inferChecks,
      .grad = noSecond,
      .cost = [flops = spec.flops](const Op &op) { return streamCost(op, flops); },
      .reference = referenceDx,
      .lower = lowerDx,
      .samples = [centred = spec.centred](unsigned seed) { return samplesGrad(centred, false, seed); },
  };
}

/// The gradients with respect to g and b.
OpDef normParamsOp(NormSpec spec, std::vector<AttrSpec> attrs, std::vector<std::string> results) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = spec.shapes,
      .operands = std::move(spec.operands),
      .attrs = std::move(attrs),
      .results = std::move(results),
      .fusion = FusionKind::fold,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = leadingDims,
      .indices = noIndices,
      .infer = inferParams,
      .check = inferChecks,
      .grad = noSecond,
      .cost = [flops = spec.flops](const Op &op) { return streamCost(op, flops); },
      .reference = referenceParams,
      .lower = lowerParams,
      .samples = [centred = spec.centred](unsigned seed) { return samplesGrad(centred, true, seed); },
  };
}

std::vector<Value *> gradLayernorm(GradCtx &c) {
  expectNoGradient(c, 1);
  expectNoGradient(c, 2);
  Value *x = c.op.operand(0), *g = c.op.operand(1), *dy = c.dresults[0];
  Value *mean = c.op.result(1), *rstd = c.op.result(2);
  bool bias = c.op.numOperands() > 2;
  Op *params = c.b.op(OpKind::layernorm_grad_params, {dy, x, mean, rstd},
                      bias ? attrs({{"fold", int64_t(0)}, {"bias", true}}) : attrs({{"fold", int64_t(0)}}));
  std::vector<Value *> grads = {c.b.value(OpKind::layernorm_grad, {dy, x, g, mean, rstd}), params->result(0)};
  if (bias)
    grads.push_back(params->result(1));
  return grads;
}

std::vector<Expr> lowerLayernorm(LowerCtx &c) {
  Expr mean = c.rowSum(c.operand(0)) * c.f(1.0 / double(c.op.operand(0)->type.dim(-1)));
  Expr d = c.operand(0) - mean;
  Expr rstd = reciprocalDeviation(c, d);
  Expr xhat = d * rstd, g = c.operand(1);
  return {c.op.numOperands() > 2 ? kir::fma(xhat, g, c.operand(2)) : xhat * g, mean, rstd};
}

std::vector<Value *> gradRmsnorm(GradCtx &c) {
  expectNoGradient(c, 1);
  Value *x = c.op.operand(0), *g = c.op.operand(1), *dy = c.dresults[0], *rstd = c.op.result(1);
  const AttrMap at = c.op.attrs.getBool("plus_one") ? attrs({{"plus_one", true}}) : AttrMap();
  return {c.b.value(OpKind::rmsnorm_grad, {dy, x, g, rstd}, at),
          c.b.value(OpKind::rmsnorm_grad_params, {dy, x, rstd}, attrs({{"fold", int64_t(0)}}))};
}

std::vector<Expr> lowerRmsnorm(LowerCtx &c) {
  Expr rstd = reciprocalDeviation(c, c.operand(0));
  return {c.operand(0) * rstd * weightOf(c, c.operand(1)), rstd};
}

}  // namespace

OpDef define_layernorm() {
  return normOp({.kind = OpKind::layernorm,
                 .name = "layernorm",
                 .summary = "(x - mean) / sqrt(variance + eps) * g + b over the last dimension; mean and rstd are kept "
                            "for the gradient",
                 .shapes = "x [..,C], g [C][, b [C]] -> y [..,C], mean [..], rstd [..]",
                 .operands = {{"x"}, {"g"}, {"b", true}},
                 .flops = 8,
                 .centred = true},
                {"y", "mean", "rstd"}, gradLayernorm, lowerLayernorm);
}

OpDef define_layernorm_grad() {
  return normGradOp({.kind = OpKind::layernorm_grad,
                     .name = "layernorm_grad",
                     .summary = "gradient of layernorm with respect to x",
                     .shapes = "dy [..,C], x [..,C], g [C], mean [..], rstd [..] -> dx [..,C]",
                     .operands = {{"dy"}, {"x"}, {"g"}, {"mean"}, {"rstd"}},
                     .flops = 11,
                     .centred = true});
}

OpDef define_layernorm_grad_params() {
  return normParamsOp(
      {.kind = OpKind::layernorm_grad_params,
       .name = "layernorm_grad_params",
       .summary = "gradients of layernorm with respect to g and, with bias, b: sums over tokens",
       .shapes = "dy [..,C], x [..,C], mean [..], rstd [..][, init_g [C][, init_b [C]]] -> dg [C][, db [C]]",
       .operands = {{"dy"}, {"x"}, {"mean"}, {"rstd"}, {"init_g", true}, {"init_b", true}},
       .flops = 5,
       .centred = true},
      {{AttrSpec::Int, "fold", false, int64_t(0)}, {AttrSpec::Bool, "bias", false, false}}, {"dg", "db"});
}

OpDef define_rmsnorm() {
  return normOp(
      {.kind = OpKind::rmsnorm,
       .name = "rmsnorm",
       .summary = "x / sqrt(average of x^2 + eps) * g over the last dimension, with plus_one times 1 + g; rstd is kept "
                  "for the gradient",
       .shapes = "x [..,C], g [C] -> y [..,C], rstd [..]",
       .operands = {{"x"}, {"g"}},
       .flops = 5,
       .centred = false},
      {"y", "rstd"}, gradRmsnorm, lowerRmsnorm);
}

OpDef define_rmsnorm_grad() {
  return normGradOp({.kind = OpKind::rmsnorm_grad,
                     .name = "rmsnorm_grad",
                     .summary = "gradient of rmsnorm with respect to x",
                     .shapes = "dy [..,C], x [..,C], g [C], rstd [..] -> dx [..,C]",
                     .operands = {{"dy"}, {"x"}, {"g"}, {"rstd"}},
                     .flops = 8,
                     .centred = false});
}

OpDef define_rmsnorm_grad_params() {
  return normParamsOp({.kind = OpKind::rmsnorm_grad_params,
                       .name = "rmsnorm_grad_params",
                       .summary = "gradient of rmsnorm with respect to g: a sum over tokens",
                       .shapes = "dy [..,C], x [..,C], rstd [..][, init [C]] -> dg [C]",
                       .operands = {{"dy"}, {"x"}, {"rstd"}, {"init", true}},
                       .flops = 3,
                       .centred = false},
                      {{AttrSpec::Int, "fold", false, int64_t(0)}}, {"dg"});
}

}  // namespace gptc

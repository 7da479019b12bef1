// Adafactor (Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost") in the form of
// torch.optim.Adafactor (PyTorch 2.5 and later). With t = step + 1, G = g * scale and n elements in P:
//
//   w     = t^-0.8                                    one minus the decay rate of the statistics
//   R, C += w (mean of G^2 over a row, a column - R, C)      for a matrix
//   V    += w (G^2 - V)                               for all other parameters
//   V     = R C / max(mean of R, eps)                 for a matrix, never in memory
//   U     = G / sqrt(max(V, eps^2))
//   size  = max(1e-3, RMS(P)) min(lr, 1 / sqrt(t)) / max(1, RMS(U));     without the relative step: lr / max(1, RMS(U))
//   P     = P - lr weight_decay P - size U
//
// With a first moment m (the paper's beta1): m = beta1 m + (1 - beta1) size U, and P takes m for size U.
//
// Gradients are read three times: for the sums of their squares, which the global norm needs too, for RMS(U), and for
// the update. U is computed twice instead of stored. The sums over rows and columns are separate ops (row_squares,
// column_squares, reduce_sum), so that their order is that of other sums and ranks can hold some of the rows.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

constexpr double decayPower = -0.8, leastSize = 1e-3;
/// torch.optim.Adafactor's eps[0]: the distance from 1 to the next f32.
constexpr double defaultEps = 0x1p-23;

constexpr NotApplicable notDifferentiated{"the optimizer runs after the gradients"};

std::string checkCount(const Op &op) {
  const int64_t count = op.attrs.getInt("count", 1);
  return count >= 1 ? "" : fmt::format("count = {} must be at least 1", count);
}

Expr d(double v) { return kir::fimm(v, DType::f64); }
Expr wide(Expr e) { return kir::cast(DType::f64, std::move(e)); }

void add(OpDef::Sample &sample, Tensor operand) {
  sample.operandTypes.push_back(operand.type);
  sample.operandValues.push_back(std::move(operand));
}

/// The operands of an update that hold statistics, from index v on: V, or for a matrix R, C and the sum of R.
struct Statistics {
  unsigned v;
  bool factored;
  double eps, rows;
  Statistics(const Op &op, unsigned v, bool factored)
      : v(v), factored(factored), eps(op.attrs.getFloat("eps", defaultEps)), rows(double(op.attrs.getInt("rows", 1))) {}

  /// U of an element; the gradient is operand `g`.
  Expr update(LowerCtx &c, const Expr &g, const Expr &scale) const {
    Expr estimate;
    if (factored) {
      Expr mean = kir::max(c.operand(v + 2) * c.f(1 / rows), c.f(eps));
      estimate = c.rowOperand(v) / mean * c.operand(v + 1);
    } else {
      estimate = c.operand(v);
    }
    return g * scale / kir::unary(UnaryOp::sqrt, kir::max(estimate, c.f(eps * eps)));
  }
  double update(std::span<const Tensor *const> in, size_t i, int64_t columns, double g) const {
    double estimate = in[v]->data[factored ? i / columns : i];
    if (factored)
      estimate *= in[v + 1]->data[i % columns] / std::max(in[v + 2]->data[0] / rows, eps);
    return g / std::sqrt(std::max(estimate, eps * eps));
  }
  /// Shape rule; operand `g` is the gradient.
  bool fits(const Op &op, unsigned g, std::string &error) const {
    const Type t = op.operand(g)->type.withDType(DType::f32);
    if (!factored)
      return expectType(op, v, t, "the shape of g", error);
    if (t.rank() != 2)
      return fail(error, "a factored second moment is one of a matrix, not of {}", t.str());
    return expectType(op, v, rowsOf(t), "one element per row of g", error) &&
           expectType(op, v + 1, t.slice(1, 2), "one element per column of g", error) &&
           expectScalar(op, v + 2, DType::f32, error);
  }
  static std::string check(const Op &op) {
    if (double eps = op.attrs.getFloat("eps", defaultEps); !(std::isfinite(eps) && eps > 0))
      return fmt::format("eps = {} must be finite and positive", eps);
    if (int64_t rows = op.attrs.getInt("rows", 1); rows < 1)
      return fmt::format("rows = {} must be at least 1", rows);
    return "";
  }
  /// Sample operands.
  static void addSamples(OpDef::Sample &sample, SampleSource &s, const Type &g, bool factored) {
    if (!factored)
      return add(sample, s.uniforms(g, 0.1, 2.0));
    add(sample, s.uniforms(rowsOf(g), 0.1, 2.0));
    add(sample, s.uniforms(g.slice(1, 2), 0.1, 2.0));
    add(sample, Tensor::scalar(double(g.dim(0)) * s.uniform(0.5, 1)));
    sample.attrs.set("rows", g.dim(0));
  }
};

Statistics statisticsOfSquares(const Op &op) { return {op, 2, op.numOperands() > 3}; }

/// Optional operands of `adafactor` behind v: column and total of a matrix, m.
bool isFactored(const Op &op) { return op.numOperands() >= 8; }
bool hasMoment(const Op &op) { return op.numOperands() % 2 == 1; }
Statistics statisticsOfUpdate(const Op &op) { return {op, 5, isFactored(op)}; }

std::vector<Expr> lowerAdafactor(LowerCtx &c) {
  const Statistics s = statisticsOfUpdate(c.op);
  Expr p = c.operand(0), scale = c.operand(2);
  Expr keep = kir::cast(c.compute(), d(1) - wide(c.operand(3)) * d(c.op.attrs.getFloat("weight_decay")));
  Expr change = c.operand(4) * s.update(c, c.operand(1), scale);
  Expr skip = kir::lt(scale, c.f(0));
  std::vector<Expr> results(1);
  if (hasMoment(c.op)) {
    const double beta = c.op.attrs.getFloat("beta1");
    Expr m = c.operand(c.op.numOperands() - 1);
    change = kir::fma(m, c.f(beta), change * c.f(1 - beta));
    results.push_back(kir::select(skip, m, change));
  }
  results[0] = kir::select(skip, p, kir::fma(p, keep, -change));
  if (lowCopyOf(c.op))
    results.push_back(results[0]);
  return results;
}

std::vector<Tensor> referenceAdafactor(const Op &op, std::span<const Tensor *const> in) {
  const Statistics s = statisticsOfUpdate(op);
  Tensor p = *in[0], m;
  if (hasMoment(op))
    m = *in.back();
  const double scale = in[2]->data[0], beta = op.attrs.getFloat("beta1");
  const int64_t columns = p.type.rank() ? p.type.dim(-1) : 1;
  for (size_t i = 0; i < p.data.size() && scale >= 0; ++i) {
    double change = in[4]->data[0] * s.update(in, i, columns, in[1]->data[i] * scale);
    if (hasMoment(op))
      change = m.data[i] = beta * m.data[i] + (1 - beta) * change;
    p.data[i] -= in[3]->data[0] * op.attrs.getFloat("weight_decay") * p.data[i] + change;
  }
  std::vector<Tensor> results = {p};
  if (hasMoment(op))
    results.push_back(std::move(m));
  if (std::optional<DType> low = lowCopyOf(op))
    results.push_back(Tensor(p.type.withDType(*low), p.data));
  return results;
}

bool inferAdafactor(const Op &op, std::vector<Type> &types, std::string &error) {
  if (op.numOperands() > 9)
    return fail(error, "{} operands", op.numOperands());
  const Type &p = op.operand(0)->type;
  if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error) || !expectFloat(op, 1, error) ||
      !expectType(op, 1, p.withDType(op.operand(1)->type.dtype), "the shape of p", error))
    return false;
  for (unsigned i : {2u, 3u, 4u})
    if (!expectScalar(op, i, DType::f32, error))
      return false;
  if (!statisticsOfUpdate(op).fits(op, 1, error))
    return false;
  types = {p};
  if (hasMoment(op)) {
    if (!expectType(op, op.numOperands() - 1, p, "the type of p", error))
      return false;
    types.push_back(p);
  }
  return addLowCopy(op, types, error);
}

}  // namespace

OpDef define_adafactor_moment() {
  return {
      .kind = OpKind::adafactor_moment,
      .name = "adafactor_moment",
      .summary = "a statistic of Adafactor that moves by (step + 1)^-0.8 of the way to x * scale^2 / count, where x is "
                 "the sum of `count` squares; it stays where scale < 0",
      .shapes = "v, x of one shape, scale, step -> v",
      .operands = {{"v"}, {"x"}, {"scale"}, {"step"}},
      .attrs = {{AttrSpec::Int, "count", false, int64_t(1)}},
      .results = {"v"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !expectType(op, 1, op.operand(0)->type, "the type of v", error) ||
                !expectScalar(op, 2, DType::f32, error) || !expectScalar(op, 3, DType::i64, error))
              return false;
            types = {op.operand(0)->type};
            return true;
          },
      .check = checkCount,
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 4); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor v = *in[0];
        const double scale = in[2]->data[0], w = std::pow(in[3]->data[0] + 1, decayPower);
        for (size_t i = 0; i < v.data.size() && scale >= 0; ++i)
          v.data[i] += w * (in[1]->data[i] * scale * scale / double(op.attrs.getInt("count", 1)) - v.data[i]);
        return {std::move(v)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr v = c.operand(0), scale = c.operand(2), t = wide(c.operand(3) + 1);
        Expr w = kir::cast(c.compute(), kir::unary(UnaryOp::exp, d(decayPower) * kir::unary(UnaryOp::log, t)));
        Expr mean = c.operand(1) * scale * scale * c.f(1 / double(c.op.attrs.getInt("count", 1)));
        return {kir::select(kir::lt(scale, c.f(0)), v, kir::fma(mean - v, w, v))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (double scale : {1.0, 0.3, -1.0}) {
          Type v(DType::f32, {s.maybePadded(s.extent(129))}), scalar = Type::scalar(DType::f32);
          samples.push_back({.operandTypes = {v, v, scalar, Type::scalar(DType::i64)},
                             .attrs = attrs({{"count", s.extent(33)}}),
                             .operandValues = {s.uniforms(v, 0, 2), s.uniforms(v, 0, 9), Tensor::scalar(scale),
                                               Tensor::scalar(double(s.between(0, 5000)), DType::i64)}});
        }
        return samples;
      },
  };
}

OpDef define_adafactor_squares() {
  return {
      .kind = OpKind::adafactor_squares,
      .name = "adafactor_squares",
      .summary =
          "of each row the sum of the squares of U = g*scale / sqrt(max(V, eps^2)), where V is v or, of a matrix, v "
          "column / max(total/rows, eps)",
      .shapes = "g [..,C], scale, v[, column [C], total] -> y [..]",
      .operands = {{"g"}, {"scale"}, {"v"}, {"column", true}, {"total", true}},
      .attrs = {{AttrSpec::Float, "eps", false, defaultEps}, {AttrSpec::Int, "rows", false, int64_t(1)}},
      .results = {"y"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 0, error) || !expectRank(op, 0, 1, error) || !expectScalar(op, 1, DType::f32, error))
              return false;
            if (op.numOperands() == 4)
              return fail(error, "columns and no sum of rows");
            types = {rowsOf(op.operand(0)->type).withDType(DType::f32)};
            return statisticsOfSquares(op).fits(op, 0, error);
          },
      .check = Statistics::check,
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 8); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        const Statistics s = statisticsOfSquares(op);
        Tensor y(op.result()->type);
        const int64_t columns = in[0]->type.dim(-1);
        for (size_t i = 0; i < in[0]->data.size(); ++i) {
          const double u = s.update(in, i, columns, in[0]->data[i] * in[1]->data[0]);
          y.data[i / columns] += u * u;
        }
        return {std::move(y)};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        Expr u = statisticsOfSquares(c.op).update(c, c.operand(0), c.operand(1));
        return {c.rowSum(u * u)};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (bool factored : {false, true}) {
          Type g(DType::f32, {s.maybePadded(s.extent(9)), s.maybePadded(s.extent(129))});
          if (!factored && seed % 2)
            g = g.slice(1, 2);
          OpDef::Sample sample{.operandTypes = {g, Type::scalar(DType::f32)},
                               .operandValues = {s.normals(g), Tensor::scalar(0.3)}};
          Statistics::addSamples(sample, s, g, factored);
          samples.push_back(std::move(sample));
        }
        return samples;
      },
  };
}

OpDef define_adafactor_size() {
  return {
      .kind = OpKind::adafactor_size,
      .name = "adafactor_size",
      .summary = "lr, or max(1e-3, sqrt(parameters/count)) min(lr, 1/sqrt(step+1)); over max(1, sqrt(updates/count))",
      .shapes = "updates, lr, step[, parameters] -> size, all scalars",
      .operands = {{"updates"}, {"lr"}, {"step"}, {"parameters", true}},
      .attrs = {{AttrSpec::Int, "count", true, int64_t(1)}},
      .results = {"size"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectScalar(op, 0, DType::f32, error) || !expectScalar(op, 1, DType::f32, error) ||
                !expectScalar(op, 2, DType::i64, error) ||
                (op.numOperands() > 3 && !expectScalar(op, 3, DType::f32, error)))
              return false;
            types = {Type::scalar(DType::f32)};
            return true;
          },
      .check = checkCount,
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 8); },
      .reference = [](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        const double n = double(op.attrs.getInt("count")), lr = in[1]->data[0], t = in[2]->data[0] + 1;
        double size = lr;
        if (in.size() > 3)
          size = std::max(leastSize, std::sqrt(in[3]->data[0] / n)) * std::min(lr, 1 / std::sqrt(t));
        return {Tensor::scalar(size / std::max(1.0, std::sqrt(in[0]->data[0] / n)))};
      },
      .lower = [](LowerCtx &c) -> std::vector<Expr> {
        const double n = double(c.op.attrs.getInt("count"));
        auto rms = [&](unsigned i) { return kir::unary(UnaryOp::sqrt, wide(c.operand(i)) * d(1 / n)); };
        Expr size = wide(c.operand(1));
        if (c.op.numOperands() > 3) {
          Expr most = d(1) / kir::unary(UnaryOp::sqrt, wide(c.operand(2) + 1));
          size = kir::max(d(leastSize), rms(3)) * kir::min(size, most);
        }
        return {kir::cast(c.compute(), size / kir::max(d(1), rms(0)))};
      },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (bool relative : {false, true})
          for (double updates : {s.uniform(0, 50), s.uniform(100, 1000)}) {
            const Type scalar = Type::scalar(DType::f32);
            samples.push_back({.operandTypes = {scalar, scalar, Type::scalar(DType::i64)},
                               .attrs = attrs({{"count", int64_t(100)}}),
                               .operandValues = {Tensor::scalar(updates), Tensor::scalar(s.uniform(0, 0.1)),
                                                 Tensor::scalar(double(s.between(0, 5000)), DType::i64)}});
            if (relative)
              add(samples.back(), Tensor::scalar(seed % 3 ? s.uniform(0, 10) : 0));
          }
        return samples;
      },
  };
}

OpDef define_adafactor() {
  return {
      .kind = OpKind::adafactor,
      .name = "adafactor",
      .summary =
          "one step of Adafactor (Shazeer & Stern 2018) with gradient g*scale, as torch.optim.Adafactor: p - lr "
          "weight_decay p - size U, with U of adafactor_squares, or with m = beta1 m + (1-beta1) size U; nothing "
          "changes where scale < 0",
      .shapes = "p, g, scale, lr, size, v[, column, total][, m] -> p[, m][, low]",
      .operands = {{"p"}, {"g"}, {"scale"}, {"lr"}, {"size"}, {"v"}, {"..."}},
      .attrs = {{AttrSpec::Float, "eps", false, defaultEps},
                {AttrSpec::Int, "rows", false, int64_t(1)},
                {AttrSpec::Float, "weight_decay", false, 0.0},
                {AttrSpec::Float, "beta1", false, 0.0},
                {AttrSpec::String, "low", false, std::string()}},
      .results = {"p", "m", "low"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = ofParameters,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferAdafactor,
      .check = [](const Op &op) -> std::string {
        const double decay = op.attrs.getFloat("weight_decay"), beta = op.attrs.getFloat("beta1");
        if (!(std::isfinite(decay) && decay >= 0))
          return fmt::format("weight_decay = {} must be finite and not negative", decay);
        if (!(beta >= 0 && beta < 1))
          return fmt::format("beta1 = {} must be at least 0 and below 1", beta);
        if (!hasMoment(op) && beta != 0)
          return "beta1 without a first moment";
        return Statistics::check(op);
      },
      .grad = notDifferentiated,
      .cost = [](const Op &op) { return streamCost(op, 12); },
      .reference = referenceAdafactor,
      .lower = lowerAdafactor,
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        std::vector<OpDef::Sample> samples;
        for (bool factored : {false, true})
          for (bool moment : {false, true})
            for (double scale : {0.3, -1.0}) {
              Type p(DType::f32, {s.maybePadded(s.extent(9)), s.maybePadded(s.extent(129))});
              if (!factored && scale > 0)
                p = p.slice(1, 2);
              const Type scalar = Type::scalar(DType::f32);
              OpDef::Sample sample{.operandTypes = {p, p, scalar, scalar, scalar},
                                   .attrs = attrs({{"weight_decay", 0.1}}),
                                   .operandValues = {s.normals(p), s.normals(p), Tensor::scalar(scale),
                                                     Tensor::scalar(1e-2), Tensor::scalar(3e-3)}};
              Statistics::addSamples(sample, s, p, factored);
              if (moment) {
                add(sample, s.normals(p));
                sample.attrs.set("beta1", 0.9);
              }
              samples.push_back(std::move(sample));
            }
        return samples;
      },
  };
}

}  // namespace gptc

// RMS normalisation of queries and keys in packed rows (Henry et al. 2020; Qwen3, OLMo 2), forward and backward.
//
// A row of qkv holds H query heads, then Hkv key heads, then Hkv value heads, each of D elements. Queries are
// multiplied by wq / rms and keys by wk / rms, with rms = sqrt(average of x^2 + eps); values stay. The average is over
// a head, and then qkv is [B,T,H+2Hkv,D], whose rows are the heads, and both weights are [D]; or with `whole` over all
// queries and over all keys of a token, and then qkv is [B,T,(H+2Hkv)D] and the weights are [H*D] and [Hkv*D]. With
// `plus_one` 1 + w takes the place of w. The reciprocals of rms are kept for the gradients: [B,T,H+2Hkv], or two [B,T].
//
// Gradients as those of rmsnorm (norm.cpp). Those of the weights sum over tokens and heads; with `whole` one sum has
// all columns of a row, of which slices are the gradients. With `parts` above 0 they are sums over tokens for each
// head, then over the heads of each of so many equal parts, and then over the parts in a binary tree: shard-tensor
// gives a rank its part of the tree.
#include "ir/mesh.h"
#include "ir/ops/op_support.h"

#include <array>
#include <cmath>
#include <tuple>

namespace gptc {
using namespace ops;
using kir::Expr;

namespace {

constexpr double defaultEps = 1e-5;
constexpr NotApplicable noSecond{"a gradient itself; second derivatives are not taken"};
constexpr NotApplicable inferChecks{"types and attributes are checked when the result types are inferred"};

/// Where queries and keys are: the first columns of a row with `whole`, else the first rows of a token.
struct Parts {
  bool whole = false;
  int64_t queries = 0, keys = 0;  // columns with `whole`, else heads
  int64_t size = 0;               // elements of a head

  static bool from(const Op &op, const Type &qkv, Parts &p, std::string &error) {
    p.whole = op.attrs.getBool("whole");
    const int64_t heads = op.attrs.getInt("n_head"), keyHeads = op.attrs.getInt("n_kv_head", heads);
    if (!isArithmetic(qkv.dtype) || qkv.rank() != (p.whole ? 3u : 4u))
      return fail(error, "qkv must be a float tensor [B,T,{}], not {}", p.whole ? "(H+2Hkv)D" : "H+2Hkv,D", qkv.str());
    for (const Dim &d : qkv.dims)
      if (d.logical != d.padded)
        return fail(error, "qkv may not be padded: {}", qkv.str());
    const int64_t width = qkv.dim(2);
    if (heads < 1 || heads > width || keyHeads < 1 || heads % keyHeads != 0)
      return fail(error,
                  "n_head = {} and n_kv_head = {}: the first must be a positive multiple of the second, within {}",
                  heads, keyHeads, qkv.str());
    const int64_t all = heads + 2 * keyHeads;
    if (p.whole ? width % all != 0 : width != all)
      return fail(error, "{} of {} do not hold {} heads", width, qkv.str(), all);
    p.size = p.whole ? width / all : qkv.dim(3);
    p.queries = p.whole ? heads * p.size : heads;
    p.keys = p.whole ? keyHeads * p.size : keyHeads;
    return true;
  }
  Parts(const Op &op, const Type &qkv) {
    std::string error;
    GPTC_CHECK(from(op, qkv, *this, error), "{}", error);
  }
  Parts() = default;

  /// The number of elements of a weight, and of an average: of queries, or of keys.
  int64_t count(bool ofKeys) const { return !whole ? size : ofKeys ? keys : queries; }
  Type weight(bool ofKeys, DType t) const { return Type(t, {count(ofKeys)}); }
};

/// One element per row of qkv.
Type statsOf(const Type &qkv) { return rowsOf(qkv).withDType(statDType(qkv.dtype)); }

double weightOf(const Op &op, double w) { return op.attrs.getBool("plus_one") ? 1 + w : w; }

bool expectWeights(const Op &op, unsigned first, const Parts &p, std::string &error) {
  for (bool ofKeys : {false, true}) {
    const unsigned i = first + ofKeys;
    const char *what = p.whole ? ofKeys ? "one element per column of keys" : "one element per column of queries"
                               : "one element per element of a head";
    if (!expectFloat(op, i, error) || !expectType(op, i, p.weight(ofKeys, op.operand(i)->type.dtype), what, error))
      return false;
  }
  return true;
}

/// Calls each(offset of the first element, count, whether of keys, place in the statistics) for all that is averaged.
void forEachAverage(const Type &qkv, const Parts &p,
                    const std::function<void(int64_t from, int64_t count, bool ofKeys, int64_t row)> &each) {
  for (int64_t r = 0; r < qkv.rows(); ++r) {
    const int64_t at = r * qkv.dim(-1);
    if (p.whole) {
      each(at, p.queries, false, r);
      each(at + p.queries, p.keys, true, r);
    } else if (const int64_t head = r % qkv.dim(2); head < p.queries + p.keys) {
      each(at, p.size, head >= p.queries, r);
    }
  }
}

// ---- expressions ----------------------------------------------------------------------------------------------------

/// The parts of a row at the current point.
class Place {
public:
  explicit Place(LowerCtx &c, const Type &qkv) : c(c), p(c.op, qkv), column(c.index().back()) {
    at = p.whole ? column : c.index()[2];
  }
  const Parts &parts() const { return p; }
  Expr isNormed() const { return kir::lt(at, kir::imm(p.queries + p.keys)); }
  Expr isQuery() const { return kir::lt(at, kir::imm(p.queries)); }
  /// Of queries or of keys, as the point is.
  Expr choose(const Expr &ofQueries, const Expr &ofKeys) const {
    return ofQueries == ofKeys ? ofQueries : kir::select(isQuery(), ofQueries, ofKeys);
  }
  /// The weight at the point, from operands `first` and the next one; of values any.
  Expr weight(unsigned first) const {
    Expr w = choose(one(first, false), one(first + 1, true));
    return c.op.attrs.getBool("plus_one") ? c.f(1) + w : w;
  }
  /// The average of `e` over the queries or keys of the row: one with `whole`, else over the row, whatever it holds.
  Expr average(const Expr &e, bool ofKeys) const {
    const Expr share = c.f(1.0 / double(p.count(ofKeys)));
    if (!p.whole)
      return c.rowSum(e) * share;
    const Expr mine =
        !ofKeys ? isQuery()
                : kir::binary(kir::BinaryOp::and_, kir::binary(kir::BinaryOp::ge, at, kir::imm(p.queries)), isNormed());
    return c.rowSum(kir::select(mine, e, c.f(0))) * share;
  }

private:
  Expr one(unsigned operand, bool ofKeys) const {
    if (!p.whole)
      return c.operand(operand);
    // Clamped: elsewhere in the row there is no weight.
    const Expr first = ofKeys ? column - kir::imm(p.queries) : column;
    return c.operandAt(operand, {kir::max(kir::imm(0), kir::min(first, kir::imm(p.count(ofKeys) - 1)))});
  }

  LowerCtx &c;
  const Parts p;
  const Expr column;
  Expr at;
};

// ---- forward --------------------------------------------------------------------------------------------------------

bool inferForward(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &qkv = op.operand(0)->type;
  const double eps = op.attrs.getFloat("eps", defaultEps);
  Parts p;
  if (!Parts::from(op, qkv, p, error) || !expectWeights(op, 1, p, error))
    return false;
  if (!(std::isfinite(eps) && eps >= 0))
    return fail(error, "eps = {} must be finite and not negative", eps);
  const int64_t parts = op.attrs.getInt("parts");
  if (parts < 0 || (parts > 0 && (p.whole || (parts & (parts - 1)) || p.queries % parts || p.keys % parts)))
    return fail(error, "parts = {} must be a power of two that divides the heads, and not whole", parts);
  types = {qkv, statsOf(qkv)};
  if (p.whole)
    types.push_back(statsOf(qkv));
  return true;
}

std::vector<Tensor> referenceForward(const Op &op, std::span<const Tensor *const> in) {
  const Type &qkv = op.operand(0)->type;
  const Parts p(op, qkv);
  const double eps = op.attrs.getFloat("eps", defaultEps);
  Tensor y = *in[0];
  std::vector<Tensor> stats(p.whole ? 2 : 1, Tensor(statsOf(qkv)));
  auto reciprocal = [&](int64_t from, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += in[0]->data[from + i] * in[0]->data[from + i];
    return 1 / std::sqrt(sum / double(count) + eps);
  };
  forEachAverage(qkv, p, [&](int64_t from, int64_t count, bool ofKeys, int64_t row) {
    const double r = stats[p.whole && ofKeys].data[row] = reciprocal(from, count);
    for (int64_t i = 0; i < count; ++i)
      y.data[from + i] *= r * weightOf(op, in[1 + ofKeys]->data[i]);
  });
  for (int64_t r = 0; !p.whole && r < qkv.rows(); ++r)  // of values too, for which nothing asks
    if (r % qkv.dim(2) >= p.queries + p.keys)
      stats[0].data[r] = reciprocal(r * p.size, p.size);
  std::vector<Tensor> results = {std::move(y)};
  for (Tensor &t : stats)
    results.push_back(std::move(t));
  return results;
}

std::vector<Expr> lowerForward(LowerCtx &c) {
  const Place at(c, c.op.operand(0)->type);
  const Expr x = c.operand(0);
  auto reciprocal = [&](bool ofKeys) {
    Expr variance = at.average(x * x, ofKeys) + c.f(c.op.attrs.getFloat("eps", defaultEps));
    return c.f(1) / kir::unary(kir::UnaryOp::sqrt, variance);
  };
  std::vector<Expr> rstd = {reciprocal(false)};
  if (at.parts().whole)
    rstd.push_back(reciprocal(true));
  std::vector<Expr> results = {kir::select(at.isNormed(), x * at.choose(rstd.front(), rstd.back()) * at.weight(1), x)};
  results.insert(results.end(), rstd.begin(), rstd.end());
  return results;
}

/// The gradients of both weights with `parts`. Their terms are dy * x / rms: of the result with weights of 1.
std::vector<Value *> gradOfParts(GradCtx &c, const Parts &p) {
  const int64_t parts = c.op.attrs.getInt("parts");
  AttrMap plain = c.op.attrs;
  plain.erase("parts");
  plain.erase("plus_one");
  Value *one = c.b.constant(1, c.op.operand(1)->type);
  Value *xhat = c.b.value(OpKind::qk_norm, {c.op.operand(0), one, one}, plain);
  Value *heads =
      c.b.value(OpKind::reduce_sum, {c.b.value(OpKind::mul, {c.dresults[0], xhat})}, attrs({{"lead", int64_t(2)}}));
  auto sum = [&](int64_t first, int64_t count) {
    const int64_t each = count / parts;
    std::vector<Value *> terms;
    for (int64_t i = 0; i < parts; ++i) {
      Value *own =
          c.b.value(OpKind::slice, {heads}, attrs({{"dim", int64_t(0)}, {"start", first + i * each}, {"size", each}}));
      terms.push_back(c.b.value(OpKind::reduce_sum, {own}, attrs({{"lead", int64_t(1)}})));
    }
    return sumInTree(c.b, std::move(terms));
  };
  return {sum(0, p.queries), sum(p.queries, p.keys)};
}

std::vector<Value *> gradForward(GradCtx &c) {
  const Type &qkv = c.op.operand(0)->type;
  const Parts p(c.op, qkv);
  for (unsigned i = 1; i < c.op.numResults(); ++i)
    expectNoGradient(c, i);
  Value *x = c.op.operand(0), *dy = c.dresults[0], *ofQueries = c.op.result(1), *ofKeys = c.op.result(p.whole ? 2 : 1);
  AttrMap at, sums = attrs({{"fold", int64_t(0)}});
  for (const auto &[name, value] : c.op.attrs)
    if (name != "eps" && name != "parts") {
      at.set(name, value);
      if (name != "plus_one")
        sums.set(name, value);
    }
  Value *dx = c.b.value(OpKind::qk_norm_grad, {dy, x, c.op.operand(1), c.op.operand(2), ofQueries, ofKeys}, at);
  if (c.op.attrs.getInt("parts")) {
    const std::vector<Value *> dw = gradOfParts(c, p);
    return {dx, dw[0], dw[1]};
  }
  Op *dw = c.b.op(OpKind::qk_norm_grad_params, {dy, x, ofQueries, ofKeys}, sums);
  if (!p.whole)
    return {dx, dw->result(0), dw->result(1)};
  auto part = [&](int64_t start, int64_t size) {
    return c.b.value(OpKind::slice, {dw->result(0)}, attrs({{"dim", int64_t(0)}, {"start", start}, {"size", size}}));
  };
  return {dx, part(0, p.queries), part(p.queries, p.keys)};
}

// ---- gradients ------------------------------------------------------------------------------------------------------

/// Operands dy, x, and the statistics of queries and keys from `stats` on.
bool inferGrad(const Op &op, unsigned stats, Parts &p, std::string &error) {
  const Type &qkv = op.operand(1)->type;
  if (!Parts::from(op, qkv, p, error) || !expectSame(op.operand(0)->type, qkv, "dy and x", error))
    return false;
  for (unsigned i = stats; i < stats + 2; ++i)
    if (!expectType(op, i, statsOf(qkv), "one element per row of x", error))
      return false;
  return true;
}

bool inferDx(const Op &op, std::vector<Type> &types, std::string &error) {
  Parts p;
  if (!inferGrad(op, 4, p, error) || !expectWeights(op, 2, p, error))
    return false;
  types = {op.operand(1)->type};
  return true;
}

std::vector<Tensor> referenceDx(const Op &op, std::span<const Tensor *const> in) {
  const Type &qkv = op.operand(1)->type;
  const Parts p(op, qkv);
  Tensor dx = *in[0];
  forEachAverage(qkv, p, [&](int64_t from, int64_t count, bool ofKeys, int64_t row) {
    const double rstd = in[4 + ofKeys]->data[row];
    auto weighed = [&](int64_t i) { return in[0]->data[from + i] * weightOf(op, in[2 + ofKeys]->data[i]); };
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += weighed(i) * in[1]->data[from + i] * rstd;
    for (int64_t i = 0; i < count; ++i)
      dx.data[from + i] = rstd * (weighed(i) - in[1]->data[from + i] * rstd * sum / double(count));
  });
  return {std::move(dx)};
}

std::vector<Expr> lowerDx(LowerCtx &c) {
  const Place at(c, c.op.operand(1)->type);
  const Expr dy = c.operand(0), rstd = at.choose(c.rowOperand(4), c.rowOperand(5));
  const Expr xhat = c.operand(1) * rstd, w = dy * at.weight(2);
  const Expr ofQueries = at.average(w * xhat, false);
  const Expr projection = at.parts().whole ? at.choose(ofQueries, at.average(w * xhat, true)) : ofQueries;
  return {kir::select(at.isNormed(), rstd * kir::fma(-projection, xhat, w), dy)};
}

bool inferParams(const Op &op, std::vector<Type> &types, std::string &error) {
  Parts p;
  if (!inferGrad(op, 2, p, error))
    return false;
  if (op.attrs.getInt("fold") < 0)
    return fail(error, "fold must not be negative");
  const Type &qkv = op.operand(1)->type;
  const Type columns = qkv.slice(qkv.rank() - 1, qkv.rank()).withDType(statDType(qkv.dtype));
  const size_t results = p.whole ? 1 : 2, inits = op.numOperands() - 4;
  if (inits != 0 && inits != results)
    return fail(error, "{} initial values for {} results", inits, results);
  for (unsigned i = 4; i < op.numOperands(); ++i)
    if (!expectType(op, i, columns, "the type of the result", error))
      return false;
  types.assign(results, columns);
  return true;
}

std::vector<Tensor> referenceParams(const Op &op, std::span<const Tensor *const> in) {
  const Type &qkv = op.operand(1)->type;
  const Parts p(op, qkv);
  std::vector<Tensor> results;
  for (unsigned i = 0; i < op.numResults(); ++i)
    results.push_back(in.size() > 4 ? *in[4 + i] : Tensor(op.result(i)->type));
  forEachAverage(qkv, p, [&](int64_t from, int64_t count, bool ofKeys, int64_t row) {
    const int64_t first = p.whole && ofKeys ? p.queries : 0;
    for (int64_t i = 0; i < count; ++i)
      results[!p.whole && ofKeys].data[first + i] +=
          in[0]->data[from + i] * in[1]->data[from + i] * in[2 + ofKeys]->data[row];
  });
  return results;
}

std::vector<Expr> lowerParams(LowerCtx &c) {
  const Place at(c, c.op.operand(1)->type);
  const int64_t fold = c.op.attrs.getInt("fold");
  auto init = [&](unsigned i) { return c.op.numOperands() > 4 ? c.operand(4 + i) : nullptr; };
  const Expr e = c.operand(0) * (c.operand(1) * at.choose(c.rowOperand(2), c.rowOperand(3))), zero = c.f(0);
  const Expr ofBoth = kir::select(at.isNormed(), e, zero);
  if (at.parts().whole)
    return {c.foldSum(ofBoth, fold, init(0))};
  return {c.foldSum(kir::select(at.isQuery(), e, zero), fold, init(0)),
          c.foldSum(kir::select(at.isQuery(), zero, ofBoth), fold, init(1))};
}

// ---- samples --------------------------------------------------------------------------------------------------------

struct SampleShape {
  int64_t heads, keyHeads;
  bool whole, plusOne;
};
constexpr SampleShape sampleShapes[] = {
    {2, 2, false, false}, {4, 1, false, true}, {3, 3, true, false}, {4, 2, true, true}, {1, 1, false, false}};

struct SampleParts {
  Type qkv, queries, keys, stats;
  AttrMap attrs;
};
SampleParts partsOf(const SampleShape &n, SampleSource &s) {
  const int64_t size = s.extent(n.whole ? 17 : 65), all = n.heads + 2 * n.keyHeads, batch = s.extent(3);
  const Dim rows = s.extent(5);
  SampleParts p;
  p.qkv = n.whole ? Type(DType::f32, {batch, rows, all * size}) : Type(DType::f32, {batch, rows, all, size});
  p.queries = Type(DType::f32, {n.whole ? n.heads * size : size});
  p.keys = Type(DType::f32, {n.whole ? n.keyHeads * size : size});
  p.stats = statsOf(p.qkv);
  p.attrs = attrs({{"n_head", n.heads}});
  if (n.keyHeads != n.heads)
    p.attrs.set("n_kv_head", n.keyHeads);
  if (n.whole)
    p.attrs.set("whole", true);
  return p;
}

std::vector<OpDef::Sample> samplesForward(unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> samples;
  for (const SampleShape &n : sampleShapes) {
    SampleParts p = partsOf(n, s);
    p.attrs.set("eps", samples.empty() ? 0.1 : 1e-6);
    if (n.plusOne)
      p.attrs.set("plus_one", true);
    samples.push_back({.operandTypes = {p.qkv, p.queries, p.keys}, .attrs = std::move(p.attrs)});
  }
  SampleParts p = partsOf({4, 2, false, true}, s);
  p.attrs.set("plus_one", true);
  p.attrs.set("parts", int64_t(2));
  samples.push_back({.operandTypes = {p.qkv, p.queries, p.keys}, .attrs = std::move(p.attrs)});
  return samples;
}

std::vector<OpDef::Sample> samplesGrad(bool params, unsigned seed) {
  SampleSource s(seed);
  std::vector<OpDef::Sample> samples;
  auto add = [&](const SampleShape &n, bool inits) {
    SampleParts p = partsOf(n, s);
    OpDef::Sample sample{.attrs = std::move(p.attrs), .operandValues = {s.normals(p.qkv), s.normals(p.qkv)}};
    if (!params) {
      sample.operandValues.push_back(s.normals(p.queries));
      sample.operandValues.push_back(s.normals(p.keys));
      if (n.plusOne)
        sample.attrs.set("plus_one", true);
    }
    for (int i = 0; i < 2; ++i)
      sample.operandValues.push_back(s.uniforms(p.stats, 0.5, 2.0));
    if (params) {
      sample.attrs.set("fold", inits ? p.qkv.dim(1) : s.between(0, 3));
      for (int i = 0; inits && i < (n.whole ? 1 : 2); ++i)
        sample.operandValues.push_back(s.normals(p.qkv.slice(p.qkv.rank() - 1, p.qkv.rank())));
    }
    for (const Tensor &t : sample.operandValues)
      sample.operandTypes.push_back(t.type);
    samples.push_back(std::move(sample));
  };
  for (const SampleShape &n : sampleShapes)
    for (bool inits : {false, true})
      if (!inits || params)
        add(n, inits);
  return samples;
}

std::vector<AttrSpec> headAttrs(std::vector<AttrSpec> more) {
  std::vector<AttrSpec> all = {{AttrSpec::Int, "n_head", true, int64_t(1)},
                               {AttrSpec::Int, "n_kv_head", false, int64_t(0)},
                               {AttrSpec::Bool, "whole", false, false}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

OpDef define_qk_norm() {
  return {
      .kind = OpKind::qk_norm,
      .name = "qk_norm",
      .summary =
          "queries x become x / sqrt(average of x^2 + eps) * wq, keys the same with wk, values stay; the average "
          "is over each head, with `whole` over all queries and over all keys of a token; with plus_one times 1 "
          "+ wq and 1 + wk. The gradients of wq and wk are summed in `parts` of the heads (0: in one)",
      .shapes = "qkv [B,T,H+2Hkv,D], wq [D], wk [D] -> y, rstd [B,T,H+2Hkv]; with whole qkv [B,T,(H+2Hkv)D], wq [HD], "
                "wk [HkvD] -> y, rstd [B,T], rstd_k [B,T]",
      .operands = {{"qkv"}, {"wq"}, {"wk"}},
      .attrs = headAttrs({{AttrSpec::Float, "eps", false, defaultEps},
                          {AttrSpec::Bool, "plus_one", false, false},
                          {AttrSpec::Int, "parts", false, int64_t(0)}}),
      .results = {"y", "rstd", "rstd_k"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = {Tokens::rows, {0}},
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferForward,
      .check = inferChecks,
      .grad = gradForward,
      .cost = [](const Op &op) { return streamCost(op, 5); },
      .reference = referenceForward,
      .lower = lowerForward,
      .samples = samplesForward,
  };
}

OpDef define_qk_norm_grad() {
  return {
      .kind = OpKind::qk_norm_grad,
      .name = "qk_norm_grad",
      .summary = "gradient of qk_norm with respect to qkv",
      .shapes = "dy and x as qkv, wq, wk, rstd, rstd_k (without whole the same) -> dx as qkv",
      .operands = {{"dy"}, {"x"}, {"wq"}, {"wk"}, {"rstd"}, {"rstd_k"}},
      .attrs = headAttrs({{AttrSpec::Bool, "plus_one", false, false}}),
      .results = {"dx"},
      .fusion = FusionKind::row,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferDx,
      .check = inferChecks,
      .grad = noSecond,
      .cost = [](const Op &op) { return streamCost(op, 8); },
      .reference = referenceDx,
      .lower = lowerDx,
      .samples = [](unsigned seed) { return samplesGrad(false, seed); },
  };
}

OpDef define_qk_norm_grad_params() {
  return {
      .kind = OpKind::qk_norm_grad_params,
      .name = "qk_norm_grad_params",
      .summary = "gradients of qk_norm with respect to wq and wk: sums over tokens and heads in blocks of `fold` rows "
                 "of qkv; with whole one sum, of all columns",
      .shapes = "dy and x as qkv, rstd, rstd_k (without whole the same)[, init_q [D], init_k [D]] -> dwq [D], dwk [D]; "
                "with whole [, init [(H+2Hkv)D]] -> dw [(H+2Hkv)D]",
      .operands = {{"dy"}, {"x"}, {"rstd"}, {"rstd_k"}, {"init_q", true}, {"init_k", true}},
      .attrs = headAttrs({{AttrSpec::Int, "fold", false, int64_t(0)}}),
      .results = {"dwq", "dwk"},
      .fusion = FusionKind::fold,
      .autocast = AutocastClass::high,
      .tokens = madeByAutodiff,
      .tokenSum = leadingDims,
      .indices = noIndices,
      .infer = inferParams,
      .check = inferChecks,
      .grad = noSecond,
      .cost = [](const Op &op) { return streamCost(op, 3); },
      .reference = referenceParams,
      .lower = lowerParams,
      .samples = [](unsigned seed) { return samplesGrad(true, seed); },
  };
}

}  // namespace gptc
